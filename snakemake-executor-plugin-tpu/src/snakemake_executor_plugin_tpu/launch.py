"""One launch of a job on its hosts: Snakemake on the first one, and the ranks that `tpurun` requests on the others."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .driver import end
from .errors import TaskLost, Unreachable
from .pod import Followed, Worker
from .settings import ExecutorSettings
from .worker.tpurun import rank_variables


@dataclass
class LaunchResult:
    """How a launch ended: its exit code, and the host and last lines of the rank that failed first."""

    code: int
    reason: str
    rank: int
    host: str
    tail: list[str]
    codes: set[int] = field(default_factory=set)
    started: float = 0.0
    ended: float = 0.0


@dataclass(eq=False)
class Launch:
    """Runs one launch. If `run` raises, the launch still has to be stopped by `stop`."""

    name: str
    workers: list[Worker]
    spec: dict[str, Any]
    attached: bool
    logs: Path
    settings: ExecutorSettings
    is_gone: Callable[[], Awaitable[str | None]]
    on_progress: Callable[[str | None], None]
    on_line: Callable[[int, str], None]
    fans: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    rank0: dict[str, asyncio.Future[int]] = field(default_factory=dict)
    failed: Followed | None = None
    failed_rank: int = 0
    codes: set[int] = field(default_factory=set)
    stacks: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self.tasks: dict[Worker, list[str]] = {self.workers[0]: [self.name]}

    @property
    def names(self) -> set[str]:
        return {name for names in self.tasks.values() for name in names}

    async def run(self) -> LaunchResult:
        """Follow the launch to its end; TaskLost if a part of the pod is gone."""
        self.logs.mkdir(parents=True, exist_ok=True)
        lost = asyncio.get_running_loop().create_future()
        spec = None if self.attached else self.spec
        following = self._follow(0, self.name, spec, lambda frame: self._on_frame(frame, lost))
        main = asyncio.ensure_future(following)
        try:
            await asyncio.wait({main, lost}, return_when="FIRST_COMPLETED")
            if not main.done():
                raise lost.result()
            followed = main.result()
            if self.stacks:
                await self.stacks
            await self._end_fans()
        finally:
            await end(lost, main, *self.fans.values())
        code = followed.exit["code"]
        failed = self.failed if self.failed is not None and code else followed
        return LaunchResult(
            code=failed.exit["code"] if code else 0,
            reason=followed.exit["reason"],
            rank=self.failed_rank if failed is not followed else 0,
            host=failed.host,
            tail=list(failed.tail),
            codes=self.codes | {code},
            started=followed.exit.get("started", 0.0),
            ended=followed.exit.get("ended", 0.0),
        )

    async def stop(
        self, grace: float, lease: float | None = None, but: Worker | None = None, stacks: bool = False
    ) -> None:
        tasks = ((worker, names) for worker, names in self.tasks.items() if worker is not but)
        stops = (one.stop(names, grace, lease, stacks) for one, names in tasks)
        await asyncio.gather(*stops, return_exceptions=True)

    async def _follow(
        self, rank: int, task: str, spec: dict[str, Any] | None, on_frame: Callable[[dict[str, Any]], None]
    ) -> Followed:
        def frame(received: dict[str, Any]) -> None:
            self.on_progress(received.get("progress"))
            on_frame(received)

        return await self.workers[rank].follow(
            task,
            spec,
            self.logs / f"rank{rank}.log",
            patience=self.settings.reconnect,
            lease=self.settings.lease,
            is_gone=self.is_gone,
            on_frame=frame,
            on_line=lambda line: self.on_line(rank, line),
        )

    def _on_frame(self, frame: dict[str, Any], lost: asyncio.Future[Exception]) -> None:
        if name := frame.get("request"):
            if name not in self.fans:
                self.rank0[name] = asyncio.get_running_loop().create_future()
                self.fans[name] = asyncio.ensure_future(self._fan(frame))
                self.fans[name].add_done_callback(lambda fan: self._on_fan_end(fan, lost))
        elif "stalled" in frame:
            others = self.stop(self.settings.grace, but=self.workers[0], stacks=True)
            self.stacks = asyncio.ensure_future(others)
        elif name := frame.get("rank0"):
            self.codes.add(frame["code"])
            # A later controller has not seen the request, which is deleted when the job ends.
            if (rank0 := self.rank0.get(name)) is not None and not rank0.done():
                rank0.set_result(frame["code"])

    def _on_fan_end(self, fan: asyncio.Task[None], lost: asyncio.Future[Exception]) -> None:
        # The main task would wait forever for a lost rank.
        if not fan.cancelled() and (error := fan.exception()) and not lost.done():
            lost.set_result(error if isinstance(error, Exception) else TaskLost(str(error)))

    async def _fan(self, request: dict[str, Any]) -> None:
        """Run one `tpurun` request on the other hosts and answer how the ranks ended."""
        silent = set(range(1, len(self.workers)))
        everyone = asyncio.Event()

        def hello(rank: int, frame: dict[str, Any]) -> None:
            silent.discard(rank if "hello" in frame else None)
            if not silent:
                everyone.set()

        followers: dict[asyncio.Task[Followed], tuple[int, str]] = {}
        for rank in sorted(silent):
            task = f"{self.name}.{request['request']}.r{rank}"
            self.tasks.setdefault(self.workers[rank], []).append(task)
            spec = None if request["started"] else self._rank_spec(rank, request)
            follow = self._follow(rank, task, spec, partial(hello, rank))
            followers[asyncio.ensure_future(follow)] = (rank, task)
        announcing = asyncio.ensure_future(self._announce(request, everyone))
        try:
            code, failing = await self._first_failure(followers, self.rank0[request["request"]])
            if code:
                grace = self.settings.grace
                stops = (self.workers[rank].stop([task], grace) for rank, task in followers.values())
                await asyncio.gather(*stops, return_exceptions=True)
            if failing is not None:
                await self._reply(request["request"], "result", {"code": code, "rank": failing})
        finally:
            await end(*followers, announcing)

    async def _announce(self, request: dict[str, Any], everyone: asyncio.Event) -> None:
        # A later controller has to find these ranks instead of starting them again.
        await everyone.wait()
        if not request["started"]:
            await self._reply(request["request"], "started", True)

    async def _first_failure(
        self, followers: dict[asyncio.Task[Followed], tuple[int, str]], rank0: asyncio.Future[int]
    ) -> tuple[int, int | None]:
        """Return the code and rank of the first failure: (0, 0) for none, and no rank if rank 0 failed."""
        waiting = set(followers)
        while waiting:
            pending: list[asyncio.Future[Any]] = [*waiting, rank0]
            await asyncio.wait(pending, return_when="FIRST_COMPLETED")
            for follower in [follower for follower in waiting if follower.done()]:
                waiting.discard(follower)
                followed, rank = follower.result(), followers[follower][0]
                if code := followed.exit["code"]:
                    self.codes.add(code)
                    if self.failed is None:
                        self.failed, self.failed_rank = followed, rank
                    return code, rank
            if rank0.done():
                if rank0.result():
                    return rank0.result(), None
                rank0 = asyncio.get_running_loop().create_future()
        return 0, 0

    async def _end_fans(self) -> None:
        """Stop the other ranks after rank 0 and Snakemake have ended."""
        if self.fans:
            await asyncio.wait(self.fans.values(), timeout=2.0)
        if not all(fan.done() for fan in self.fans.values()):
            await self.stop(self.settings.grace, but=self.workers[0])

    async def _reply(self, request: str, kind: str, value: Any) -> None:
        while True:
            try:
                await self.workers[0].call("reply", task=self.name, request=request, kind=kind, value=value)
                return
            except Unreachable as error:
                # The follower of the main task decides whether the host is lost.
                if why := await self.is_gone():
                    raise TaskLost(why) from error
                await asyncio.sleep(1.0)

    def _rank_spec(self, rank: int, request: dict[str, Any]) -> dict[str, Any]:
        environment = self.spec["environment"]
        address, port = environment["TPURUN_ADDRESS"], environment["TPURUN_PORT"]
        variables = rank_variables(rank, len(self.workers), address, port)
        return {
            **self.spec,
            **{"record": None, "stall": None},
            "argv": request["argv"],
            "directory": request["directory"],
            "environment": {**environment, **request["environment"], **variables},
            "about": {**self.spec["about"], "role": "rank", "rank": rank},
        }
