"""Jobs on a pod without faults."""

import csv
import os
from pathlib import Path

import pytest
from study import ONE_HOST, until

HOSTILE = """x'; touch pwned; $(touch pwned) `touch pwned` "&y"""


def read(path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_packed_and_whole_pod_jobs_deliver_their_results(study):
    one = study({"a": {}, "b": {}, "all": {"hosts": 4}})
    output = one.run()
    assert one.table == [
        "a counted to 3 with seed 7 on 1",
        "b counted to 3 with seed 7 on 1",
        "all counted to 3 with seed 7 on 4",
    ]
    # Logs were shown live, with the rank, and kept for each rank.
    assert all(f"[count job=all {rank}] step 3\n" in output for rank in range(4))
    logs = sorted((one.folder / ".snakemake" / "tpu" / "logs").glob("*/launch-1/rank*.log"))
    assert [path.name for path in logs].count("rank0.log") == 3
    assert all("step 3" in path.read_text() for path in logs)

    # What each rank saw of its place in the world, and what the rule exported.
    seen = {rank: entry["environment"] for rank, entry in one.launches("all").items()}
    assert sorted(seen) == ["1-0", "1-1", "1-2", "1-3"]
    address, port = seen["1-0"]["MASTER_ADDR"], seen["1-0"]["MASTER_PORT"]
    for rank in range(4):
        entry = seen[f"1-{rank}"]
        assert (entry["RANK"], entry["WORLD_SIZE"], entry["LOCAL_RANK"]) == (str(rank), "4", "0")
        assert (entry["MASTER_ADDR"], entry["MASTER_PORT"]) == (address, port)
        assert entry["COUNT_OPTION"] == "all"
        # A job for the whole pod leaves the pod's own description alone.
        assert not {"TPU_PROCESS_BOUNDS", "TPU_SKIP_MDS_QUERY", "TPU_WORKER_ID"} & set(entry)

    # What the jobs used: time on all chips of their hosts.
    with open(one.folder / ".snakemake/tpu/jobs.csv", newline="") as file:
        rows = {row["label"]: row for row in csv.DictReader(file)}
    for label, row in rows.items():
        seconds = float(row["ended"]) - float(row["started"])
        assert row["accelerator_type"] == "v4-32"
        assert float(row["chip_seconds"]) == pytest.approx(seconds * (16 if "all" in label else 4), abs=1)

    # A job for one host tells libtpu that there is no other.
    alone = one.launches("a")["1-0"]["environment"]
    assert {
        key: alone[key]
        for key in alone
        if key.startswith(("TPU_SKIP", "TPU_PROC", "TPU_CHIPS", "TPU_WORKER"))
    } == {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }
    assert (alone["RANK"], alone["WORLD_SIZE"]) == ("0", "1")
    until(lambda: not one.pod.jobs())
    assert {host.home.joinpath(".snakemake-tpu").stat().st_mode & 0o777 for host in one.pod.hosts} == {0o700}


def test_output_outside_of_storage_is_refused(study):
    one = study({"a": {}})
    snakefile = one.folder / "Snakefile"
    snakefile.write_text(
        snakefile.read_text().replace('remote("counts/{job}.txt"),\n    params', '"c/{job}.txt",\n    params')
    )
    output = one.run("c/a.txt", code=1)
    assert "Rule count would write c/a.txt on the pod, where it would be lost" in output


def test_hostile_names_are_data_and_nothing_else(study):
    # Without a pool of numbers in `resources` a job may ask for "all" hosts, whatever the pod's size.
    one = study({HOSTILE: {"hosts": "all"}}, resources={"other": 1})
    one.run()
    assert one.table == [f"{HOSTILE} counted to 3 with seed 7 on 4"]
    assert {entry["environment"]["COUNT_OPTION"] for entry in one.launches(HOSTILE).values()} == {HOSTILE}
    places = [one.folder, *(host.folder for host in one.pod.hosts)]
    assert not [path for place in places for path in place.rglob("pwned*")]


def test_secrets_are_in_no_command_line_and_no_log(study):
    one = study({"a": {"options": "--hold 1"}}, **ONE_HOST)
    secret = "s3cr3t-token"
    (one.folder / "Snakefile").write_text("envvars: 'API_TOKEN'\n" + (one.folder / "Snakefile").read_text())
    call = one.start(API_TOKEN=secret)
    call.wait_for(r"\] step 1$")
    inside = [pid for host in one.pod.hosts for pid in host.processes()]
    assert any(secret in read(f"/proc/{pid}/environ") for pid in inside)
    assert not [
        pid for pid in os.listdir("/proc") if pid.isdigit() and secret in read(f"/proc/{pid}/cmdline")
    ]
    one.release("a")
    assert call.wait() == 0, call.output
    assert secret not in call.output
    kept = [path for path in (one.folder / ".snakemake").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if secret in read(path)]
