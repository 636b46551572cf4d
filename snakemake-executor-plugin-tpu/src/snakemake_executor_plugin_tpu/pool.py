"""The slices on which jobs run, each with its own lifecycle, claim and zone. A single pod is a pool of one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .allocation import Allocator
from .errors import PodError, Unreachable
from .health import Health
from .lifecycle import Pod, PodManager
from .records import JobRecord
from .settings import ExecutorSettings
from .watch import Watch

RETRY_SECONDS = 1.0


@dataclass(eq=False)
class Member:
    settings: ExecutorSettings
    manager: PodManager
    allocator: Allocator
    watch: Watch
    starting: asyncio.Task[Any] | None = None
    error: PodError | None = None

    @property
    def name(self) -> str:
        return self.settings.name or ""

    @property
    def hosts(self) -> int:
        return self.manager.hosts

    @property
    def is_up(self) -> bool:
        return self.manager.current is not None

    def has_room_for(self, hosts: int) -> bool:
        """Whether so many hosts answer, free or not."""
        pod = self.manager.current
        return pod is not None and (hosts == 1 or not pod.silent)

    async def ready(self, say: Callable[[str], None]) -> Pod:
        while True:
            try:
                return await self.manager.ready()
            except Unreachable as error:
                # A host went away during the start: the next attempt finds it gone.
                say(f"{error}; looking again")
                await asyncio.sleep(RETRY_SECONDS)


class Pool:
    """Gives hosts to jobs, first come first served, and starts as many slices as the jobs need."""

    def __init__(
        self, members: list[Member], say: Callable[[str], None], health: Health | None = None
    ) -> None:
        self.members, self.say = members, say
        self.health = health or Health(say)
        self.checks: set[asyncio.Future[None]] = set()
        self._queue: list[tuple[str, int, asyncio.Future[Member]]] = []
        self._looked: asyncio.Future[None] | None = None
        for member in members:
            member.allocator.on_release = self.serve

    async def place(self, job: str, hosts: int, record: JobRecord) -> Member:
        """Return the slice where a job runs or may still run, else one on which it now holds hosts.

        Raises PodError if there is no slice.
        """
        if self._looked is None:
            self._looked = asyncio.ensure_future(self._look())
        await asyncio.shield(self._looked)
        for member in self.members:
            found = pod.found() if (pod := member.manager.current) else []
            if member.allocator.held_by(job) or any(task.get("slot") == job for task in found):
                return member
            if record.hosts and record.slice == member.name:
                # It may still run there, so it is not launched elsewhere until that is known.
                if member.error is not None:
                    raise member.error
                if member.is_up or member.starting or len(self.members) == 1:
                    return member
        if all(member.error for member in self.members):
            # Another job has reported these errors: try again.
            for member in self.members:
                member.error = None
        future: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._queue.append((job, hosts, future))
        self.serve()
        try:
            return await future
        except asyncio.CancelledError:
            self._queue = [entry for entry in self._queue if entry[2] is not future]
            for member in self.members:
                member.allocator.release(job)
            raise

    def lost(self, member: Member, pod: Pod, why: str) -> None:
        """Start to recover a lost slice; its jobs go to the first slice that has room."""
        member.manager.lose(pod, why)
        self.health.forget(member.name)
        self._start(member)

    def restore(self, place: tuple[str, int]) -> None:
        """Give jobs again to a host that was set aside."""
        self.health.restore(place)
        self.serve()

    def serve(self) -> None:
        """Give free hosts to the waiting jobs and start slices for the others."""
        waiting, reserved = [], set()
        for job, hosts, future in self._queue:
            if future.done():
                continue
            up = [m for m in self.members if m.is_up]
            # First where it was found running: it must not wait for its own hosts.
            room = [(m, held) for m in up if (held := m.allocator.held_by(job))]
            up = [m for m in up if m not in reserved]
            room = room or [(m, free) for m in up if (free := self._room(m, job, hosts))]
            if room:
                member, free = room[0]
                member.allocator.take(job, free)
                future.set_result(member)
                continue
            if hosts > 1 and up:
                # Later jobs for one host would starve a job for a whole slice.
                reserved.add(max(up, key=lambda member: len(member.allocator.free)))
            waiting.append((job, hosts, future))
        self._queue = waiting
        self._start_for(waiting)

    def _room(self, member: Member, job: str, hosts: int) -> list[int]:
        """Return free hosts for a job, or none. A job for a whole slice takes hosts that were set aside as well."""
        free = member.allocator.free
        if hosts == 1:
            places = [(m.name, host) for m in self.members if m.is_up for host in range(m.hosts)]
            usable = self.health.usable(job, places)
            free = [host for host in free if (member.name, host) in usable]
        return free[:hosts] if len(free) >= hosts else []

    def _start_for(self, waiting: list[tuple[str, int, asyncio.Future[Member]]]) -> None:
        coming = {member: member.hosts for member in self.members if member.starting}
        for _, hosts, future in waiting:
            if member := next((m for m in self.members if coming.get(m, 0) >= hosts), None):
                coming[member] -= hosts
            elif member := next((m for m in self.members if not (m.is_up or m.starting or m.error)), None):
                self._start(member)
                coming[member] = member.hosts - hosts
            elif not any(m.starting or m.has_room_for(hosts) for m in self.members):
                silent = PodError(f"Hosts of the slice are silent: a job for all {hosts} of them cannot run.")
                future.set_exception(next((m.error for m in self.members if m.error), silent))

    def _start(self, member: Member) -> asyncio.Task[None]:
        if member.starting is None:
            member.starting = asyncio.ensure_future(self._bring_up(member))
        return member.starting

    async def _bring_up(self, member: Member) -> None:
        try:
            await member.ready(self.say)
        except PodError as error:
            member.error = error
            if len(self.members) > 1:
                self.say(f"{member.name} is left out: {error}")
        except Exception as error:
            member.error = PodError(f"The plugin failed on the pod: {type(error).__name__}: {error}")
        finally:
            member.starting = None
        self.serve()

    async def _look(self) -> None:
        """Connect to the slices that exist: jobs of an earlier call run on them."""
        if len(self.members) > 1:
            await asyncio.gather(*(self._look_at(member) for member in self.members))

    async def _look_at(self, member: Member) -> None:
        try:
            if not (await member.manager.cloud.describe()).is_ready:
                return
        except PodError as error:
            member.error = error
            return
        await asyncio.shield(self._start(member))

    async def close(self) -> str:
        """Leave the slices as they are, close every connection, and return what exists and costs money."""
        await asyncio.gather(*(member.watch.stop() for member in self.members))
        for member in self.members:
            if member.starting is not None:
                member.starting.cancel()
        left = await asyncio.gather(*(member.manager.close() for member in self.members))
        return "\n".join(line for line in (self.health.words(), *left) if line)
