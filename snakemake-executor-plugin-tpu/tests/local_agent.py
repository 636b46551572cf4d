"""The agent on this machine, called like the controller calls it over ssh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import snakemake_executor_plugin_tpu
from snakemake_executor_plugin_tpu.emulator.study import until
from snakemake_executor_plugin_tpu.worker import tasks
from snakemake_executor_plugin_tpu.worker.agent import MAGIC

PACKAGE = Path(snakemake_executor_plugin_tpu.__file__).parent


class Agent:
    """Calls the agent with its own folder."""

    environment: dict[str, str] = {}

    def __init__(self, root: Path):
        self.root = root
        (root / "tasks").mkdir()
        (root / "sources").mkdir()

    def open(self, *words: str) -> subprocess.Popen:
        own = {"TPU_AGENT_ROOT": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", f"worker.{words[0]}", *words[1:]],
            cwd=PACKAGE,
            env={**os.environ, **own, **self.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def call(self, *words: str, **request) -> list[tuple[dict, bytes]]:
        """Send a request and return the frames of the answer."""
        with self.open(*words) as process:
            output, _ = process.communicate(json.dumps(request).encode() + b"\n", timeout=180)
        return frames(output)

    def follow(self, name: str, command: str, **spec) -> subprocess.Popen:
        """A controller that starts a task and stays."""
        process = self.open("agent", "follow")
        request = {"task": name, "spec": self.spec(command, **spec)}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        return process

    def run(self, name: str, command: str, **spec) -> list[tuple[dict, bytes]]:
        """Follow a task to its end."""
        with self.follow(name, command, **spec) as process:
            return frames(process.stdout.read())

    def start(self, name: str, command: str, **spec) -> list[tuple[dict, bytes]]:
        """Start a task that nobody follows."""
        return self.call("agent", "follow", task=name, spec=self.spec(command, **spec))

    def spec(self, command: str, **spec) -> dict:
        return {"argv": ["/bin/bash", "-c", command], "lease": 60, "grace": 5, **spec}

    def folder(self, name: str) -> Path:
        return self.root / "tasks" / name

    def end_of(self, name: str) -> dict:
        """The record of a task, once it has ended."""
        until(lambda: tasks.read_exit(self.folder(name)))
        return tasks.read_exit(self.folder(name))


def frames(output: bytes) -> list[tuple[dict, bytes]]:
    _, _, output = output.partition(MAGIC)
    found = []
    while output:
        line, _, output = output.partition(b"\n")
        frame = json.loads(line)
        size = frame.get("bytes", 0)
        found.append((frame, output[:size]))
        output = output[size:]
    return found


def log_of(found) -> str:
    return b"".join(payload for _, payload in found).decode()
