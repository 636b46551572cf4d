"""The pod's life: brought up, found again after a loss, re-created where that is allowed, deleted when idle."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .allocation import slice_of
from .claim import Claim
from .cloud import PodSpec, PodState, TpuCloud
from .errors import CloudError, HostKeyError, HostsSilentError, PodError, Unreachable
from .notify import Notifier
from .pod import Worker, content_name
from .settings import ExecutorSettings
from .ssh import Ssh, host_name, write_config

LEAST_DISK = 64 << 20


@dataclass
class Pod:
    """One incarnation of the pod: hosts that answered, and the tasks that were found on them."""

    number: int
    ssh: Ssh
    workers: list[Worker]
    python: str
    path: list[str] = field(default_factory=list)
    status: list[dict] = field(default_factory=list)

    def found(self) -> list[dict]:
        """Return every task that was on the hosts when they were looked at last."""
        return [
            {**about, "task": task, "host": rank}
            for rank, status in enumerate(self.status)
            for task, about in status["tasks"].items()
        ]


def cloud_of(settings: ExecutorSettings) -> TpuCloud | None:
    """Return the API's side of the pod, or None for hosts that are not managed here."""
    if settings.workers:
        return None
    settings.check_pod()
    public_key = Path(f"{settings.ssh_key}.pub").expanduser() if settings.ssh_key else None
    spec = PodSpec(
        accelerator_type=settings.accelerator_type,
        runtime_version=settings.runtime_version,
        provisioning=settings.provisioning,
        reservation=settings.reservation,
        network=settings.network,
        subnetwork=settings.subnetwork,
        internal_ips=settings.internal_ips,
        service_account=settings.service_account,
        labels=tuple(settings.parsed_labels().items()),
        ssh_user=settings.ssh_user,
        ssh_public_key=public_key if public_key and public_key.exists() else None,
    )
    return TpuCloud(settings.project, settings.zone, settings.name, spec, settings.api_endpoint)


