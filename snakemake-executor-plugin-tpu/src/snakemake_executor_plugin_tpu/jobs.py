"""One job from its submission to its end, with as many launches as the pod makes necessary."""

import asyncio
import contextlib
import hashlib
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .allocation import Allocator, libtpu_variables, slice_of
from .errors import COMMAND, DOWN, HostKeyError, PodError, TaskLost, TaskSilent, Unreachable
from .health import EARLY_SECONDS, SUSPECTS, Place
from .launch import Launch, LaunchResult
from .lifecycle import LEAST_DISK, Pod, PodManager, hosts_of
from .outputs import Outputs
from .pod import TAIL_LINES, Worker, content_name
from .pool import Pool
from .records import JobRecord
from .settings import ExecutorSettings

TERMINATED = 143
CANCEL_SECONDS = 5.0
CANCELLED_LEASE = 120.0  # seconds for which a job that could not be stopped goes on
CHECK_SECONDS, CHECK_PAUSE = 600.0, 600.0  # for a check of a host that was set aside, and between two
# Reasons for the end of a launch that do not concern the pod.
NOT_THE_POD = ("lease", "runtime", "again", "stalled")


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
    outputs: Outputs | None = None


@dataclass
class Outcome:
    ok: bool
    message: str = ""
    logs: list[Path] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0
    stopped: bool = False

    @classmethod
    def of_error(cls, error: BaseException, logs: Sequence[Path] = ()) -> "Outcome":
        internal = f"Internal error of the plugin in this job: {type(error).__name__}: {error}"
        return cls(False, str(error) if isinstance(error, PodError) else internal, list(logs))


