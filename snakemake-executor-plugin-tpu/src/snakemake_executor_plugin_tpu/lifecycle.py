"""The pod's lifecycle: start it, find it after a loss, and create it again if the API says that it is lost."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .allocation import slice_of
from .capacity import Capacity
from .claim import Claim
from .cloud import KEY_PAUSES, Endpoint, PodState, TpuCloud
from .driver import end
from .errors import (
    COMMAND,
    DOWN,
    CloudError,
    DeletedByUser,
    HostKeyError,
    HostsSilentError,
    LoginRefused,
    NoHostKeys,
    Offline,
    PodError,
    Unreachable,
    red,
)
from .guarding import cost, prove_guard, remaining
from .pod import Worker, content_name
from .settings import ExecutorSettings
from .ssh import Ssh, host_name, try_ssh, write_config

LEAST_DISK = 64 << 20
CLOSE_SECONDS = 30.0  # in which Google has to answer at the end
BOOT_SECONDS = 900.0  # in which the hosts of a new pod have to answer
LOGIN_SECONDS = 30.0  # after which a refused key counts as the wrong one
NEW_LOGIN_SECONDS = 300.0  # the same on a pod of this call, whose hosts may still be creating the user
SPARE_PODS = 2  # that replace a new one with a host that does not come up


@dataclass
class Pod:
    """One incarnation of the pod: its hosts and the tasks found on them."""

    number: int
    ssh: Ssh
    workers: list[Worker]
    python: str
    path: list[str] = field(default_factory=list)
    status: list[dict[str, Any]] = field(default_factory=list)
    incarnation: str = ""
    created: bool = False
    """Whether this call has created it."""
    silent: set[int] = field(default_factory=set)
    """Hosts that do not answer although the API says that the pod is ready: their jobs may still run."""

    def answering(self) -> list[Worker]:
        return [worker for rank, worker in enumerate(self.workers) if rank not in self.silent]

    def found(self) -> list[dict[str, Any]]:
        """Return every task that was on the hosts at the last check."""
        return [
            {**about, "task": task, "host": rank}
            for rank, status in enumerate(self.status)
            for task, about in status["tasks"].items()
        ]


def environment_of(settings: ExecutorSettings) -> tuple[str, str, str]:
    """Return the name of the jobs' environment, its lock and its Python."""
    files = [Path(name).expanduser() for name in (settings.requirements or "").split()]
    try:
        lock = "\n".join(file.read_text() for file in files)
    except OSError as error:
        raise PodError(f"tpu-requirements: {error.filename} cannot be read ({error.strerror}).") from None
    python = settings.environment_python
    return content_name(f"{python}\n{lock}".encode()), lock, python


def hosts_of(task: dict[str, Any]) -> list[int]:
    return [task["host"]] if task["hosts"] == 1 else list(range(task["hosts"]))


