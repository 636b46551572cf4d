"""Studies on the emulated pod, run as users run them: jobs count steps and keep checkpoints in the bucket."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .pod import BUCKET, EmulatedPod

WORKFLOW = Path(__file__).parent / "workflow"
SNAKEMAKE = ("-m", "snakemake")
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
    "tpu-grace": 5,
    "tpu-reconnect": 2,
    "tpu-recovery": 1,
    "tpu-preemption-notice": 5,
}


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; the test's own time limit is Snakemake's."""
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def hearing_signals() -> Iterator[None]:
    """Have what is started hear SIGINT and SIGHUP: scripts in the background ignore one, nohup the other, and children
    inherit that."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def keys_of(pod: EmulatedPod) -> list[str]:
    """Return the hosts' keys: another pod has others."""
    return [host.host_key for host in pod.hosts]


class Study:
    """A copy of the test workflow with jobs of its own, and the Snakemake calls made on it."""

    def __init__(self, folder: Path, pod: EmulatedPod, jobs: dict[str, Any], **profile: Any):
        shutil.copytree(WORKFLOW, folder)
        self.folder, self.pod, self.jobs = folder, pod, jobs
        self.prefix = f"study-{uuid.uuid4().hex[:8]}"
        (folder / "config.yaml").write_text(json.dumps({"jobs": jobs, "prefix": self.prefix}))
        (folder / "profile").mkdir()
        (folder / "profile" / "config.yaml").write_text(json.dumps(PROFILE | profile))
        self.calls: list[Call] = []

    def start(self, *arguments: str, program: tuple[str, ...] = SNAKEMAKE, **environment: str) -> "Call":
        """Begin a call of Snakemake."""
        call = Call(self, program, arguments, environment)
        self.calls.append(call)
        return call

    def run(self, *arguments: str, code: int = 0, **environment: Any) -> str:
        """Make a call of Snakemake and return what it said."""
        call = self.start(*arguments, **environment)
        assert call.wait() == code, call.said
        return call.said

    def command(self, *words: str, **environment: str) -> tuple[int, str]:
        """Run a command of the plugin and return its exit code and what it said."""
        done = subprocess.run(
            [sys.executable, "-m", "snakemake_executor_plugin_tpu", "--profile", "profile", *words],
            cwd=self.folder,
            env={
                **os.environ,
                **self.pod.environment,
                "XDG_CACHE_HOME": str(self.folder / "cache"),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
        )
        return done.returncode, done.stdout

    def end(self) -> None:
        """End every call that was made."""
        for call in self.calls:
            call.end()

    @property
    def table(self) -> list[str]:
        """Return the lines of the final result."""
        return (self.folder / "results" / "table.txt").read_text().splitlines()

    def release(self, job: str) -> None:
        """Let a job that holds go on."""
        self.pod.bucket.blob(f"{self.prefix}/checkpoints/{job}/release").upload_from_string("go")

    def step(self, job: str) -> int:
        """Return how far a job has come by its checkpoint."""
        return int(self.pod.bucket.blob(f"{self.prefix}/checkpoints/{job}/step").download_as_bytes())

    def launches(self, job: str) -> dict[str, dict[str, Any]]:
        """Return what each rank of each launch saw, by 'launch-rank'."""
        prefix = f"{self.prefix}/checkpoints/{job}/launches/"
        blobs = self.pod.client().list_blobs(BUCKET, prefix=prefix)
        return {blob.name.removeprefix(prefix): json.loads(blob.download_as_bytes()) for blob in blobs}


class Call:
    """A running call of Snakemake, whose output can be waited on."""

    def __init__(
        self, study: Study, program: tuple[str, ...], arguments: tuple[str, ...], environment: dict[str, str]
    ):
        self.lines: list[str] = []
        self.news = threading.Condition()
        with hearing_signals():
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *program, "--profile", "profile", *arguments],
                cwd=study.folder,
                env={
                    **os.environ,
                    **study.pod.environment,
                    "XDG_CACHE_HOME": str(study.folder / "cache"),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self.news:
                self.lines.append(line)
                self.news.notify_all()
        with self.news:
            self.lines.append("")
            self.news.notify_all()

    @property
    def said(self) -> str:
        """Return the output so far."""
        return "".join(self.lines)

    def wait_for(self, pattern: str, timeout: float = 60) -> str:
        """Wait until the output matches and return the matching line."""
        with self.news:

            def found() -> str | None:
                return next((line for line in self.lines if re.search(pattern, line)), None)

            assert self.news.wait_for(lambda: found() or self.lines[-1:] == [""], timeout), (
                f"{pattern}: {self.said}"
            )
            line = found()
            assert line is not None, f"{pattern}: {self.said}"
            return line

    def wait(self, timeout: float = 100) -> int:
        """Wait for the end and return the exit code; where it does not come, fail with what each thread was at."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.send_signal(
                signal.SIGABRT
            )  # faulthandler's: it prints the threads and ends the process
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.end()
            raise AssertionError(f"Snakemake has not ended within {timeout} s: {self.said}") from None
        self.reader.join(10)
        return code

    def signal(self, number: int) -> None:
        """Signal the controller itself, as kill(1) does."""
        self.process.send_signal(number)

    def end(self) -> None:
        """Make sure that nothing is left of it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(10)
        assert self.process.stdout
        self.process.stdout.close()
