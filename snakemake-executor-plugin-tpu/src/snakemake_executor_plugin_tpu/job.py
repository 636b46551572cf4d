"""One job from its submission to its end, with as many launches as the slices make necessary."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from snakemake_interface_common.exceptions import WorkflowError

from .allocation import libtpu_variables, slice_of
from .control import Control, Taken
from .errors import COMMAND, red
from .health import EARLY_SECONDS, SUSPECTS, Place
from .logs import LaunchLog, log_files, plain, reason_of
from .pool import Pool
from .records import JobRecord
from .settings import ExecutorSettings
from .slice import ASK_SECONDS, PAUSES, TROUBLE_SECONDS, Slice
from .worker.bucket import Cell, Document, Forged, Refused, seal

MEASURED = 3  # reports of progress in a launch that make a speed; the first comes after start and compilation
TERMINATED = (137, 143)
CHECK_SECONDS = 600.0
NOTICE_SECONDS = 30.0  # in which the API tells of a preemption that has ended a process already
ENDING_SECONDS = 15.0  # in which the hosts of an ended launch get free and send their last lines
# Ends of a launch that are none of the job's.
LOST = {
    "restarted": "its host was restarted, or what watched it there was killed",
    "lost": "it was lost",
    "shutdown": "its host was shut down",
    "disk full": "its host has no space left on its disk",
    "fence": "its host did not reach the bucket",
    "lease": "nobody attended it for longer than its lease",
    "again": "it asked to be launched again",
    "stalled": "it made no progress for {stall:g} minutes (its stacks are in its logs)",
    "runtime": "it was stopped after {runtime:g} minutes (resources: runtime)",
    "outdated": "it is outdated",
    "moved": "it has a new checkpoint and goes to another host",
}
PROVED = {"lost", "restarted", "shutdown", "fence"}
"""Ends that prove nothing against a job whose first checkpoint was not due yet."""


@dataclass(frozen=True)
class JobRequest:
    """What to run. `slot` names the outputs of the job, `fingerprint` how it makes them."""

    slot: str
    fingerprint: str
    label: str
    hosts: int
    command: str
    environment: dict[str, str]
    sources: bytes
    runtime: float = 0.0
    """Seconds after which a launch is stopped, 0: no limit (Snakemake's resource `runtime`, which is in minutes)."""
    stall: float = 0.0
    """Seconds without new progress after which a launch is stopped, 0: no limit."""
    reports: bool = False
    """Whether the job reports progress, so that it stalls before its first report as well."""
    place: Place | None = None
    """Slice and host of a check."""
    like: str = ""
    """Jobs of one host with the same text, the rule's resource `tpu_like`, should be equally fast."""
    outdated: Callable[[float, bool], str] = lambda launched, ended: ""
    """Return why a launch of an earlier call is not what this call asks for, "" if it is: by when it was launched, in
    seconds since the epoch, and whether it has ended well. May ask storage, and block."""


@dataclass
class Outcome:
    ok: bool
    message: str = ""
    logs: list[Path] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0
    stopped: bool = False
    """Whether a person has stopped it by `stop`."""

    @classmethod
    def of_error(cls, error: BaseException, logs: Sequence[Path] = ()) -> "Outcome":
        internal = f"Internal error of the plugin in this job: {type(error).__name__}: {error}"
        known = isinstance(error, (WorkflowError, Refused, Forged, OSError))
        return cls(False, str(error) if known else internal, list(logs))


@dataclass(eq=False)
class JobRun:
    """Drives one job: finds or launches it, follows it, and launches it again after a loss."""

    request: JobRequest
    pool: Pool
    logs: Path
    settings: ExecutorSettings
    say: Callable[[str], None]
    record: JobRecord = field(default_factory=JobRecord)
    chip_seconds: float = 0.0
    """Seconds of all launches, including lost ones, times their chips."""
    launches: int = 0

    def __post_init__(self) -> None:
        self.slice: Slice | None = None
        self.control: Control | None = None
        self.cancelled = False
        self._cells: dict[str, Cell] = {}
        self._records: dict[str, JobRecord] = {}
        self._launched: dict[str, float] = {}
        """By slice: the job's record, and when it was last written, in seconds since the epoch."""
        self._hosts: list[int] = []
        self._lasted = 0.0
        self._moved, self._steps = False, list[tuple[float, float]]()
        """Whether it has left a slow host, and when it reported which progress in this launch."""

    @property
    def slot(self) -> str:
        return self.request.slot

    @property
    def accelerator_type(self) -> str:
        return (self.slice.settings if self.slice else self.settings).accelerator_type

    def check_of(self, place: Place, number: int) -> "JobRun":
        """Return the job that checks a host, with the sources and variables of this one."""
        slot, request = f"check-{place[0]}-{place[1]}", self.request
        task = (f"check {number}", f"check of w{place[1]}", 1, self.settings.check_host)
        check = JobRequest(slot, *task, request.environment, request.sources, CHECK_SECONDS, place=place)
        once = replace(self.settings, relaunches_without_progress=0)
        return JobRun(check, self.pool, self.logs.parent / slot, once, self.say)

    async def run(self) -> Outcome:
        """Run the job to its end. Cancelling this coroutine does not stop the job on the pod: use `cancel`."""
        try:
            while True:
                slice, hosts = await self.pool.place(self)
                if (control := slice.control) is None:
                    self.pool.release(self)
                    continue
                self.slice, self.control = slice, control
                if hosts:
                    verdict = await self._launch(slice, control, hosts)
                    self.pool.release(self)
                    ended = await self._judge(slice, verdict)
                else:
                    ended = await self._go_on(slice, control)
                if ended:
                    return ended
        except Exception as error:
            return Outcome.of_error(error, log_files(self.logs))
        finally:
            self.pool.release(self)

    # ---- its record

    async def is_in(self, slice: Slice) -> bool:
        """Return whether a launch of an earlier call is in this slice and nobody has been told of its end."""
        return slice.control is not None and (await self._load(slice.control)).state == "launched"

    async def _go_on(self, slice: Slice, control: Control) -> Outcome | None:
        """Go on with a launch of an earlier call; return its outcome, or None if another launch has to follow."""
        record = self.record
        launch = f"{self.request.label}: launch {record.launch} of an earlier call"
        verdict = await self._call(control.bucket.read, self._path("verdict"))
        began, ended = self._launched[control.bucket.url], bool(verdict and verdict["code"] == 0)
        outdated = "its command or its parameters have changed"
        if record.fingerprint == self.request.fingerprint:
            outdated = await asyncio.to_thread(self.request.outdated, began, ended)
        if verdict:
            self._log = self._new_log()
            await self._read_logs(control, last=True)
        if verdict and verdict["code"] == 0 and not outdated:
            self.say(f"{launch} has ended well")
            return self._success(verdict)
        if verdict:
            # A failure was told, or its call did not live to tell: it is launched again.
            why = outdated or f"{verdict['why']}, code {verdict['code']}"
            self.say(f"{launch} ended without a controller ({why})")
            record.state = "collected"
            return None
        if not control.is_assigned(record.hosts[0], self.slot, record.launch):
            self.say(f"{launch} never began, or its hosts are gone")
            await self._give_up(control, "no host has it")
            record.state = "collected"
            return None
        if not outdated:
            self.say(f"{launch} is found on w{record.hosts[0]} of {slice.name}")
        else:
            self.say(f"{launch} is outdated ({outdated}) and is stopped")
            await self._call(control.bucket.create, self._path("stop"), {"why": "outdated"})
        slice.take(self.slot, [rank for rank in record.hosts if rank not in slice.holder])
        verdict = await self._follow(slice, control)
        self.pool.release(self)
        return await self._judge(slice, {**verdict, "why": "outdated"} if outdated else verdict)

    async def _load(self, control: Control) -> JobRecord:
        """Read the record in this slice; what this call knows of earlier losses goes with the job."""
        name = control.bucket.url
        if name not in self._cells:
            cell = self._cells[name] = await self._call(control.record, self.slot)
            self._records[name] = JobRecord.of(cell.document)
            self._launched[name] = time.time() - cell.age
        found = self._records[name]  # each slice counts its own launches
        if self.record.losses:
            found.preemptions, found.stalled = self.record.preemptions, self.record.stalled
            found.progress, found.progress_at_loss = self.record.progress, self.record.progress_at_loss
            found.losses = self.record.losses
        self.record = found
        return found

    async def _save(self, control: Control) -> None:
        await self._call(control.write, self._cells[control.bucket.url], self.record.document())

    def _path(self, name: str, record: JobRecord | None = None) -> str:
        return f"jobs/{self.slot}/{(record or self.record).launch}/{name}"

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the bucket in a thread. A refusal is trouble of the bucket, for which the job waits."""
        began, pause = time.monotonic(), PAUSES[0]
        while True:
            try:
                return await asyncio.to_thread(function, *arguments)
            except Refused as error:
                if time.monotonic() - began > TROUBLE_SECONDS:
                    raise
                self.say(red(f"{self.request.label}: {error} It waits; next try in {pause:.0f} s"))
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSES[1])

    # ---- a launch

    async def _launch(self, slice: Slice, control: Control, hosts: list[int]) -> Document:
        """Launch the job on these hosts; return its verdict."""
        record = await self._load(control)
        record.launch, record.hosts, record.state = record.launch + 1, hosts, "launched"
        record.fingerprint = self.request.fingerprint
        await self._save(control)
        self.launches += 1
        if len(hosts) > 1 and (aside := self.pool.health.words(slice.name)):
            self.say(f"{self.request.label}: takes all hosts of {slice.name}, although {aside}")
        return await self._follow(slice, control)

    def _assignment(self, control: Control, sources: str) -> Document:
        request, settings, record = self.request, self.settings, self.record
        variables = libtpu_variables(len(record.hosts), slice_of(self.accelerator_type)) | request.environment
        return {
            **{"job": self.slot, "launch": record.launch, "hosts": record.hosts},
            **{"argv": ["/bin/bash", "-c", request.command], "sources": sources},
            **{"runtime": request.runtime, "stall": request.stall, "reports": request.reports},
            **{"grace": settings.grace, "lease": settings.lease},
            **seal(control.bucket.key, variables),
        }

    async def _hand_out(self, slice: Slice, control: Control) -> None:
        """Write those assignments of the launch that are not there, the first host's first: it begins the launch."""
        record = self.record
        missing = [rank for rank in record.hosts if not control.is_assigned(rank, self.slot, record.launch)]
        if not missing or await self._call(control.bucket.read, self._path("verdict")):
            return
        if any(slice.holder.get(rank) != self.slot for rank in missing):
            await self._stop("lost")  # its call died meanwhile, and another job has got the host
            return
        sources = await self._call(control.bucket.create_content, "sources", self.request.sources)
        try:
            for rank in missing:
                await self._call(control.assign, rank, self._assignment(control, sources))
        except Taken:
            if slice.control is control:
                raise  # else this call itself has brought the slice up again

    async def _follow(self, slice: Slice, control: Control) -> Document:
        """Return the verdict of the launch, once its hosts are free again. Gives it up if they are gone."""
        began, self._hosts = time.monotonic(), list(self.record.hosts)
        self._log, self._steps = self._new_log(), []
        await self._hand_out(slice, control)
        if self.cancelled:
            await self._stop("cancelled")
        me = [self.slot, self.record.launch]
        verdict: Document | None = None
        while verdict is None:
            first = control.beats.get(self.record.hosts[0])
            moved = first and first["job"] == me and self.record.report(first["progress"])
            if moved and self._should_move(slice):
                await self._stop("moved")
            ended = first and first["done"] == me
            if ended or not control.is_fresh(self.record.hosts[0]) or slice.control is not control:
                verdict = await self._call(control.bucket.read, self._path("verdict"))
            if verdict is None and (why := await self._why_lost(slice, control)):
                verdict = await self._give_up(control, why)
            elif verdict is None and slice.control and slice.control is not control:
                self.control = control = slice.control  # the same hosts, after trouble
                await self._hand_out(slice, control)
            await self._read_logs(control, last=False)
            if verdict is None and slice.control is control:
                await slice.ticked.wait()
            elif verdict is None:
                await asyncio.sleep(control.times["poll"])
        deadline = time.monotonic() + ENDING_SECONDS
        while slice.control is control and time.monotonic() < deadline:
            if not any(
                control.is_fresh(rank) and control.beats[rank]["job"] == me for rank in self.record.hosts
            ):
                break
            await slice.ticked.wait()
        await self._read_logs(control, last=True)
        self.record.report(verdict.get("progress"))
        known = verdict.get("started")
        self._lasted = verdict["ended"] - known if known else time.monotonic() - began
        self.chip_seconds += (
            self._lasted * len(self.record.hosts) * slice_of(self.accelerator_type).chips_per_host
        )
        return verdict

    async def _why_lost(self, slice: Slice, control: Control) -> str | None:
        """Return why nothing of the launch can run any more: its node is gone, or a host was silent for too long.

        Raises the error of a slice that this call drives no longer: its jobs go on for the next call.
        """
        if slice.control is not control:
            if why := await slice.why_gone(ASK_SECONDS):
                return why
            if slice.control and slice.control.setup["node"] != control.setup["node"]:
                return "the slice was lost"
            if slice.error:
                raise slice.error
            return None
        silent = [rank for rank in self.record.hosts if not control.may_run_on(rank)]
        return f"w{silent[0]} has been silent for longer than its job may run" if silent else None

    def _should_move(self, slice: Slice) -> bool:
        """Return whether the job leaves its host, now that it has a checkpoint: the host is slow, or is replaced."""
        like, place, slower = self.request.like, (slice.name, self._hosts[0]), ""
        with contextlib.suppress(ValueError):
            step = time.monotonic(), float(self.record.progress or "")
            self._steps = [*self._steps[1 - MEASURED :], step]
        if like and len(self._hosts) == 1 and len(self._steps) == MEASURED:
            (since, first), *_, (now, last) = self._steps
            speed = (last - first) / (now - since)
            slower = self.pool.health.note_speed(like, self.slot, place, speed, self.pool.hosts)
        if slower := slower * (not self._moved):  # if it is as slow elsewhere, it stays there
            self._moved = True
            self.pool.set_aside(place, f"{self.request.label} is {slower}", self, check=False)
        return bool(slower or slice.why_retire)

    async def _give_up(self, control: Control, why: str) -> Document:
        """Decide the launch, unless its host has done so before."""
        # Nothing may begin or go on after the verdict, on a host that wakes up either.
        await self._call(control.bucket.create, self._path("start"), {"host": None})
        await self._call(control.bucket.create, self._path("stop"), {"why": "lost"})
        verdict = {"code": None, "why": "lost", "about": why}
        return (await self._call(control.bucket.create, self._path("verdict"), verdict))[0]  # type: ignore[no-any-return]

    async def _stop(self, why: str) -> None:
        if self.control is not None and self.record.launch:
            await self._call(self.control.bucket.create, self._path("stop"), {"why": why})

    async def cancel(self) -> None:
        """Stop the job's processes on every host."""
        self.cancelled = True
        if self.record.state == "launched":
            await self._stop("cancelled")

    # ---- its end

    async def _judge(self, slice: Slice, verdict: Document) -> Outcome | None:
        """Return the outcome of the job, or None if it is launched again."""
        control = cast(Control, self.control)
        why, code = str(verdict["why"]), verdict["code"]
        if code == 0 and why == "exited":
            self._note_health(slice, False)
            return self._success(verdict)
        if why in ("stopped", "cancelled"):
            await self._finish(control)
            said = f"was stopped by `{COMMAND} stop`."
            return Outcome(False, said, log_files(self.logs), stopped=why == "stopped")
        if why == "exited":
            if not (lost := await self._why_blameless(slice, control, verdict)):
                await self._finish(control)
                if verdict.get("ended", 0.0) - verdict.get("started", 0.0) < EARLY_SECONDS:
                    self._note_health(slice, True, verdict.get("tail", []), verdict.get("rank"))
                return self._failure(slice, verdict)
            why, verdict = "lost", {**verdict, "about": lost}
        if why == "shutdown":
            verdict = {**verdict, "about": await self._await_notice(slice, control)}
        limits = {"stall": self.request.stall / 60, "runtime": self.request.runtime / 60}
        told = str(verdict.get("about") or LOST.get(why, why).format(**limits))
        if why in ("outdated", "lease"):
            self.record.state, self.record.hosts = "collected", []
            await self._save(control)
            self.say(f"{self.request.label}: {told}; launching it again")
            return None
        proves = why not in PROVED or (0 < self.request.stall < self._lasted)
        budgets = self.settings.preemptions, self.settings.relaunches_without_progress
        message = self.record.count_loss(told, *budgets, proves)
        if message:
            self.record.finish()
        await self._save(control)
        if message:
            return Outcome(False, message, log_files(self.logs))
        self.say(f"{self.request.label}: {told}; launching it again")
        return None

    async def _why_blameless(self, slice: Slice, control: Control, verdict: Document) -> str | None:
        """Return why a failed launch was lost: after a loss of the slice processes fail before the API tells."""
        terminated = verdict["code"] in TERMINATED
        deadline = time.monotonic() + (min(NOTICE_SECONDS, control.times["silence"]) if terminated else 0.0)
        while True:
            if why := await slice.why_gone() or slice.trouble:
                return why
            for rank in self.record.hosts:
                if control.is_fresh(rank) and control.beats[rank]["shutdown"]:
                    return f"w{rank} was shut down"
                if slice.control is control and not control.is_fresh(rank):
                    return f"w{rank} has been silent since"
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(control.times["poll"])

    async def _await_notice(self, slice: Slice, control: Control) -> str | None:
        """Wait whether the API tells that the slice is gone: of its hosts, not all tell of their shutdown."""
        deadline = time.monotonic() + min(NOTICE_SECONDS, control.times["silence"])
        while (
            not (why := await slice.why_gone()) and slice.control is control and time.monotonic() < deadline
        ):
            await asyncio.sleep(control.times["poll"])
        return why

    def _success(self, verdict: Document) -> Outcome:
        return Outcome(True, started=verdict.get("started", 0.0), ended=verdict.get("ended", 0.0))

    def _failure(self, slice: Slice, verdict: Document) -> Outcome:
        tail = map(plain, verdict.get("tail", []))
        lines = "".join(f"\n        {line}" for line in tail if line.strip())
        host = f"w{verdict['host']}" if len(self.pool.slices) == 1 else f"w{verdict['host']} of {slice.name}"
        where = f"rank {verdict.get('rank', 0)} on {host}" if self.request.hosts > 1 else host
        message = f"{where} ended with exit code {verdict['code']} ({verdict['why']})."
        if self.request.hosts > 1 and (aside := self.pool.health.words(slice.name)):
            message += f" {aside}."
        message += f" Its last lines:{lines}\n" if lines else ""
        times = verdict.get("started", 0.0), verdict.get("ended", 0.0)
        return Outcome(False, message, log_files(self.logs), *times)

    async def _finish(self, control: Control) -> None:
        self.record.finish()
        await self._save(control)

    async def collect(self) -> None:
        """Note that Snakemake knows of a success: until then a later call must find it, after that run it again."""
        if self.control is not None and self.record.state == "launched":
            await self._finish(self.control)

    def _note_health(
        self, slice: Slice, failed: bool, tail: Sequence[str] = (), rank: int | None = None
    ) -> None:
        """Set the host aside if jobs of different names have failed early there, until it passes a check."""
        place = (slice.name, self._hosts[0])
        if len(self._hosts) == 1 and self.pool.health.note(self.slot, place, failed, self.pool.hosts):
            why = f"{SUSPECTS} jobs failed there within {EARLY_SECONDS:.0f} s and nowhere else ({reason_of(tail)})"
            self.pool.set_aside(place, f"{why}{slice.unhealthy()}", self)
        if failed and len(self._hosts) > 1 and rank is not None:
            slice.note_rank(self.slot, self._hosts[rank])

    # ---- its logs

    def _new_log(self) -> LaunchLog:
        name = f"launch-{self.record.launch}"
        if self.slice and len(self.pool.slices) > 1:  # each slice counts its own launches
            name += f"-{self.slice.name}"
        return LaunchLog(self.logs / name, self.request.label, self.say)

    async def _read_logs(self, control: Control, last: bool) -> None:
        """Copy what is new of every rank's log to this machine, and show it."""
        me, log = [self.slot, self.record.launch], self._log
        for index, rank in enumerate(self.record.hosts):
            beat = control.beats.get(rank)
            known = math.inf if last else beat["chunks"] if beat and beat["job"] == me else 0
            while (number := log.chunks.get(index, 0)) < known:
                found = await self._call(control.bucket.get, self._path(f"log-{index}/{number + 1:06d}"))
                if found is None:
                    break
                log.add(index, found.data)
