"""The slices on which jobs run, each with its own lifecycle and lease. A single pod is a pool of one."""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .control import Control, Taken
from .errors import DOWN, PodError, red
from .health import Health, Place
from .slice import ASK_SECONDS, Slice

if TYPE_CHECKING:
    from .job import JobRun

CHECK_PAUSE = 600.0  # between two checks of a host that was set aside
LOOK_SECONDS = 3600.0  # in which a slice that exists has to become READY, or to be lost
Placed = tuple[Slice, list[int]]
"""A slice and the hosts that a job now holds there; none if a launch of an earlier call is there."""


@dataclass(eq=False)
class Waiting:
    """A job that waits for hosts."""

    run: "JobRun"
    future: asyncio.Future[Placed]
    looked: dict[Slice, Control] = field(default_factory=dict)
    """Where it has been looked for a launch of an earlier call."""
    search: asyncio.Task[None] | None = None

    def unseen(self, slices: list[Slice]) -> list[Slice]:
        """Return the slices where an earlier launch may run: until there are none, the job starts nowhere."""
        return [
            slice
            for slice in slices
            if slice.is_unclear or (slice.control and self.looked.get(slice) is not slice.control)
            if self.place is None  # a check runs on one host, which has to be free
        ]

    @property
    def hosts(self) -> int:
        return self.run.request.hosts

    @property
    def place(self) -> Place | None:
        """Return the host that a check is for."""
        return self.run.request.place


