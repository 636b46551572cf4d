"""`trm study run`: stale locks, a second run, and the clean-up of checkpoints."""

import copy
import fcntl
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.pipeline.conftest import STUDY, Project, job_stats, new_project
from tests.shell import ROOT, start
from trm.cli import main
from trm.errors import UserError
from trm.launch.jobs import Jobs
from trm.launch.lock import wait_and_join
from trm.launch.snakemake import with_config
from trm.pipeline.project import open_project
from trm.pipeline.settings import parse_overrides


@pytest.fixture
def fresh(tmp_path):
    return new_project(tmp_path, STUDY)


def lock(project, output="results/report.html"):
    """A lock of Snakemake's."""
    locks = project.folder / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text(f"{output}\n")
    return locks


def test_locks_of_another_machine_stay_until_they_are_removed_and_stale_ones_do_not(
    fresh, monkeypatch, capsys
):
    """On a file system whose flock binds one machine only, nobody here knows whether that controller lives."""
    locks = lock(fresh)
    path = fresh.folder / ".snakemake/trm-run.lock"
    path.write_text("4711 login1")
    monkeypatch.chdir(fresh.folder)
    assert main(["study", "run", "--profile", "profiles/local"]) == 2
    assert "process 4711 on login1 may still run in this folder" in capsys.readouterr().err
    plain = fresh.snakemake("--until", "source", check=False)
    assert "process 4711 on login1 may still run" in plain.stderr
    assert "cannot be locked" in plain.stderr
    assert any(locks.iterdir())
    fresh.snakemake("--unlock")
    assert not locks.exists()
    path.write_text("")
    lock(fresh, fresh.folder / "results/report.html")
    result = fresh.run("--until", "source")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("answer", "own", "stay"),
    [
        ("echo '|TIMEOUT'", "99@beta", False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "99@beta", False),
        ("echo '|RUNNING'", "99@beta", True),
        ("echo '|COMPLETING'", "99@beta", True),
        ("exit 1", "99@beta", True),
        ("echo '|RUNNING'", "12@beta", True),
        ("echo '|RUNNING'", "12@alpha", False),  # which Slurm has started again on another node
    ],
)
def test_locks_of_a_controller_that_was_a_slurm_job_stay_until_the_job_has_ended(
    tmp_path, monkeypatch, answer, own, stay
):
    squeue, path = tmp_path / "squeue", tmp_path / ".snakemake/trm-run.lock"
    squeue.write_text(f"#!/bin/sh\n[ $5$6 = --jobs=12--clusters=alpha ] || exit 1\n{answer}\n")
    squeue.chmod(0o755)
    number, _, cluster = own.partition("@")
    here = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": number, "SLURM_CLUSTER_NAME": cluster}
    for name, value in (here | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'ClusterName             = beta'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    lock(Project(tmp_path))
    path.write_text("4711 n0 12 alpha")
    if stay:
        with pytest.raises(
            UserError, match=r"process 4711 on n0 \(Slurm job 12\) may still run in this folder"
        ):
            wait_and_join()
    else:
        wait_and_join().close()
        assert path.read_text().split()[2:] == [number, cluster]
    assert (tmp_path / ".snakemake/locks").exists() is stay


def test_a_second_run_waits_for_a_living_one_and_a_plan_does_not(fresh):
    path = fresh.folder / ".snakemake/trm-run.lock"
    path.parent.mkdir()
    with path.open("w") as handle:
        handle.write("4711")
        handle.flush()
        fcntl.flock(handle, fcntl.LOCK_EX)
        command = (sys.executable, "-m", "trm", "study", "run", "--profile", "profiles/local")
        plan = subprocess.run(
            [*command, "-np"], cwd=fresh.folder, capture_output=True, text=True, timeout=120
        )
        assert ", 1 report: from these results" in plan.stderr
        second = start(*command, "--list-rules", cwd=fresh.folder, stderr=subprocess.PIPE)
        assert "another run (process 4711) is active in this folder" in second.stderr.readline()
        assert second.poll() is None
    _, error = second.communicate(timeout=120)
    assert second.returncode == 0, error


@pytest.mark.parametrize(
    ("given", "sets", "passed"),
    [
        ("-n ema", [], "-n ema"),
        ("--config scale=gpu ema -n", [], "ema -n --config scale=gpu"),
        ("-C experiments=ema -n --config=logs=there", ["training.steps=10"],
         "-n --config experiments=ema logs=there set=training.steps=10"),
        ("--cores 1 -- ema", ["training.steps=10"], "--cores 1 --config set=training.steps=10 -- ema"),
    ],
)  # fmt: skip
def test_overrides_become_one_config_of_snakemake(given, sets, passed):
    assert with_config(given.split(), sets) == passed.split()


def test_overrides_follow_those_of_the_config():
    given = ["--config", "experiments=ema", "set=model.layers=1", "-n"]
    sets = "set=model.layers=1 training.steps=10 training.lr=1e-3"
    passed = with_config(given, ["training.steps=10", "training.lr=1e-3"])
    assert passed == ["-n", "--config", "experiments=ema", sets]
    with pytest.raises(UserError, match="must be key=value"):
        with_config([], ["training.steps"])


@pytest.mark.parametrize("sign", [",", " ", ", "])
def test_several_overrides_in_one_text(sign):
    overrides = parse_overrides(f"training.steps=10{sign}evaluation.unroll=[1, 2]")
    assert overrides == {"training.steps": 10, "evaluation.unroll": [1, 2]}


def test_a_profile_that_is_not_utf8_is_named_with_its_line(tmp_path, capsys):
    (tmp_path / "config.yaml").write_bytes(b"cores: 1\n# caf\xe9\n")
    assert main(["study", "run", f"--profile={tmp_path}"]) == 2
    assert f"{tmp_path}/config.yaml, line 2: not UTF-8 text" in capsys.readouterr().err


def test_a_dry_run_of_one_point_with_overrides_says_what_it_costs(fresh, monkeypatch):
    """With a home that cannot be written."""
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    sets = ("--set", "training.steps=3,training.lr=1e-3", "--set", "runtime.log_every=1")
    result = fresh.run("-n", "-p", *sets, "data_size", "--point", "10")
    assert result.returncode == 0, result.stderr
    assert "3 steps" in result.stdout
    assert re.search(r"^data_size +[0-9]+ +2 ", result.stderr, re.MULTILINE)
    jobs = job_stats(result.stdout)
    assert jobs["train"] == 2
    assert "plot" not in jobs
    assert "2 runs to train" in result.stderr
    assert (fresh.folder / ".snakemake/cache").is_dir()


def test_no_cores_and_a_point_of_no_experiment_are_refused(fresh):
    sentences = {
        ("--cores", "0"): "--cores 0 leaves no core for a job: give 1 or more, or `all`",
        ("-n", "--point", "10"): "--point 10: name its experiment too, as a target",
    }
    for words, sentence in sentences.items():
        result = fresh.run(*words)
        assert result.returncode != 0
        assert sentence in result.stdout + result.stderr


def test_an_experiment_without_figures_makes_its_table(tmp_path, monkeypatch):
    study = copy.deepcopy(STUDY)
    study["experiments"]["batch"]["figures"] = []
    monkeypatch.chdir(new_project(tmp_path, study).folder)
    project = open_project({})
    assert project.selection.targets["batch"] == [project.catalogue.table_file("batch")]


def test_a_point_that_the_scale_lacks_is_named_with_those_that_it_has(fresh, monkeypatch, caplog):
    monkeypatch.chdir(fresh.folder)
    jobs = Jobs(open_project({"point": "11"}))
    with pytest.raises(SystemExit):
        jobs.target("data_size")
    assert "no point matches '11'; there are: train_puzzles=10; train_puzzles=20" in caplog.text


def test_a_study_of_ones_own_is_never_written_over_another_one_or_onto_a_full_disk(
    tmp_path, monkeypatch, capsys
):
    """That Snakemake plans it is in test_packaging.py."""

    def full(source, target, ignore):
        raise shutil.Error([(str(source), str(target), "[Errno 28] No space left on device")])

    (tmp_path / "Snakefile").touch()
    assert main(["study", "init", str(tmp_path)]) == 2
    assert "already holds Snakefile: name a new folder" in capsys.readouterr().err
    monkeypatch.setattr("shutil.copytree", full)
    assert main(["study", "init", str(tmp_path / "own")]) == 2
    assert "own: [Errno 28] No space left on device; name a folder" in capsys.readouterr().err


def test_the_workflow_can_be_a_module(tmp_path):
    """As snakedeploy writes it: config and profiles are copied, the rules come from the repository."""
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").write_text(
        f'configfile: "config/config.yaml"\nmodule trm:\n    snakefile: "{ROOT}/Snakefile"\n    config: config\n'
        "use rule * from trm\n"
    )
    assert Project(tmp_path).would_run("baseline")["train"] == 18