class PodManager:
    """Keeps one usable pod for all jobs: many may find it lost at once, one recovery serves them all."""

    def __init__(
        self,
        settings: ExecutorSettings,
        folder: Path,
        say: Callable[[str], None],
        notifier: Notifier,
        claim: Claim | None = None,
    ):
        self.settings, self.folder, self.say, self.notifier = settings, folder, say, notifier
        self.claim = claim  # people may look at a pod that a controller drives
        self.cloud = cloud_of(settings)
        self.names = settings.workers.split()
        self.hosts = len(self.names) or slice_of(settings.accelerator_type).hosts
        self.on_up: Callable[[Pod], Awaitable[None]] | None = None
        self._pod: Pod | None = None
        self._work: asyncio.Task | None = None
        self._count = 0
        self._state: tuple[float, PodState] | None = None

    @property
    def current(self) -> Pod | None:
        """Return the pod if it is up."""
        return self._pod

    async def ready(self) -> Pod:
        """Return the pod, brought up first where needed."""
        while self._pod is None:
            if self._work is None:
                self._start(self._bring_up())
            await asyncio.shield(self._work)
        return self._pod

    async def recover(self, pod: Pod, why: str) -> None:
        """Get the pod back after a job found it lost; return at once where another job has seen to it."""
        if self._pod is pod:
            self._pod = None
            self._start(self._recover(pod, why))
        if self._work is not None:
            await asyncio.shield(self._work)

    def _start(self, work: Coroutine) -> None:
        async def run() -> None:
            try:
                pod = await work
                if self.on_up is not None:
                    await self.on_up(pod)
                self._pod = pod
            finally:
                self._work = None

        self._work = asyncio.ensure_future(run())

    async def close(self) -> None:
        """Leave the pod as it is and close every connection to it."""
        if self._work is not None:
            self._work.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._work
        if self.claim is not None:
            await self.claim.drop()
        if self._pod is not None:
            await self._pod.ssh.close()
        if self.cloud is not None:
            await self.cloud.close()

    async def why_gone(self) -> str | None:
        """Return why the hosts cannot be there, if the API says so; asked at most once a second."""
        if self.cloud is None:
            return None
        now = time.monotonic()
        if self._state is None or now - self._state[0] > 1.0:
            try:
                self._state = (now, await self.cloud.describe(attempts=4))
            except CloudError as error:
                self.say(f"TPU pod {self.cloud.name}: its state is unknown ({error})")
                return None
        state = self._state[1]
        return None if state.is_ready and not state.is_gone else f"the pod is gone: {state}"

    async def _bring_up(self) -> Pod:
        if self.cloud is None:
            return await self._meet(self.settings.boot_timeout)
        state = await self.cloud.describe()
        if state.is_ready and not state.is_gone:
            # Adopted: its hosts have booted long ago, and one that is silent now is lost.
            self._check_type(state)
            try:
                return await self._meet(self.settings.recovery)
            except HostsSilentError as error:
                if not self.settings.create:
                    raise
                if not await self.why_gone():
                    self.say(f"{error} Deleting the pod and creating it anew.")
                    await self.cloud.delete()
        self._check_type(await self.cloud.ensure(self.settings.create, self.say, self.settings.queue_timeout))
        return await self._meet(self.settings.boot_timeout)

    def _check_type(self, state: PodState) -> None:
        if state.accelerator_type not in ("", self.settings.accelerator_type):
            raise PodError(
                f"TPU pod {self.cloud.name} is a {state.accelerator_type}, and the profile says "
                f"{self.settings.accelerator_type}: set tpu-accelerator-type to what it is, or use another tpu-name."
            )

    async def _meet(self, patience: float) -> Pod:
        """Reach every host of a pod that is there, and make it fit for jobs."""
        self._state = None
        workers, ssh = await self._reach()
        self._count += 1
        pod = Pod(self._count, ssh, workers, self.settings.python)
        try:
            await self._until_up(pod, patience)
            if self.claim is not None:
                await self.claim.take(workers[0])
            await asyncio.gather(*(worker.call("prune", days=self.settings.prune_days) for worker in workers))
            await self._prepare_environment(pod)
        except BaseException:
            await ssh.close()
            raise
        self.say(f"TPU pod {self.cloud.name if self.cloud else ''} is up: {len(workers)} host(s) answer")
        return pod

    async def _reach(self) -> tuple[list[Worker], Ssh]:
        settings, include = self.settings, self.settings.ssh_config
        endpoints = await self.cloud.endpoints() if self.cloud else []
        names = [host_name(rank) for rank in range(len(endpoints))] or self.names
        config = write_config(
            self.folder / "ssh" / str(self._count + 1),
            endpoints,
            pod=self.cloud.name if self.cloud else "pod",
            user=settings.ssh_user,
            key=Path(settings.ssh_key).expanduser().resolve() if settings.ssh_key else None,
            port=settings.ssh_port,
            include=Path(include).expanduser() if include else None,
            # A host that is gone does not refuse a connection, it is silent.
            connect_timeout=max(1, min(10, settings.reconnect)),
        )
        ssh = Ssh(config, names)
        addresses = [end.internal for end in endpoints] or [await self._address(ssh, name) for name in names]
        pairs = zip(names, addresses, strict=True)
        make = {"folder": settings.folder, "python": settings.agent_python}
        return [Worker(ssh, name, address, **make) for name, address in pairs], ssh

    async def _address(self, ssh: Ssh, name: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *("ssh", "-F", str(ssh.config), "-G", name), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        match = re.search(r"^hostname (.*)$", output.decode(), re.MULTILINE)
        return match[1] if match else name

    async def _until_up(self, pod: Pod, timeout: float) -> None:
        """Bring the agent to every host and look at what runs there; raise where one does not answer in time."""
        deadline = time.monotonic() + timeout

        async def up(worker: Worker) -> dict:
            pause = 0.2
            while True:
                try:
                    await worker.deploy(timeout=30)
                    status = await worker.status()
                    if status["disk_free"] >= LEAST_DISK:
                        return status
                    await worker.call("prune", days=0, tasks_only=True)
                    error = f"{worker.host} has {status['disk_free'] >> 20} MB of disk left"
                except (Unreachable, PodError) as problem:
                    if isinstance(problem, HostKeyError):
                        raise
                    error = str(problem)
                if time.monotonic() > deadline or await self.why_gone():
                    raise Unreachable(error)
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 5.0)

        tasks = [asyncio.ensure_future(up(worker)) for worker in pod.workers]
        try:
            pod.status = await asyncio.gather(*tasks)
        except Unreachable as error:
            raise HostsSilentError(
                f"A host of the pod does not answer by ssh: {error}. "
                "Try `python -m snakemake_executor_plugin_tpu ssh`; tpu-ssh-user, tpu-ssh-key and the firewall "
                "decide who may."
            ) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _prepare_environment(self, pod: Pod) -> None:
        if not self.settings.requirements:
            return
        lock = Path(self.settings.requirements).expanduser().read_text()
        python = self.settings.environment_python
        name = content_name(f"{python}\n{lock}".encode())
        done = 0

        async def prepare(worker: Worker) -> str:
            nonlocal done
            first = worker is pod.workers[0]
            say = (
                (lambda line: self.say(f"environment on {worker.host}: {line}"))
                if first
                else (lambda line: None)
            )
            folder = await worker.prepare_environment(name, lock, python, say)
            done += 1
            self.say(f"environment {name}: ready on {done} of {len(pod.workers)} hosts")
            return folder

        folders = await asyncio.gather(*(prepare(worker) for worker in pod.workers))
        pod.python, pod.path = f"{folders[0]}/bin/python", [f"{folders[0]}/bin"]

    async def _recover(self, pod: Pod, why: str) -> Pod:
        self.say(f"TPU pod lost ({why}): looking for it")
        self._state = None
        gone = await self.why_gone()
        if not gone:
            try:
                await self._until_up(pod, self.settings.recovery)
                self._count += 1
                return Pod(self._count, pod.ssh, pod.workers, pod.python, pod.path, pod.status)
            except HostsSilentError as error:
                gone = await self.why_gone()
                if not gone and (self.cloud is None or not self.settings.create):
                    raise
                self.say(f"{error} Deleting the pod and creating it anew.")
        self.notifier.send("preemption", gone or why)
        if not gone:
            # Jobs on hosts that still answer get the time to checkpoint.
            stops = (worker.stop(None, self.settings.grace) for worker in pod.workers)
            await asyncio.gather(*stops, return_exceptions=True)
            await self.cloud.delete()
        await pod.ssh.close()
        return await self._bring_up()
