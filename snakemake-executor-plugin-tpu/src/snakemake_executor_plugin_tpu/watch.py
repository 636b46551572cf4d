"""Background work on the pod: free the hosts of jobs of earlier calls when these end, and remove ended jobs."""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Any

from .allocation import Allocator
from .driver import end
from .errors import COMMAND, PodError, Unreachable, red
from .guarding import guard_trouble
from .health import Health
from .lifecycle import Pod, PodManager, hosts_of
from .pod import Worker
from .settings import ExecutorSettings

LOOK_SECONDS = 10.0
COLLECT_SECONDS = 2.0
GUARD_LOOKS = 6
SILENT = "(silent)"


class Watch:
    """Watches the pod while Snakemake runs."""

    def __init__(
        self,
        manager: PodManager,
        allocator: Allocator,
        runs: dict[str, Any],
        settings: ExecutorSettings,
        say: Callable[[str], None],
        health: Health | None = None,
    ) -> None:
        self.manager, self.allocator, self.runs = manager, allocator, runs
        self.settings, self.say = settings, say
        self._ended: list[Any] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._unclaimed: set[str] = set()
        self.health = health
        manager.on_up = self._on_up

    def start(self) -> None:
        self._tasks = [asyncio.ensure_future(loop) for loop in (self._clear_often(), self._look_often())]

    async def stop(self) -> None:
        await end(*self._tasks)
        await self._clear()

    def collect(self, run: Any) -> None:
        """Remove an ended job's tasks soon, together with those of others."""
        self._ended.append(run)

    async def _clear_often(self) -> None:
        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            await self._clear()

    async def _clear(self) -> None:
        ended, self._ended = self._ended, []
        names: dict[Worker, list[str]] = {}
        for run in ended:
            for worker, tasks in run.leftovers():
                names.setdefault(worker, []).extend(tasks)
        open_to = {worker: tasks for worker, tasks in names.items() if not worker.ssh.closed}
        removals = (worker.call("remove", tasks=tasks) for worker, tasks in open_to.items())
        try:
            await asyncio.gather(*removals, return_exceptions=True)
        except asyncio.CancelledError:
            self._ended = ended + self._ended  # for `stop`
            raise

    async def _on_up(self, pod: Pod, looked_at: Collection[int] | None = None) -> None:
        """Reserve the hosts on which something runs, and stop ranks that have lost their main task.

        `looked_at`: the hosts (None: all) that have said just now what they run; on the others it may have ended.
        """
        for rank, status in enumerate(pod.status):
            if self.health and (why := status.get("aside")):
                self.health.set_aside((self.settings.name or "", rank), why)
        running = [task for task in pod.found() if task["state"] == "running"]
        mains = {task["slot"] for task in running if task.get("role") == "main"}
        seen = [task for task in running if looked_at is None or task["host"] in looked_at]
        for task in seen:
            if task.get("role") in ("main", "other"):
                hosts = hosts_of(task) if task["role"] == "main" else [task["host"]]
                self.allocator.take(task["slot"], hosts)
                self._unclaimed.add(task["slot"])
        self.allocator.take(SILENT, pod.silent)
        self.allocator.release(SILENT, but=pod.silent)
        for task in seen:
            if task.get("role") == "rank" and task["slot"] not in mains:
                worker = pod.workers[task["host"]]
                self.say(f"{worker.host}: stopping a rank of {task['label']} without its main task")
                await worker.stop([task["task"]], self.settings.grace)

    async def _readmit(self, pod: Pod) -> None:
        """Use hosts again that were silent and answer now."""
        for rank in sorted(pod.silent):
            with contextlib.suppress(Unreachable, PodError):
                pod.status[rank] = await pod.workers[rank].status(timeout=5)
                pod.silent.discard(rank)
                self.say(f"{pod.workers[rank].host} answers again")
                await self._on_up(pod, [rank])

    async def _look_often(self) -> None:
        warned: set[str] = set()
        looks, guard_error = 0, ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            looks += 1
            self._unclaimed -= set(self.runs)
            if (pod := self.manager.current) is None:
                continue
            await self._readmit(pod)
            guarded = looks % GUARD_LOOKS == 0 and self.settings.is_guarded
            if not (guarded or self._unclaimed):
                continue
            with contextlib.suppress(Unreachable, PodError):
                statuses = await asyncio.gather(*(worker.status() for worker in pod.answering()))
                if guarded:
                    if (trouble := guard_trouble(statuses)) and trouble != guard_error:
                        self.say(red(trouble))
                    guard_error = trouble
                tasks = [task for status in statuses for task in status["tasks"].values()]
                running = {task["slot"] for task in tasks if "slot" in task and task["state"] == "running"}
                for slot in sorted(self._unclaimed - set(self.runs)):
                    if slot not in running:
                        self._unclaimed.discard(slot)
                        self.allocator.release(slot)
                    elif slot not in warned:
                        warned.add(slot)
                        self.say(
                            f"The pod runs {slot}, which an earlier call started and this one does not need: its "
                            f"hosts are busy. `{COMMAND} stop {slot}` ends it."
                        )