class Pool:
    """Gives hosts to jobs, first come first served, and starts as many slices as the jobs need."""

    def __init__(self, slices: list[Slice], say: Callable[[str], None], health: Health) -> None:
        self.slices, self.say, self.health = slices, say, health
        self.checks: dict[Place, asyncio.Task[None]] = {}
        self._queue: list[Waiting] = []
        self._looked: asyncio.Future[None] | None = None
        self._unseen: PodError | None = None
        self._unneeded: set[str] = set()
        self._numbers = itertools.count(1)
        self.runs: dict[str, JobRun] = {}
        """The jobs of this call."""
        for slice in slices:
            slice.on_tick = self.serve

    async def place(self, run: "JobRun") -> Placed:
        """Return the slice where a job runs or may still run, else one on which it now holds hosts.

        Raises PodError if there is no slice, or one of several could not be looked at when the call began.
        """
        if self._looked is None:
            self._looked = asyncio.ensure_future(self._look())
        await asyncio.shield(self._looked)
        if self._unseen and len(self.slices) > 1:
            raise self._unseen
        if run.request.place is None and all(slice.error for slice in self.slices):
            # Another job has reported these errors: try again.
            for slice in self.slices:
                slice.error = None
        waiting = Waiting(run, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self.serve()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            self._queue = [each for each in self._queue if each is not waiting]
            self.release(run)
            raise
        finally:
            if waiting.search:
                waiting.search.cancel()

    async def _search(self, waiting: Waiting) -> None:
        """Look for a launch of an earlier call; wait for slices that are in trouble."""
        try:
            while (unseen := waiting.unseen(self.slices)) and not waiting.future.done():
                slice = unseen[0]
                if (control := slice.control) is None:
                    if slice.error:
                        raise slice.error
                    slice.start()
                    await slice.news(slice.cloud.poll_seconds[0])
                    await slice.why_gone(ASK_SECONDS)
                elif not await waiting.run.is_in(slice):
                    waiting.looked[slice] = control
                elif not waiting.future.done():
                    waiting.future.set_result((slice, []))
        except Exception as error:
            if not waiting.future.done():
                waiting.future.set_exception(error)
        self.serve()

    def release(self, run: "JobRun") -> None:
        for slice in self.slices:
            slice.release(run.slot)

    async def _look(self) -> None:
        """Bring up the slices that exist: jobs of an earlier call may run on them."""
        await asyncio.gather(*map(self._look_at, self.slices))

    async def _look_at(self, slice: Slice) -> None:
        unknown = (
            f"{slice.name}: whether jobs of an earlier call run there is unknown, so none starts elsewhere"
        )
        try:
            await self._bring_up(slice, unknown)
        except PodError as error:
            slice.error = error
            self._unseen = PodError(f"{unknown}: {error}")

    async def _bring_up(self, slice: Slice, unknown: str) -> None:
        """Bring up a slice unless it is proved that no job runs there. Raises PodError if neither can be known."""
        deadline = time.monotonic() + LOOK_SECONDS
        if not (state := await slice.cloud.describe()).may_run_jobs:
            return
        slice.start()
        if len(self.slices) > 1 and not state.is_ready:
            self.say(red(f"{unknown} before it is READY or gone; it is {state}"))
        while slice.is_starting:
            await slice.news(slice.cloud.poll_seconds[0])
            if not (state := await slice.cloud.describe()).may_run_jobs:
                return
            if not state.is_ready and time.monotonic() > deadline:
                raise PodError(f"{state} for {LOOK_SECONDS / 60:.0f} minutes; {DOWN} deletes it.")
        if slice.error and not isinstance(slice.error, Taken):
            raise slice.error

    def serve(self) -> None:
        """Give free hosts to the waiting jobs and start slices for the others."""
        left: list[Waiting] = []
        reserved: set[Slice] = set()
        free = {slice: slice.free() for slice in self.slices}
        for waiting in list(self._queue):
            if waiting.future.done():
                continue
            if waiting.place is None:
                self._check_new(waiting.run, free)
            unseen = waiting.unseen(self.slices)
            if unseen and (waiting.search is None or waiting.search.done()):
                waiting.search = asyncio.ensure_future(self._search(waiting))
            is_first = waiting.place in self.health.unchecked  # jobs wait for it
            room = [
                (s, hosts)
                for s in self.slices
                if not unseen and (s not in reserved or is_first) and (hosts := self._room(s, waiting, free))
            ]
            if room:
                slice, hosts = room[0]
                slice.take(waiting.run.slot, hosts)
                free[slice] = [rank for rank in free[slice] if rank not in hosts]
                waiting.future.set_result((slice, hosts))
                continue
            up = [slice for slice in self.slices if slice.control and slice not in reserved]
            if waiting.hosts > 1 and up:
                # Later jobs for one host would starve a job for a whole slice.
                reserved.add(max(up, key=lambda slice: len(free[slice])))
            left.append(waiting)
        self._queue = left
        self._tell_unneeded()
        self._start_for([waiting for waiting in left if not waiting.unseen(self.slices)])

    def _room(self, slice: Slice, waiting: Waiting, free: dict[Slice, list[int]]) -> list[int]:
        """Return free hosts for a job, or none. A job for a whole slice takes hosts that were set aside as well."""
        hosts, place = free[slice], waiting.place
        if place is not None:
            return [rank for rank in hosts if (slice.name, rank) == place]
        hosts = [rank for rank in hosts if (slice.name, rank) not in self.health.unchecked]
        if waiting.hosts == 1:
            places = [(each.name, rank) for each in self.slices if each.control for rank in range(each.hosts)]
            usable = self.health.usable(waiting.run.slot, places)
            hosts = [rank for rank in hosts if (slice.name, rank) in usable]
        return hosts[: waiting.hosts] if len(hosts) >= waiting.hosts else []

    def _start_for(self, left: list[Waiting]) -> None:
        coming = {slice: slice.hosts for slice in self.slices if slice.is_starting}
        for waiting in left:
            if waiting.place is not None:  # a check starts no slice
                continue
            idle = [slice for slice in self.slices if not (slice.control or slice.is_starting or slice.error)]
            if slice := next((s for s in self.slices if coming.get(s, 0) >= waiting.hosts), None):
                coming[slice] -= waiting.hosts
            elif idle:
                idle[0].start()
                coming[idle[0]] = idle[0].hosts - waiting.hosts
            elif all(slice.error for slice in self.slices):
                waiting.future.set_exception(self.slices[0].error or PodError("no slice"))

    def _tell_unneeded(self) -> None:
        """Say what an earlier call has left on hosts for which jobs of this one wait."""
        for slice in self.slices if self._queue else []:
            for beat in slice.control.beats.values() if slice.control else []:
                job = beat["job"][0] if beat["job"] else "check-"
                if not job.startswith("check-") and job not in self.runs and job not in self._unneeded:
                    self._unneeded.add(job)
                    self.say(
                        f"{slice.name} runs {job}, which an earlier call started and this one does not need."
                    )

    # ---- checks of hosts: jobs like others, so they never share chips

    @property
    def hosts(self) -> int:
        return sum(slice.hosts for slice in self.slices)

    def set_aside(self, place: Place, why: str, run: "JobRun", check: bool = True) -> None:
        """Give a host no more jobs until tpu-check-host succeeds there."""
        self.health.set_aside(place, why)
        if check:
            self._start_check(place, run)

    def _check_new(self, run: "JobRun", free: dict[Slice, list[int]]) -> None:
        for slice, ranks in free.items():
            for place in self.health.unchecked & {(slice.name, rank) for rank in ranks}:
                self._start_check(place, run)

    def _start_check(self, place: Place, run: "JobRun") -> None:
        wanted = place in self.health.aside or place in self.health.unchecked
        if run.settings.check_host and wanted and place not in self.checks:
            self.checks[place] = asyncio.ensure_future(self._check(place, run))
            self.checks[place].add_done_callback(lambda _: self.checks.pop(place, None))

    async def _check(self, place: Place, run: "JobRun") -> None:
        slice = next(slice for slice in self.slices if slice.name == place[0])
        check = run.check_of(place, next(self._numbers))
        if (await check.run()).ok and not slice.unhealthy():
            self.health.restore(place)
            await slice.note_checked(place[1])
        elif place in self.health.unchecked:
            if self.health.can_spare(place, self.hosts):
                self.health.set_aside(place, "it is new, and its check failed")
            else:
                self.health.unchecked.discard(place)
                self.say(
                    red(f"The check failed on w{place[1]} of {slice.name} as on most hosts: jobs run there")
                )
        slice.on_tick()
        if place in self.health.aside:
            asyncio.get_running_loop().call_later(CHECK_PAUSE, self._start_check, place, run)

    async def close(self) -> str:
        """Leave the slices as they are, close every connection, and return what exists and costs money."""
        for check in self.checks.values():
            check.cancel()
        left = await asyncio.gather(*(slice.close() for slice in self.slices))
        return "\n".join(line for line in (self.health.words(), *left) if line)
