"""Jobs on a pod without faults."""

import csv
import os
from pathlib import Path

import pytest
from study import ONE_HOST, until

from snakemake_executor_plugin_tpu.allocation import libtpu_variables, slice_of

HOSTILE = """x'; touch pwned; $(touch pwned) `touch pwned` "&y"""


def read(path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def test_packed_and_whole_pod_jobs_deliver_their_results_whatever_their_names(study):
    # Without a pool of numbers in `resources` a job may ask for "all" hosts, whatever the pod's size.
    one = study({"a": {}, "b": {}, HOSTILE: {"hosts": "all"}}, resources={"other": 1})
    output = one.run()
    hosts = {"a": 1, "b": 1, HOSTILE: 4}
    assert one.table == [f"{job} counted to 3 with seed 7 on {count}" for job, count in hosts.items()]
    places = [one.folder, *(host.folder for host in one.pod.hosts)]
    assert not [path for place in places for path in place.rglob("pwned*")]

    # Logs were shown live, with the rank, and kept for each rank.
    assert all(f"[count job={HOSTILE} {rank}] step 3\n" in output for rank in range(4))
    logs = sorted((one.folder / ".snakemake" / "tpu" / "logs").glob("*/launch-1/rank*.log"))
    assert [path.name for path in logs].count("rank0.log") == 3
    assert all("step 3" in path.read_text() for path in logs)

    # What each rank saw of its place in the world, and what the rule exported.
    seen = [one.launches(HOSTILE)[f"1-{rank}"]["environment"] for rank in range(4)]
    ranks = [(entry["RANK"], entry["WORLD_SIZE"], entry["LOCAL_RANK"]) for entry in seen]
    assert ranks == [(str(rank), "4", "0") for rank in range(4)]
    assert len({(entry["MASTER_ADDR"], entry["MASTER_PORT"]) for entry in seen}) == 1
    assert {entry["COUNT_OPTION"] for entry in seen} == {HOSTILE}
    # A job for one host tells libtpu that there is no other; one for the whole pod leaves its description alone.
    alone = libtpu_variables(1, slice_of("v4-32"))
    assert alone.items() < one.launches("a")["1-0"]["environment"].items()
    assert not any((alone.keys() - {"TPU_ACCELERATOR_TYPE"}) & entry.keys() for entry in seen)

    # What the jobs used: time on all chips of their hosts.
    with open(one.folder / ".snakemake/tpu/jobs.csv", newline="") as file:
        for row in csv.DictReader(file):
            seconds = float(row["ended"]) - float(row["started"])
            chips = 4 if row["label"][-1] in "ab" else 16
            assert row["accelerator_type"] == "v4-32"
            assert float(row["chip_seconds"]) == pytest.approx(seconds * chips, abs=1)
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


def test_secrets_are_in_no_command_line_and_no_log(study):
    one = study({"a": {"options": "--hold 1"}}, **ONE_HOST)
    secret = "s3cr3t-token"
    (one.folder / "Snakefile").write_text("envvars: 'API_TOKEN'\n" + (one.folder / "Snakefile").read_text())
    call = one.start(API_TOKEN=secret)
    call.wait_for(r"\] step 1$")
    inside = [pid for host in one.pod.hosts for pid in host.processes()]
    assert any(secret in read(f"/proc/{pid}/environ") for pid in inside)
    assert not [pid for pid in os.listdir("/proc") if secret in read(f"/proc/{pid}/cmdline")]
    one.release("a")
    assert call.wait() == 0, call.output
    assert secret not in call.output
    kept = [path for path in (one.folder / ".snakemake").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if secret in read(path)]