class PodManager:
    """Keeps one usable pod for all jobs; one recovery serves all jobs that find the pod lost."""

    def __init__(
        self, settings: ExecutorSettings, folder: Path, say: Callable[[str], None], claim: Claim | None = None
    ) -> None:
        self.settings, self.folder, self.say = settings, folder, say
        self.claim = claim  # None: people may look at a pod that a controller drives,
        self.for_jobs = claim is not None  # and log in even if the environment cannot be built
        self.cloud = TpuCloud(settings, say)
        if claim is not None:
            self.cloud.patience = settings.lease or math.inf
        self.capacity = Capacity(self.cloud, say)
        self.hosts = slice_of(settings.accelerator_type).hosts
        self.on_up: Callable[[Pod], Awaitable[None]] | None = None
        self.current: Pod | None = None
        self._opened: list[Ssh] = []
        self._work: asyncio.Task[Any] | None = None
        self._ended: PodError | None = None
        self._count, self._entered, self._unknown = 0, False, ""
        self._state: tuple[float, PodState] | None = None
        self._endpoints: list[Endpoint] = []  # with which the hosts were reached last

    async def ready(self) -> Pod:
        while self.current is None:
            if self._ended is not None:
                raise self._ended
            await asyncio.shield(self._work or self._start(self._bring_up()))
        return self.current

    def lose(self, pod: Pod, why: str) -> None:
        """Start to recover the pod that a job found lost, unless another job has started it.

        A recovery that finds the same pod gives it a new number. Jobs that did not notice keep the old number; their
        reports count if the API says that the pod is gone.
        """
        current, state = self.current, self._state[1] if self._state else None
        gone = state is not None and (not state.is_ready or state.incarnation != pod.incarnation)
        if current is not None and (current is pod or (gone and current.incarnation == pod.incarnation)):
            self.current = None
            self._start(self._recover(current, why))

    async def recover(self, pod: Pod, why: str) -> None:
        self.lose(pod, why)
        if self._work is not None:
            await asyncio.shield(self._work)

    def _start(self, work: Coroutine[Any, Any, Pod]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                pod = await work
                if self.on_up is not None:
                    await self.on_up(pod)
                self.current = pod
            except DeletedByUser as error:
                self._ended = error
                raise
            finally:
                self._work = None

        self._work = asyncio.ensure_future(run())
        # Its errors reach those who wait for it; nobody may be left to.
        self._work.add_done_callback(lambda work: work.cancelled() or work.exception())
        return self._work

    async def close(self, report: bool = True) -> str:
        """Close every connection; the pod stays. Return what exists and costs money."""
        if self._work is not None:
            await end(self._work)
        self.cloud.patience = CLOSE_SECONDS
        try:
            await self.capacity.withdraw()
        except CloudError as error:
            self.say(red(f"TPU pod {self.cloud.name}: the request could not be withdrawn: {error}"))
        if self.claim is not None:
            await self.claim.drop()
        for ssh in self._opened:  # that of a pod whose recovery was cancelled as well
            await ssh.close()
        left = await remaining(self.settings, self.cloud, self._count > 0) if report else ""
        await self.cloud.close()
        return left

    async def unhealthy(self) -> str:
        """Return in words that the API calls the pod unhealthy, or an empty string."""
        await self.why_gone()
        health = self._state[1].health if self._state else ""
        return f"; the TPU API says {health}" if health.startswith("UNHEALTHY") else ""

    async def why_gone(self, pod: Pod | None = None) -> str | None:
        """Return why the pod (in this incarnation) is gone, if the API says so; cached for a second."""
        now = time.monotonic()
        if self._state is None or now - self._state[0] > 1.0:
            try:
                self._state = (now, await self.cloud.describe(attempts=1 if self.cloud.told else 4))
            except Offline:
                return None
            except CloudError as error:
                if str(error) != self._unknown:
                    self.say(f"TPU pod {self.cloud.name}: its state is unknown ({error})")
                self._unknown = str(error)
                return None
        state = self._state[1]
        if state.is_ready and pod is not None and state.incarnation != pod.incarnation:
            return "the pod was created again"
        reached = tuple(endpoint.address for endpoint in self._endpoints)
        if state.is_ready and reached not in ((), state.addresses):
            return "a host of the pod was replaced: it has another address"
        return None if state.is_ready else f"the pod is gone: {state}"

    async def _bring_up(self) -> Pod:
        state = await self.cloud.describe()
        if state.is_ready:
            # Its hosts booted long ago and need no time for that.
            self._check_type(state)
            return await self._connect(self.settings.recovery)
        return await self._obtain(existed=False)

    async def _obtain(self, existed: bool) -> Pod:
        if self.settings.end and self.settings.create and time.time() > self.settings.end_time():
            raise PodError(f"tpu-end ({self.settings.end}) has passed: nothing is created after it.")
        await try_ssh(self.folder / "ssh" / "try", self.settings.ssh_include)
        before, spare = self.cloud.incarnation, SPARE_PODS
        while True:
            state = await self.capacity.wait(existed)
            self._check_type(state)
            try:
                return await self._connect(BOOT_SECONDS, new=True)
            except NoHostKeys as error:
                if not (self._is_ours(state) and self.claim):
                    raise
                await self._delete(state)
                bill = cost(self.settings, "")
                raise CloudError(f"{error} So the new pod, which {bill}, was deleted again.") from None
            except HostsSilentError:
                # Nothing has run on a pod of this call. If no host answers, the cause is a firewall or this machine.
                new = self._is_ours(state) and state.incarnation != before
                if not (new and spare and self.claim and await self._some_answer()):
                    raise
            spare, existed = spare - 1, False
            self.say(
                red(
                    f"TPU pod {self.cloud.name}: a host did not come up, others did; it is deleted and made anew"
                )
            )
            await self._delete(state)

    async def _delete(self, state: PodState) -> None:
        """Delete this incarnation of the pod and no later one."""
        await self.cloud.delete(lambda now: now.incarnation == state.incarnation)

    def _is_ours(self, state: PodState) -> bool:
        """Whether this call has requested the pod."""
        return state.call == self.cloud.call

    async def _some_answer(self) -> bool:
        workers, ssh = await self._reach()
        try:
            found = await asyncio.gather(*(worker.deploy(30) for worker in workers), return_exceptions=True)
        finally:
            await ssh.close()
        return not all(isinstance(answer, BaseException) for answer in found)

    def _check_type(self, state: PodState) -> None:
        if state.accelerator_type not in ("", self.settings.accelerator_type):
            raise PodError(
                f"TPU pod {self.settings.name} is a {state.accelerator_type}, but the profile says "
                f"{self.settings.accelerator_type}: change tpu-accelerator-type, or use another tpu-name."
            )

    async def _connect(self, patience: float, new: bool = False) -> Pod:
        """Connect to the hosts of an existing pod, all of them if it is new, and prepare them for jobs."""
        self._state = None
        workers, ssh = await self._reach()
        self._count += 1
        pod = Pod(self._count, ssh, workers, self.settings.python, created=new)
        pod.incarnation = self.cloud.incarnation
        try:
            # The claim comes first: a pod that somebody else drives must not be touched.
            await self._until_up(workers[0], patience)
            if self.claim is not None:
                await self.claim.take(workers[0])
            await self._look(pod, patience, all_needed=new)
            if self.claim is not None:
                await self._prepare_environment(pod)
                if self.settings.is_guarded:
                    await prove_guard(self.settings, pod, self.say)
        except HostKeyError as error:
            await ssh.close()
            if not await self._is_replaced(error):
                raise
            return await self._connect(patience, new)
        except BaseException:
            await ssh.close()
            raise
        self._entered = True
        self.say(f"TPU pod {self.cloud.name} is up: {len(pod.answering())} host(s) answer")
        return pod

    async def _is_replaced(self, error: HostKeyError) -> bool:
        """Whether the API comes to give other addresses or keys: those of a replaced host may be late."""
        self.say(f"{error} Asking the API whether the host was replaced")
        for pause in KEY_PAUSES:
            if await self.cloud.endpoints() != self._endpoints:
                return True
            await asyncio.sleep(min(pause, self.cloud.poll_seconds[1]))
        return False

    async def _reach(self) -> tuple[list[Worker], Ssh]:
        settings, cloud = self.settings, self.cloud
        user, key = settings.login
        self._endpoints = endpoints = await cloud.endpoints()
        config = write_config(
            self.folder / "ssh" / str(self._count + 1),
            endpoints,
            pod=cloud.name,
            user=user,
            key=key,
            port=settings.ssh_port,
            include=settings.ssh_include,
            # A host that is gone is silent: it does not refuse connections.
            connect_timeout=max(1, min(10, settings.reconnect)),
        )
        ssh = Ssh(config, [host_name(rank) for rank in range(len(endpoints))])
        self._opened = [*(each for each in self._opened if not each.closed), ssh]
        pairs = zip(ssh.hosts, endpoints, strict=True)
        return [Worker(ssh, name, end.internal, folder=settings.folder) for name, end in pairs], ssh

    async def _look(self, pod: Pod, patience: float, all_needed: bool) -> None:
        """Note what runs on each host and which hosts are silent; raise if too few answer."""
        tasks = [asyncio.ensure_future(self._until_up(worker, patience)) for worker in pod.workers]
        try:
            found = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await end(*tasks)
        pod.silent, pod.status = set(), []
        for rank, status in enumerate(found):
            if not isinstance(status, BaseException):
                pod.status.append(status)
            # Without the first host there is no claim, and others could drive the pod as well.
            elif all_needed or not rank or not isinstance(status, HostsSilentError):
                raise status
            else:
                pod.status.append({"tasks": {}})
                pod.silent.add(rank)
        for rank in sorted(pod.silent):
            self.say(f"{found[rank]} Jobs continue without {pod.workers[rank].host}.")

    async def _until_up(self, worker: Worker, patience: float) -> dict[str, Any]:
        """Install the agent on a host and return the host's status.

        Raises HostsSilentError if the host has not answered in time; nothing is deleted then.
        """
        begin, pause = time.monotonic(), 0.2
        error: Exception
        while True:
            full = None
            try:
                await worker.deploy(timeout=30)
                status = await worker.status()
                if status["disk_free"] < LEAST_DISK:
                    await worker.call("prune")
                    status = await worker.status()
                if status["disk_free"] >= LEAST_DISK:
                    return status
                error = full = Unreachable(f"{worker.host} has {status['disk_free'] >> 20} MB of disk left")
            except HostKeyError:
                raise
            except (Unreachable, PodError) as problem:
                error = problem
            if why := await self.why_gone():
                raise Unreachable(why)
            # While the network is down here, silence says nothing about the host.
            cloud = self.cloud
            if cloud.silent_since and time.monotonic() - cloud.silent_since > cloud.patience:
                raise Offline(f"Neither Google nor the pod could be reached for {cloud.patience:.0f} s.")
            begin = time.monotonic() if cloud.silent_since else max(begin, cloud.back_at)
            waited = time.monotonic() - begin
            # A key that has let this call in before is right: the host is in trouble.
            ours = self._state is not None and self._is_ours(self._state[1])
            unknown = min(NEW_LOGIN_SECONDS if ours else LOGIN_SECONDS, patience)
            if isinstance(error, LoginRefused) and waited > (patience if self._entered else unknown):
                raise PodError(self._how_to_log_in(error))
            if waited > patience and full:
                raise PodError(
                    f"{error}, and the plugin has nothing left to delete there: look with `{COMMAND} ssh "
                    f"{worker.host.removeprefix('w')}`."
                )
            if waited > patience:
                health = self._state[1].health if self._state else ""
                # A ready host may be away: UNHEALTHY_MAINTENANCE, say.
                ready = f"READY and {health}" if health else "READY"
                raise HostsSilentError(
                    f"A host of the pod does not answer by ssh: {error}. The TPU API says that the pod is {ready}, so "
                    f"nothing was deleted. Try `{COMMAND} ssh`; the firewall must let port {self.settings.ssh_port} "
                    f"through. {DOWN} deletes the pod."
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 5.0)

    def _how_to_log_in(self, error: Exception) -> str:
        user, key = self.settings.login
        return (
            f"The pod does not let {user or 'you'} in with {key or 'your keys'} ({error}); nothing was deleted. Use "
            "the key with which the pod was created (tpu-ssh-user, tpu-ssh-key), or have its owner append yours on "
            f"each host: `{COMMAND} ssh RANK -- tee -a .ssh/authorized_keys < KEY.pub`."
        )

    async def _prepare_environment(self, pod: Pod) -> None:
        if not self.settings.requirements or not self.for_jobs:
            return
        name, lock, python = environment_of(self.settings)
        done = 0

        async def prepare(worker: Worker) -> str:
            nonlocal done

            def say(line: str) -> None:
                if worker is pod.workers[0]:
                    self.say(f"environment on {worker.host}: {line}")

            folder = await worker.prepare_environment(name, lock, python, say)
            done += 1
            self.say(f"environment {name}: ready on {done} of {len(pod.answering())} hosts")
            return folder

        folders = await asyncio.gather(*(prepare(worker) for worker in pod.answering()))
        pod.python, pod.path = f"{folders[0]}/bin/python", [f"{folders[0]}/bin"]

    async def _recover(self, pod: Pod, why: str) -> Pod:
        """Find the pod again, or replace it if the API says that it is lost."""
        self.say(f"TPU pod lost ({why}): looking for it")
        self._state = None
        gone = await self.why_gone(pod)
        if not gone:
            try:
                await self._look(pod, self.settings.recovery, all_needed=False)
            except (Unreachable, HostKeyError):
                gone = await self.why_gone()
            else:
                await self.why_gone()  # says that Google answers again
                self._count += 1
                return replace(pod, number=self._count)
        await pod.ssh.close()
        if not gone:
            return await self._bring_up()
        return await self._obtain(existed=True)
