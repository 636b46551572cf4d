"""A real Slurm and small studies that train on it; stand-ins for Slurm's commands."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests import warm
from tests.pipeline.conftest import new_project, one_run
from tests.slurm.cluster import Cluster, missing_program
from tests.slurm.standins import Submitting
from trm.slurm import commands
from trm.slurm import executor as module

PATIENCE = 300  # seconds, for jobs that begin, train and end on a machine that is busy with other tests
SLOW_WRITES = """\
import os, sys, time

def slow(descriptor, write=os.fsync):
    time.sleep(1)
    while os.path.exists("hold"):
        time.sleep(0.1)
    write(descriptor)

if sys.orig_argv[2:4] == ["trm", "train"]:
    os.fsync = slow
"""
ORDINARY = """\
#!/bin/bash
exec setpriv --reuid=65534 --inh-caps=+dac_read_search --ambient-caps=+dac_read_search {program} "${{@/#--me/--user=0}}"
"""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A Slurm cluster, started once."""
    if missing := missing_program():
        pytest.skip(f"{missing} is not installed: .ci/packages")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def data(once) -> Path:
    """The data set of all studies, made once without Slurm."""

    def make(folder: Path) -> None:
        words = ("--config", "scale=gpu", "--cores", "1", "--until", "dataset")
        new_project(folder, one_run(1, scale="gpu")).snakemake(*words)

    return once("slurm-data", make) / "results"


