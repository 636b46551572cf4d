"""Calls of a controller without Snakemake: jobs are shell commands on the hosts of the emulated pod."""

import asyncio
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from study import PATIENCE

from snakemake_executor_plugin_tpu.emulator.pod import BUCKET, NAME, PROJECT, ZONE, EmulatedPod
from snakemake_executor_plugin_tpu.google import storage_transport
from snakemake_executor_plugin_tpu.health import Health
from snakemake_executor_plugin_tpu.job import JobRequest, JobRun, Outcome
from snakemake_executor_plugin_tpu.pool import Pool
from snakemake_executor_plugin_tpu.settings import ExecutorSettings
from snakemake_executor_plugin_tpu.slice import Slice

REQUEST = JobRequest("job", "same", "job", 1, "true", {}, b"")


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, for at most `PATIENCE` seconds, while controllers go on."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.1)


class Killed(Exception):
    """What the threads of a killed call get; nothing repeats it."""


class Controller:
    """One call: a pool that a test may kill (it says nothing more to the bucket) and start again."""

    def __init__(self, pod: EmulatedPod, folder: Path, **settings: Any) -> None:
        self.pod, self.folder = pod, folder
        self.given = {"bucket": f"{BUCKET}/{uuid.uuid4().hex[:8]}", **settings}
        where = {"project": PROJECT, "zone": ZONE, "name": NAME, "api_endpoint": f"127.0.0.1:{pod.api.port}"}
        usual = {"accelerator_type": pod.accelerator_type, "create": True, "idle_delete": 0, "grace": 2}
        self.settings = ExecutorSettings(**where, **{"python": sys.executable, **usual, **self.given})
        self.lines: list[str] = []
        self.dead = asyncio.Event()
        self.strike: Callable[[str, str], bool] = lambda moment, name: False
        self.away, self.hang = False, None
        """Whether this machine has no network, and an event for which its requests wait."""
        self.runs: dict[str, JobRun] = {}
        self._way: Any = None

    def again(self) -> "Controller":
        """Return the next call on the same pod from the same folder."""
        return Controller(self.pod, self.folder, **self.given)

    def transport(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Any:
        """Send a request unless this call is dead; `strike` kills it before or after an upload."""
        if self.away:
            raise OSError("the network of this machine is away")
        if self.hang is not None:
            self.hang.wait()
        self._way = self._way or storage_transport()
        name = body.split(b'"name": "', 1)[1].split(b'"', 1)[0].decode() if body else ""
        if self.dead.is_set() or (name and self.strike("before", name)):
            self.die()
        answer = self._way(method, path, body, headers)
        if name and self.strike("after", name):
            self.die()
        return answer

    def die(self) -> None:
        self.loop.call_soon_threadsafe(self.dead.set)
        raise Killed("this call is dead")

    async def __aenter__(self) -> "Controller":
        self.loop = asyncio.get_running_loop()
        health = Health(self.lines.append)
        self.slices = [
            Slice(one, self.folder, self.lines.append, health, lambda: bool(self.runs), self.transport)
            for one in self.settings.of_slices()
        ]
        for slice in self.slices:
            slice.cloud.patience = self.settings.lease
        self.pool = Pool(self.slices, self.lines.append, health)
        self.pool.runs = self.runs
        return self

    async def __aexit__(self, *_: Any) -> None:
        if not self.dead.is_set():
            await self.pool.close()
        for slice in self.slices:
            slice.stop.set()
            await slice.cloud.close()

    async def run(self, slot: str = "job", command: str = "true", **request: Any) -> Outcome:
        """Run a job to its end, as Snakemake does: it is collected once its success was told."""
        wanted = replace(REQUEST, slot=slot, label=slot, command=command, **request)
        logs = self.folder / "logs" / slot
        self.runs[slot] = run = JobRun(wanted, self.pool, logs, self.settings, self.lines.append)
        outcome = await asyncio.wait_for(run.run(), PATIENCE)
        if outcome.ok:
            await run.collect()
        self.runs.pop(slot)
        return outcome

    async def all_free(self) -> None:
        """Wait until every host is free: then job i of so many is on host i."""
        await eventually(lambda: len(self.slices[0].control.free()) == self.slices[0].hosts)

    @property
    def output(self) -> str:
        return "\n".join(self.lines)