@dataclass(eq=False)
class JobRun:
    """Drives one job: finds or launches it, follows it, and launches it again after a loss of the pod."""

    request: JobRequest
    pool: Pool
    record: JobRecord
    logs: Path
    settings: ExecutorSettings
    say: Callable[[str], None]
    task: asyncio.Task[Any] | None = None
    launch: Launch | None = None
    launches: list[Launch] = field(default_factory=list)
    silence: str = ""
    chip_seconds: float = 0.0
    """Seconds of all launches, including lost ones, times their chips."""

    def __post_init__(self) -> None:
        self.member = self.pool.members[0]
        self.number = self.record.launch if self.record.hosts else 0
        """The last launch, 0 if its end is known."""

    @property
    def accelerator_type(self) -> str:
        return self.member.settings.accelerator_type

    async def run(self) -> Outcome:
        """Run the job to its end. Cancelling this coroutine does not stop the job on the pod: use `cancel`."""
        self.task = asyncio.current_task()
        try:
            while True:
                if ended := await self._end_in_bucket():
                    return ended
                self.member = await self.pool.place(self.request.slot, self.request.hosts, self.record)
                pod = await self.member.ready(self.say)
                self.pool.serve()
                try:
                    result = await self._timed(self._attempt(pod))
                    if result is None:
                        continue
                    lost = await self._why_lost(pod, result) if result.code else None
                    if not lost:
                        ended = await self._end_in_bucket() if result.code else None
                        self.record.finish()
                        return ended or self._outcome(result)
                    pod_lost = result.reason not in NOT_THE_POD
                    if lost == "stopped":
                        self.record.finish()
                        message = f"was stopped by `{COMMAND} stop`."
                        return Outcome(False, message, self._log_files(), stopped=True)
                except TaskSilent as error:
                    # It may still run: it is neither stopped nor launched elsewhere.
                    self.silence = str(error)
                    with contextlib.suppress(Unreachable):
                        await self.manager.recover(pod, self.silence)
                    continue
                except (TaskLost, Unreachable, HostKeyError) as error:
                    # Another key: a host was replaced, or the next pod has its address. The recovery finds out.
                    lost, pod_lost = str(error), True
                if ended := await self._end_in_bucket():
                    return ended
                if await self._abandon() and lost != "lease":
                    self._count(lost)
                if pod_lost:
                    self.pool.lost(self.member, pod, lost)
                self.allocator.release(self.request.slot)
        except Exception as error:
            # Other jobs get its hosts next, so nothing of it may be left there.
            await self._abandon()
            return await self._end_in_bucket() or Outcome.of_error(error, self._log_files())
        finally:
            self.allocator.release(self.request.slot)

    async def _end_in_bucket(self) -> Outcome | None:
        """Return the success of the last launch if the bucket proves it: its host may be gone, or in trouble.

        A failure recorded there is told; the job is launched again, as the pod may be to blame.
        """
        outputs, request = self.request.outputs, self.request
        if outputs is None or not self.number:
            return None
        try:
            found = await asyncio.to_thread(outputs.end_of, self.number, request.fingerprint)
        except Exception as error:  # whatever a client of Cloud Storage raises
            self.say(
                f"{request.label}: how launch {self.number} ended cannot be read from the bucket ({error})"
            )
            return None
        if found is None:
            return None
        launch, self.number = f"{request.label}: launch {self.number}", 0
        if found["code"]:
            lines = "".join(f"\n        {line}" for line in found["tail"].splitlines()[-TAIL_LINES:])
            self.say(f"{launch} ended by {found['reason']} with code {found['code']}:{lines}")
            return None
        self.say(f"{launch} has stored its outputs: they count, whatever became of its host")
        self.record.finish()
        return Outcome(True, started=found.get("started", 0.0), ended=found.get("ended", 0.0))

    async def _timed(self, attempt: Awaitable[LaunchResult | None]) -> LaunchResult | None:
        """Await an attempt and add the time it used, by the launch's own record if there is one."""
        began, result = time.time(), None
        try:
            result = await attempt
        finally:
            seconds = result.ended - result.started if result and result.started else time.time() - began
            self.chip_seconds += seconds * self.request.hosts * slice_of(self.accelerator_type).chips_per_host
        return result

    def _count(self, lost: str) -> None:
        stalled = self.settings.relaunches_without_progress
        if message := self.record.count_loss(lost, preemptions=self.settings.preemptions, stalled=stalled):
            self.record.finish()
            raise PodError(message)
        self.say(f"{self.request.label}: {lost}; launching it again")

    @property
    def manager(self) -> PodManager:
        return self.member.manager

    @property
    def allocator(self) -> Allocator:
        return self.member.allocator

    async def cancel(self) -> None:
        """Stop the job's processes on every host."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=CANCEL_SECONDS)  # nothing new starts afterwards
        if self.launch is not None:
            await self.launch.stop(self.settings.grace, CANCELLED_LEASE)

    def leftovers(self) -> list[tuple[Worker, list[str]]]:
        return [item for launch in self.launches for item in launch.tasks.items()]

    async def _attempt(self, pod: Pod) -> LaunchResult | None:
        """Launch the job or find it, and follow it to its end; None if it needs hosts first."""
        request = self.request
        seen = [task["launch"] for task in pod.found() if task.get("slot") == request.slot]
        self._check_silent(pod)
        found = await self._find(pod)
        silence, self.silence = self.silence, ""
        if silence and not found:
            self._count(silence)
        if found:
            hosts, number = hosts_of(found), found["launch"]
            self.record.attach(number, self.member.name, hosts)
            if found.get("sources") not in (None, content_name(request.sources)):
                self.say(
                    f"{request.label}: goes on with the sources with which it was started; they have changed since. "
                    f"`{COMMAND} stop {request.slot}` ends it, and the next call starts it with the new ones."
                )
        else:
            self.record.hosts = []
            if not (hosts := self.allocator.held_by(request.slot)):
                return None
            if self.manager.claim is not None and self.manager.claim.lost:
                raise self.manager.claim.lost
            number = self.record.next_launch(max(seen, default=0), self.member.name, hosts)
        self.number = number
        workers = [pod.workers[host] for host in hosts]
        name = f"{request.slot}.l{number}"
        spec = await self._spec(pod, workers, name, number)
        self.launch = Launch(
            name=name,
            workers=workers,
            spec=spec,
            attached=found is not None,
            logs=self.logs / f"launch-{number}",
            settings=self.settings,
            is_gone=partial(self.manager.why_gone, pod),
            on_progress=self.record.report,
            on_line=self._show,
        )
        self.launches.append(self.launch)
        if len(hosts) > 1 and (aside := self.pool.health.words(self.member.name)):
            self.say(f"{request.label}: takes all hosts of {self.member.name}, although {aside}")
        result = await self.launch.run()
        await self._note_health(pod, hosts, result)
        return result

    async def _note_health(self, pod: Pod, hosts: list[int], result: LaunchResult) -> None:
        """Set the host aside if jobs of different names have failed early there, until it passes a check."""
        health, place = self.pool.health, (self.member.name, hosts[0])
        early = result.ended - result.started < EARLY_SECONDS and result.reason == "exited"
        every = sum(member.hosts for member in self.pool.members)
        if len(hosts) > 1 or (result.code and not early) or await self.manager.why_gone(pod):
            return
        if health.note(self.request.slot, place, bool(result.code), every):
            last = next((line for line in reversed(result.tail) if line.strip()), "")
            why = f"{SUSPECTS} jobs failed there within {EARLY_SECONDS:.0f} s and nowhere else ({last.strip()[:120]})"
            health.set_aside(place, f"{why}{await self.manager.unhealthy()}")
            worker = pod.workers[hosts[0]]
            with contextlib.suppress(Unreachable, PodError):
                await worker.call("aside", why=why)
            if self.settings.check_host and self.launch:
                check = self._check_host(pod, place, worker, self.launch.spec)
                self.pool.checks.add(asyncio.ensure_future(check))

    async def _check_host(self, pod: Pod, place: Place, worker: Worker, spec: dict[str, Any]) -> None:
        """Run tpu-check-host on a host that was set aside until it passes and the API calls the pod healthy."""
        about = {"slot": "check", "label": "check", "launch": 0, "hosts": 1, "role": "check"}
        spec = {**spec, "argv": ["/bin/bash", "-c", self.settings.check_host], "about": about}
        spec |= {"record": None, "stall": None, "runtime": CHECK_SECONDS}
        for number in itertools.count(1):
            name = f"check-{place[1]}.{time.time():.0f}.{number}"
            log, most = self.logs / f"{name}.log", CHECK_SECONDS
            try:
                gone = partial(self.manager.why_gone, pod)
                ended = await worker.follow(name, spec, log, patience=most, lease=most, is_gone=gone)
            except (TaskLost, PodError):
                return
            if not ended.exit["code"] and not await self.manager.unhealthy():
                with contextlib.suppress(Unreachable, PodError):
                    await worker.call("aside", why="")
                self.pool.restore(place)
                return
            await asyncio.sleep(CHECK_PAUSE)

    def _check_silent(self, pod: Pod) -> None:
        """Raise PodError if the job may still run on a silent host, or needs one."""
        hosts = sorted(pod.silent if self.request.hosts > 1 else pod.silent & set(self.record.hosts))
        if hosts:
            names = ", ".join(pod.workers[host].host for host in hosts)
            raise PodError(
                f"{names} has been silent for {self.settings.recovery} s, and the TPU API says that the pod is READY. "
                "The job may still run there, so it was not launched elsewhere and the pod was not deleted. Try "
                f"`{COMMAND} ssh {hosts[0]}`; {DOWN} deletes the pod, and the next call of Snakemake resumes the job "
                "from its checkpoint."
            )

    def _show(self, rank: int, line: str) -> None:
        self.say(f"[{self.request.label} {rank}] {line}")

    async def _find(self, pod: Pod) -> dict[str, Any] | None:
        """Return this job's task if it is on the pod, and remove outdated ones."""
        mine = [task for task in pod.found() if task.get("slot") == self.request.slot]
        mains = [task for task in mine if task["role"] == "main" and self._is_usable(task)]
        best = max(mains, key=lambda task: task["launch"], default=None)
        stale = [task for task in mine if best is None or task["launch"] != best["launch"]]
        for task in stale:
            worker = pod.workers[task["host"]]
            launch = f"{self.request.label}: launch {task['launch']}"
            if task["state"] == "running":
                self.say(f"{launch} on {worker.host} is outdated and is stopped")
                await worker.stop([task["task"]], self.settings.grace)
            if task["state"] == "exited" and task["role"] == "main":
                self.say(f"{launch} ended without a controller: {task['exit']}")
            await worker.call("remove", tasks=[task["task"]])
        if best:
            self.allocator.take(self.request.slot, hosts_of(best) if best["state"] == "running" else [])
            self.say(f"{self.request.label}: found on {pod.workers[best['host']].host}, re-attaching")
        for status in pod.status:
            names = [name for name, task in status["tasks"].items() if task.get("slot") == self.request.slot]
            for name in names:
                del status["tasks"][name]
        return best

    def _is_usable(self, task: dict[str, Any]) -> bool:
        if task["fingerprint"] != self.request.fingerprint:
            return False
        return bool(task["state"] == "running" or (task["state"] == "exited" and task["exit"]["code"] == 0))

    async def _spec(self, pod: Pod, workers: list[Any], name: str, number: int) -> dict[str, Any]:
        request, settings = self.request, self.settings
        archives = await asyncio.gather(*(worker.push_sources(request.sources) for worker in workers))
        # Below Linux's range for outgoing connections (32768 and up), which could occupy the port.
        port = 20000 + int(hashlib.sha256(name.encode()).hexdigest(), 16) % 12000
        environment = {
            "PYTHONUNBUFFERED": "1",
            **libtpu_variables(len(workers), slice_of(self.accelerator_type)),
            "TPURUN_SIZE": str(len(workers)),
            "TPURUN_ADDRESS": workers[0].address if len(workers) > 1 else "localhost",
            "TPURUN_PORT": str(port),
            "TPURUN_GRACE": str(settings.grace),
            "TPU_JOB": request.slot,
            "TPU_LAUNCH": str(number),
            "TPU_PYTHON": pod.python,
            "PYTHONFAULTHANDLER": "1",
            **request.environment,
        }
        about = {"slot": request.slot, "fingerprint": request.fingerprint, "label": request.label}
        about |= {"sources": archives[0], "pod": f"{self.member.name}-{pod.incarnation}"}
        limits = {"grace": settings.grace, "lease": settings.lease, "runtime": request.runtime}
        place = None
        if request.outputs:
            self.manager.capacity.last_words = request.outputs.last_words
            place = request.outputs.place(about["pod"], request.environment.get("STORAGE_EMULATOR_HOST"))
        return {
            "argv": ["/bin/bash", "-c", request.command],
            "environment": environment,
            "path": pod.path,
            "sources": archives[0],
            "record": place,
            "stall": {"seconds": request.stall, "reports": request.reports},
            "about": {**about, "launch": number, "hosts": len(workers), "role": "main"},
            **limits,
        }

    async def _why_lost(self, pod: Pod, result: LaunchResult) -> str | None:
        """Return why the launch was lost, or None if the job failed: after a loss other ranks fail before ssh does."""
        if result.reason in ("stopped", "lease"):
            return result.reason
        if result.reason == "runtime":
            return f"it was stopped after {self.request.runtime / 60:g} minutes (resources: runtime)"
        if result.reason == "stalled":
            return f"it made no progress for {self.request.stall / 60:g} minutes (its stacks are in its logs)"
        if result.reason == "again":
            return "it stopped before its end and asked to be launched again"
        # A stopped job has some seconds left before its host goes, on which nothing must start.
        stopped = result.reason == "shutdown" or TERMINATED in result.codes
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.settings.preemption_notice if stopped else 0)
        while True:
            if why := await self.manager.why_gone() or await self._what_is_wrong(pod):
                return why
            if loop.time() >= deadline:
                return "its host was shut down" if result.reason == "shutdown" else None
            await asyncio.sleep(1.0)

    async def _what_is_wrong(self, pod: Pod) -> str | None:
        if (launch := self.launch) is None:
            return None
        asked = (worker.status() for worker in launch.workers)
        statuses = await asyncio.gather(*asked, return_exceptions=True)
        for worker, status in zip(launch.workers, statuses, strict=True):
            if isinstance(status, BaseException):
                return str(status)
            if status["disk_free"] < LEAST_DISK:
                return f"{worker.host} has no space left on its disk"
            states = {task["state"] for name, task in status["tasks"].items() if name in launch.names}
            if "vanished" in states:
                return f"{worker.host} was restarted"
        return None

    async def _abandon(self) -> bool:
        """Stop what is left of a lost launch on hosts that answer; return whether there was a launch."""
        launch = self.launch
        if launch is not None and not await self.manager.why_gone():
            with contextlib.suppress(TaskLost, Unreachable, PodError):
                await launch.stop(self.settings.grace, CANCELLED_LEASE)
        self.launch = None  # only now: a Ctrl-C in between has to stop it
        return launch is not None

    def _outcome(self, result: LaunchResult) -> Outcome:
        if result.code == 0:
            return Outcome(True, started=result.started, ended=result.ended)
        lines = "".join(f"\n        {line}" for line in result.tail if line.strip())
        host = result.host if len(self.pool.members) == 1 else f"{result.host} of {self.member.name}"
        where = f"rank {result.rank} on {host}" if self.request.hosts > 1 else host
        message = f"{where} ended with exit code {result.code} ({result.reason})."
        if self.request.hosts > 1 and (aside := self.pool.health.words(self.member.name)):
            message += f" {aside}."
        message += f" Its last lines:{lines}\n" if lines else ""
        return Outcome(False, message, self._log_files(), result.started, result.ended)

    def _log_files(self) -> list[Path]:
        folders = sorted(self.logs.glob("launch-*"), key=lambda path: path.stat().st_mtime)
        return [path for path in sorted(folders[-1].glob("*.log")) if path.stat().st_size] if folders else []