class Study:
    """A checkout whose jobs go to the cluster."""

    def __init__(self, folder: Path, cluster: Cluster, document: dict, data: Path):
        self.folder, self.cluster = folder, cluster
        folder.mkdir()
        new_project(folder, document)
        profile = folder / "profiles/slurm/workflow.yaml"
        profile.write_text(
            profile.read_text().replace("backend: cuda", "backend: cpu")
        )  # its GPUs are no real ones
        shutil.copytree(data, folder / "results")
        self.environment = dict(cluster.environment)
        self._started: list[subprocess.Popen] = []

    def slow_writes(self) -> None:
        """Make every fsync of training take a second longer, and wait while there is a file `hold`."""
        (self.folder / "slow").mkdir()
        (self.folder / "slow/sitecustomize.py").write_text(SLOW_WRITES)
        self.environment["PYTHONPATH"] = str(self.folder / "slow")

    def hang_at(self, command: str, once: Path | None = None) -> Path:
        """Stop slurmctld when `sbatch` or a job's `srun` is called first, and return the file that says so. The command
        waits before until the file `once` exists."""
        hung = self.folder / f"hung-at-{command}"
        stop = f"touch {hung}; kill -STOP {self.cluster.process('slurmctld')}"
        if once:
            stop = f"until [ -e {once} ]; do sleep 0.1; done; {stop}"
        self._replace(command, f'#!/bin/sh\n[ -e {hung} ] || {{{{ {stop}; }}}}\nexec {{program}} "$@"\n')
        return hung

    def ask_as_ordinary_user(self) -> None:
        """Have squeue answer as to somebody who is no operator, as the tests' user is: not of hidden partitions. It
        takes root to become somebody else."""
        if not os.getuid():
            self._replace("squeue", ORDINARY)

    def _replace(self, command: str, script: str) -> None:
        """Put a script before a command of Slurm, `{program}`."""
        folder = self.folder / f"instead-of-{command}"
        folder.mkdir()
        program = shutil.which(command, path=self.cluster.environment["PATH"])
        (folder / command).write_text(script.format(program=program))
        (folder / command).chmod(0o755)
        self.environment["PATH"] = f"{folder}:{self.environment['PATH']}"

    def start(self, *words: str, before: Sequence[str] = ()) -> subprocess.Popen:
        """Start Snakemake with the Slurm profile in the background, by a command `before` it."""
        often = ("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5")
        with (self.folder / "snakemake.txt").open("ab") as output:
            process = warm.Popen(
                [*before, sys.executable, "-m", "snakemake", "--profile", "profiles/slurm", *often, *words],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process

    def run(self, *words: str, before: Sequence[str] = ()) -> str:
        """Run Snakemake to its end and return its output."""
        process = self.start(*words, before=before)
        self.wait(lambda: process.poll() is not None, "the end of the study")
        assert process.returncode == 0, self.output
        return self.output

    def wait_for_failure(self) -> None:
        """Wait until Snakemake gives up, but not for its report of the results so far."""
        self.wait(lambda: "Exiting because a job execution failed" in self.output, "the end of the study")

    def jobs(self) -> list[str]:
        """Ids of all Slurm jobs of this study that the queue knows."""
        lines = self.cluster.run("squeue", "--array", "-h", "--states=all", "-o", "%i|%Z").splitlines()
        return [line.split("|")[0] for line in lines if line.endswith(f"|{self.folder}")]

    def running(self) -> list[str]:
        """Jobs of this study that train."""
        return [job for job in self.jobs() if self.cluster.show(job)["JobState"] == "RUNNING"]

    @property
    def output(self) -> str:
        """The output of Snakemake so far."""
        return (self.folder / "snakemake.txt").read_text()

    def end(self) -> None:
        """Stop every Snakemake and every job."""
        for process in self._started:
            process.kill()
            process.wait()
        self.cluster.end_jobs()

    def trained(self) -> list[dict]:
        """training.json of every finished run."""
        return [json.loads(p.read_text()) for p in sorted(self.folder.glob("results/runs/*/training.json"))]

    def logs(self, count: int = 1) -> list[str]:
        """The logs of all runs that have one, and empty ones up to `count`."""
        found = [path.read_text() for path in self.folder.glob("logs/train/[!.]*.log")]
        return found + [""] * (count - len(found))

    def log(self) -> str:
        """The log of the only run so far."""
        return "".join(self.logs())

    def slurm_logs(self) -> str:
        """What Slurm's jobs have printed."""
        return "\n".join(path.read_text() for path in self.folder.glob(".snakemake/slurm_logs/**/*.log"))

    def newest_steps(self) -> list[int]:
        """The step of the newest complete checkpoint of each run that has one."""
        newest: dict[Path, int] = {}
        for path in self.folder.glob("results/checkpoints/*/step-*/manifest.json"):
            step = int(re.sub(r"\D", "", path.parent.name))
            newest[path.parents[1]] = max(step, newest.get(path.parents[1], 0))
        return sorted(newest.values())

    def wait(self, ready: Callable[[], object], what: str) -> None:
        """Wait until a condition holds, which it never will without a daemon or the last controller."""
        deadline = time.monotonic() + PATIENCE
        while True:
            ended = self._started[-1].poll() is not None
            if ready():
                return
            self.cluster.check()
            if ended or time.monotonic() > deadline:
                said = "\n".join((self.output, self.log(), self.slurm_logs(), self.cluster.report()))
                raise AssertionError(f"{what}: not yet\n{said}")
            time.sleep(0.5)


@pytest.fixture
def new_study(cluster, data, tmp_path) -> Iterator[Callable[..., Study]]:
    """A function that makes a study: `new_study(steps=40, seeds=2)`."""
    yield from studies(cluster, data, tmp_path)


def studies(cluster: Cluster, data: Path, folder: Path) -> Iterator[Callable[..., Study]]:
    """Yield a function that makes studies at the scale of the Slurm profile, on idle nodes, and end them."""
    made: list[Study] = []
    cluster.ready()

    def make(**choices: float) -> Study:
        document = one_run(scale="gpu", **({"log_every": 10} | choices))
        made.append(Study(folder / f"study-{len(made)}", cluster, document, data))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a function that makes a command of a script."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def make(name: str, text: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    return make


@pytest.fixture
def answers(tmp_path, script):
    """Return a function that makes a command print a text."""
    return lambda name, text: script(name, f"echo '{text}'\necho {name} $* >> {tmp_path}/calls")


@pytest.fixture
def executor(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(module.plugin.Executor, "__init__", lambda *_: None)
    monkeypatch.setattr(module.plugin.Executor, "format_job_exec", lambda _, job: f"make {job.jobid}")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as answering:
        answering.setattr(commands, "ask", lambda *_: (True, ""))
        return Submitting(tmp_path)
