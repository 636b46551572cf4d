"""Studies on the emulated pod, run as users run them: jobs count steps and write checkpoints to the bucket."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_tpu.emulator.pod import BUCKET, EmulatedPod

WORKFLOW = Path(__file__).parent / "workflow"
SNAKEMAKE = ("-m", "snakemake")
FINISHED = (sys.maxsize, sys.maxsize)
PATIENCE = 300.0  # seconds, on a machine that is busy with other tests
PROFILE = {
    "executor": "tpu",
    "jobs": 4,
    "scheduler": "greedy",
    "shared-fs-usage": "none",
    "resources": {"tpu_hosts": 4},
    "default-resources": {"tpu_hosts": 1},
    "rerun-triggers": ["mtime", "params", "input"],
    "rerun-incomplete": True,
    "latency-wait": 1,
    "tpu-accelerator-type": "v4-32",
    "tpu-sources": "scripts",
    "tpu-create": True,
    "tpu-idle-delete": 0,
    "tpu-grace": 5,
}
ONE_HOST = {"tpu-accelerator-type": "v4-8", "resources": {"tpu_hosts": 1}}
"""For studies whose jobs take one host: the others need not boot."""


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, for at most `PATIENCE` seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Let child processes receive SIGINT and SIGHUP, which they would ignore if started by `&` or nohup."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Study:
    """A copy of the test workflow with its own jobs, and the calls of Snakemake on it."""

    program = "scripts/count.py --"
    """In the command lines of its jobs."""

    def __init__(self, folder: Path, pod: EmulatedPod, jobs: dict[str, Any], /, **profile: Any):
        shutil.copytree(WORKFLOW, folder)
        self.folder, self.pod, self.jobs, self.profile = folder, pod, jobs, profile
        self.prefix = f"study-{uuid.uuid4().hex[:8]}"
        (folder / "config.yaml").write_text(json.dumps({"jobs": jobs, "prefix": self.prefix}))
        (folder / "profile").mkdir()
        (folder / "profile" / "config.yaml").write_text(json.dumps(PROFILE | profile))
        self.calls: list[Call] = []

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of calls and commands."""
        return {**os.environ, **self.pod.environment, "XDG_CACHE_HOME": str(self.folder / "cache")}

    def start(self, *arguments: str, program: tuple[str, ...] = SNAKEMAKE, **environment: str) -> "Call":
        """Start a call of Snakemake."""
        call = Call(self, program, arguments, environment)
        self.calls.append(call)
        return call

    def run(self, *arguments: str, code: int = 0, **environment: Any) -> str:
        """Run Snakemake to its end and return the output."""
        call = self.start(*arguments, **environment)
        assert call.wait() == code, call.output
        return call.output

    def command(self, *words: str) -> tuple[int, str]:
        """Run a command of the plugin and return its exit code and output."""
        call = self.start(*words, program=("-m", "snakemake_executor_plugin_tpu"))
        return call.wait(), call.output

    def end(self) -> None:
        """End every call."""
        for call in self.calls:
            call.end()

    def steps(self) -> dict[str, tuple[int, int]]:
        """Return the step and launch of each job that has started, FINISHED of one that has its result."""
        blobs = self.pod.client().list_blobs(BUCKET, prefix=f"{self.prefix}/")
        names = {blob.name.removeprefix(f"{self.prefix}/"): blob for blob in blobs}
        steps = {}
        for job in self.jobs:
            step, owner = (names.get(f"checkpoints/{job}/{name}") for name in ("step", "owner"))
            if f"counts/{job}.txt" in names:
                steps[job] = FINISHED
            elif step and owner:
                steps[job] = (int(step.download_as_bytes()), int(owner.download_as_bytes().split()[0]))
        return steps

    @property
    def duplicates(self) -> list[str]:
        """Return the launches that found another one of their job at work, and which."""
        blobs = self.pod.client().list_blobs(BUCKET, prefix=f"{self.prefix}/checkpoints/")
        return [f"{each.name}: {each.download_as_text()}" for each in blobs if "/duplicates/" in each.name]

    @property
    def table(self) -> list[str]:
        """Return the lines of the final result."""
        return (self.folder / "results" / "table.txt").read_text().splitlines()

    def release(self, job: str) -> None:
        """Let a waiting job continue."""
        self.pod.bucket.blob(f"{self.prefix}/checkpoints/{job}/release").upload_from_string("go")

    def launches(self, job: str) -> dict[str, dict[str, Any]]:
        """Return what each rank of each launch saw, by 'launch-rank'."""
        prefix = f"{self.prefix}/checkpoints/{job}/launches/"
        blobs = self.pod.client().list_blobs(BUCKET, prefix=prefix)
        return {blob.name.removeprefix(prefix): json.loads(blob.download_as_bytes()) for blob in blobs}


class Call:
    """A running call of Snakemake, whose output can be waited for."""

    popen = subprocess.Popen

    def __init__(
        self, study: Study, program: tuple[str, ...], arguments: tuple[str, ...], environment: dict[str, str]
    ):
        self.log = study.folder / f"call{len(study.calls)}.log"
        command = [sys.executable, "-X", "faulthandler", *program, "--profile", "profile", *arguments]
        with default_signals(), self.log.open("wb") as log:
            self.process = self.popen(
                command,
                cwd=study.folder,
                env=study.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """Return the output so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> str:
        """Wait until a line of the output matches, and return it."""
        until(lambda: self.says(pattern) or self.process.poll() is not None)
        line = self.says(pattern)
        assert line, f"{pattern}: {self.output}"
        return line

    def says(self, pattern: str) -> str:
        """Return the first line of the output that matches, or ""."""
        return next((line for line in self.output.splitlines() if re.search(pattern, line)), "")

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end and return the exit code; after `timeout` fail with the stack of each thread."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler prints the threads and ends the process
            self.process.wait()
            raise AssertionError(f"Snakemake has not ended within {timeout} s: {self.output}") from None

    def signal(self, number: int) -> None:
        """Send a signal to the controller process only."""
        self.process.send_signal(number)

    def end(self) -> None:
        """Kill what is left of the call."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
