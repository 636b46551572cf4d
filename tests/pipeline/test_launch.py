"""`trm study run`: stale locks, a second run, the launch record; and the clean-up of checkpoints."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.conftest import ROOT, STUDY, Project, new_project
from tests.storage.cloud import Server
from trm.cli import main
from trm.errors import UserError
from trm.pipeline.cleanup import clean, survey
from trm.pipeline.launch import expand_patterns, with_config
from trm.pipeline.naming import RUN_FILES
from trm.pipeline.places import Place
from trm.pipeline.project import open_project
from trm.pipeline.record import Launch
from trm.pipeline.settings import parse_overrides
from trm.pipeline.spent import spent
from trm.storage import Unreachable, open_store
from trm.study.cost import read_hardware


@pytest.fixture
def fresh(tmp_path):
    return new_project(tmp_path, STUDY)


def launch(project, *words):
    command = [sys.executable, "-m", "trm", "study", "run", "--profile", "profiles/local", *words]
    return subprocess.run(
        command, cwd=project.folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_stale_lock_is_removed_and_the_launch_recorded(fresh):
    locks = fresh.folder / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text(str(fresh.folder / "results/report.html") + "\n")
    # Snakemake lists missing files as their hashes order them: with a comma behind or not
    source = re.search(r"results/sources/[^\s,]+/manifest\.json", fresh.snakemake("-n", "-p").stdout)
    result = launch(fresh, source[0])
    assert result.returncode == 0, result.stderr
    (record,) = (fresh.folder / "results/launches").glob("*.json")
    assert json.loads(record.read_text())["state"] == "finished"


def test_locks_of_another_machine_stay_until_they_are_removed(fresh):
    """On a file system whose flock binds one machine only, nobody here knows whether that controller lives."""
    locks = fresh.folder / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results/report.html\n")
    (fresh.folder / ".snakemake/trm-run.lock").write_text("4711 login1")
    result = launch(fresh)
    assert result.returncode == 2
    assert "process 4711 on login1 may still run in this folder" in result.stderr
    plain = fresh.snakemake(check=False)
    assert "process 4711 on login1 may still run" in plain.stderr
    assert "cannot be locked" in plain.stderr
    assert any(locks.iterdir())
    fresh.snakemake("--unlock")
    assert launch(fresh, "--until", "source").returncode == 0


def test_a_second_run_waits_for_a_living_one(fresh):
    lock = fresh.folder / ".snakemake/trm-run.lock"
    lock.parent.mkdir()
    with lock.open("w") as handle:
        handle.write("4711")
        handle.flush()
        fcntl.flock(handle, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "trm", "study", "run", "--profile", "profiles/local", "-n"]
        second = subprocess.Popen(
            command, cwd=fresh.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert "another run (process 4711) is active in this folder" in second.stderr.readline()
        assert second.poll() is None
    out, error = second.communicate(timeout=120)
    assert second.returncode == 0, error
    assert "html_report" in out


def test_only_checkpoints_that_nobody_can_need_are_removed(tmp_path):
    for run in ("finished-run", "unfinished-run", "forgotten-run"):
        folder = tmp_path / "checkpoints" / run
        folder.mkdir(parents=True)
        (folder / "step-1").write_bytes(b"x" * 10)
        os.utime(folder / "step-1", (5, 5))
    done = tmp_path / "runs/finished-run"
    done.mkdir(parents=True)
    for file in RUN_FILES:
        (done / file).touch()
    entries = survey(str(tmp_path), {"finished-run", "unfinished-run"})
    assert {entry.run: entry.state for entry in entries} == {
        "finished-run": "finished",
        "unfinished-run": "unfinished",
        "forgotten-run": "unknown",
    }
    assert [entry.run for entry in clean(str(tmp_path), entries, False, True)] == ["finished-run"]
    assert (tmp_path / "checkpoints/finished-run").exists()
    clean(str(tmp_path), entries, True, False)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["unfinished-run"]


def test_overrides_become_one_config_of_snakemake():
    assert with_config(["-n", "ema"], []) == ["-n", "ema"]
    given = ["--config", "experiments=ema", "set=model.layers=1", "-n"]
    assert with_config(given, ["training.steps=10", "training.lr=1e-3"]) == [
        "-n",
        "--config",
        "experiments=ema",
        "set=model.layers=1 training.steps=10 training.lr=1e-3",
    ]
    behind = with_config(["--cores", "1", "--", "ema"], ["training.steps=10"])
    assert behind == ["--cores", "1", "--config", "set=training.steps=10", "--", "ema"]
    with pytest.raises(UserError, match="must be key=value"):
        with_config([], ["training.steps"])


@pytest.mark.parametrize("sign", [",", " ", ", "])
def test_several_overrides_in_one_text(sign):
    overrides = parse_overrides(f"training.steps=10{sign}evaluation.unroll=[1, 2]")
    assert overrides == {"training.steps": 10, "evaluation.unroll": [1, 2]}


def test_set_reaches_the_runs_and_a_dry_run_says_what_they_cost(fresh):
    result = launch(
        fresh,
        "-n",
        "-p",
        "--set",
        "training.steps=3,training.lr=1e-3",
        "--set",
        "runtime.log_every=1",
        "batch",
    )
    assert result.returncode == 0, result.stderr
    assert "3 steps" in result.stdout
    assert re.search(r"^batch +2 +4 +4 ", result.stderr, re.MULTILINE)
    result = launch(fresh, "-n", "bach")
    assert "no experiment 'bach'; did you mean 'batch'?" in result.stderr


def test_a_launch_lists_the_runs_it_was_at_work_on(fresh, monkeypatch):
    monkeypatch.chdir(fresh.folder)
    project = open_project({"logs": "mine"})
    earlier, whole, broken, elsewhere, damaged, _ = project.runs

    def finish(run, facts):
        for path in map(Path, project.catalogue.run_files(run)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(facts)

    finish(earlier, "{}")
    begun = Launch(open_project({"logs": "mine"}))
    begun.started = 10.0
    for run in (earlier, whole, broken):
        log = Path(f"mine/train/{run}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("step 1/1\n")
    os.utime(f"mine/train/{earlier}.log", (5, 5))
    finish(whole, json.dumps({"wall_seconds": 2.0, "setup_seconds": 0.5}))
    finish(elsewhere, json.dumps({"wall_seconds": 3.0}))  # its log is on another machine
    finish(damaged, "{")
    assert {item["run"]: (item["state"], item["seconds"]) for item in begun.runs()} == {
        whole: ("finished", 2.5),
        broken: ("unfinished", None),
        elsewhere: ("finished", 3.0),
        damaged: ("finished", None),
    }


def test_runs_in_a_bucket_have_their_seconds_and_their_price(fresh, monkeypatch, tmp_path):
    server = Server(tmp_path / "objects")
    server.start()
    try:
        server.make_bucket("launches")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.chdir(fresh.folder)
        place = {"storage_prefix": "gs://launches/study"}
        begun = Launch(open_project(place))
        whole, damaged, _ = list(begun._project.runs)[:3]
        store = open_store(place["storage_prefix"])
        for run, facts in ((whole, b'{"wall_seconds": 1800, "setup_seconds": 1800}'), (damaged, b"{")):
            for path in begun._project.catalogue.run_files(run):
                store.put_bytes(path, facts)
        begun.write("finished", "log")
    finally:
        server.kill()
    (record,) = Path("results/launches").glob("*.json")
    found = json.loads(record.read_text())["runs"]
    assert [(item["run"], item["seconds"]) for item in found] == [(whole, 3600.0), (damaged, None)]
    hardware = read_hardware("config/hardware.yaml", "h200").model_copy(update={"usd_per_device_hour": 2.5})
    account = spent(hardware)
    assert (account["device_hours"], account["usd"]) == (hardware.devices, 2.5 * hardware.devices)


def test_a_bucket_out_of_reach_costs_the_record_and_nothing_else(fresh, monkeypatch, capsys):
    def fail(place, path):
        raise Unreachable("Could not list gs://launches/study/results/runs/ for 0.5 minutes.")

    monkeypatch.chdir(fresh.folder)
    begun = Launch(open_project({}))
    monkeypatch.setattr(Place, "exists", fail)
    begun.write("failed", "log")
    assert "Could not list gs://launches" in capsys.readouterr().err
    assert not Path("results/launches").exists()


def test_one_point_of_an_experiment(fresh):
    result = launch(fresh, "-n", "data_size", "--point", "10")
    assert result.returncode == 0, result.stderr
    stats = result.stdout.partition("Job stats:")[2]
    assert re.search(r"^train +2$", stats, re.MULTILINE)
    assert "publish" not in stats
    assert "2 runs to train" in result.stderr


def test_a_point_that_the_scale_lacks_is_named_with_those_that_it_has(fresh):
    result = launch(fresh, "-n", "data_size", "--point", "11")
    assert result.returncode == 1
    assert "11'; there are: train_puzzles=10; train_puzzles=20" in result.stderr + result.stdout


def test_patterns_name_experiments(fresh, monkeypatch):
    monkeypatch.chdir(fresh.folder)
    given = ["--profile", "profiles/local", "-n", "data_*", "--config", "logs=a*"]
    assert expand_patterns(given) == ["--profile", "profiles/local", "-n", "data_size", "--config", "logs=a*"]
    with pytest.raises(UserError, match=r"no experiment matches 'x\*' at scale laptop"):
        expand_patterns(["--profile", "profiles/local", "x*"])


def test_a_home_that_cannot_be_written_is_no_reason_to_fail(fresh, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    result = launch(fresh, "-n")
    assert result.returncode == 0, result.stderr
    assert (fresh.folder / ".snakemake/cache").is_dir()


def test_a_study_of_ones_own_is_ready_to_run(tmp_path, capsys):
    """The folder is complete: real Snakemake plans it; and it is never written over another study."""
    assert main(["study", "init", str(tmp_path / "own")]) == 0
    assert f"cd {tmp_path / 'own'}" in capsys.readouterr().out
    assert Project(tmp_path / "own").would_run()["train"] == 12 + 6
    assert main(["study", "init", str(tmp_path / "own")]) == 2
    assert "already holds Snakefile: name a new folder" in capsys.readouterr().err


def test_the_workflow_can_be_a_module(tmp_path):
    """As snakedeploy writes it: config and profiles are copied, the rules come from the repository."""
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").write_text(
        f'configfile: "config/config.yaml"\nmodule trm:\n    snakefile: "{ROOT}/Snakefile"\n    config: config\n'
        "use rule * from trm\n"
    )
    assert Project(tmp_path).would_run("baseline")["train"] == 3
