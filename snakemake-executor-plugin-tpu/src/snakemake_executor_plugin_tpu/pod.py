"""The controller's side of the hosts: every call goes over ssh to the agent on a host."""

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import re
import shlex
import tarfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .driver import end
from .errors import PodError, TaskLost, TaskSilent, Unreachable
from .ssh import Connection, Ssh, unreachable

PACKAGE = Path(__file__).parent
BEAT_SECONDS = 10.0
# The place that every user of the host sees. Its owner, root, may create files in it for others (protected_regular).
SHARE = (
    "test -e /run/snakemake-tpu/shared/controller || { umask 022; "
    "make='D=/run/snakemake-tpu/shared; mkdir -p $D && chmod 1777 $D && touch $D/controller && "
    "chmod 666 $D/controller'; "
    'sh -c "$make" || sudo -n sh -c "$make"; } 2>/dev/null'
)
TAIL_LINES = 20
LONGEST_LINE = 8192
# An OSError of the agent; the output of its programs may quote others.
HOST_TROUBLE = re.compile(r"(\w+: )?\[Errno ")


def pack(files: dict[str, Path]) -> bytes:
    """Return an archive whose bytes depend only on names, contents and the executable bit."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(files.items()):
            data = path.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_000_000_000
            info.mode = 0o700 if path.stat().st_mode & 0o100 else 0o600
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), compresslevel=3, mtime=0)


def content_name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def agent_bundle() -> bytes:
    files = {f"worker/{path.name}": path for path in (PACKAGE / "worker").glob("*.py")}
    return pack({**files, "storage.py": PACKAGE / "storage.py"})


@dataclass
class Followed:
    """What is known about a task that is or was followed."""

    task: str
    host: str
    log: Path
    exit: dict[str, Any] = field(default_factory=dict[str, Any])
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    rest: bytes = b""


class Worker:
    def __init__(self, ssh: Ssh, host: str, address: str, *, folder: str, python: str = "python3"):
        self.ssh, self.host, self.address, self.folder, self.python = ssh, host, address, folder, python
        self._bundle = agent_bundle()
        self._pushed: set[str] = set()
        self._push_lock = asyncio.Lock()

    def _command(self, module: str, *arguments: str) -> str:
        bundle = shlex.quote(f"{self.folder}/bin/{content_name(self._bundle)}")
        words = [self.python, "-m", f"worker.{module}", *arguments]
        return f"cd {bundle} && exec {shlex.join(words)}"

    async def deploy(self, timeout: float = 60.0) -> None:
        """Install this version of the agent on the host, unless it is there."""
        self._pushed.clear()  # a re-imaged host has lost them
        name = content_name(self._bundle)
        script = (
            f"{SHARE}; umask 077; mkdir -p {shlex.quote(self.folder)}/bin {shlex.quote(self.folder)}/sources && "
            f"chmod 700 {shlex.quote(self.folder)} && cd {shlex.quote(self.folder)}/bin && "
            f"{{ test -d {name} || {{ rm -rf new-{name}-$$ && mkdir new-{name}-$$ && tar -xzf - -C new-{name}-$$ && "
            f"{{ mv -T new-{name}-$$ {name} 2>/dev/null || test -d {name}; }}; }}; }}"
        )
        await self.ssh.run(self.host, f"sh -c {shlex.quote(script)}", self._bundle, timeout)

    async def push_sources(self, archive: bytes) -> str:
        """Copy an archive to the host, once for each content; return its name."""
        name = content_name(archive)
        async with self._push_lock:
            if name not in self._pushed:
                path = f"{self.folder}/sources/{name}.tar.gz"
                script = (
                    f"umask 077; test -s {path} && touch {path} || {{ cat > {path}.$$ && "
                    f"test $(wc -c < {path}.$$) -eq {len(archive)} && mv {path}.$$ {path}; }}"
                )
                await self.ssh.run(self.host, f"sh -c {shlex.quote(script)}", archive, timeout=600)
                self._pushed.add(name)
        return name

    async def open(self, request: dict[str, Any], *words: str) -> Connection:
        """Start a module of the agent on the host and give it its request."""
        connection = await self.ssh.connect(self.host, self._command(*words))
        try:
            await connection.send(json.dumps(request).encode() + b"\n")
        except BaseException:
            await connection.close()
            raise
        return connection

    async def call(self, command: str, timeout: float = 60.0, **request: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._ask("agent", command, request=request, timeout=timeout)
        return answer

    async def _ask(
        self,
        *words: str,
        request: dict[str, Any],
        timeout: float,
        say: Callable[[str], None] = lambda line: None,
    ) -> Any:
        connection = await self.open(request, *words)
        try:
            async with asyncio.timeout(timeout):
                async for frame, _ in connection.frames():
                    if "answer" in frame:
                        return frame["answer"]
                    if HOST_TROUBLE.match(frame.get("error", "")):
                        # A problem of the host, such as a full disk.
                        raise Unreachable(f"{self.host}: {frame['error']}")
                    if "error" in frame:
                        raise PodError(f"{self.host}: {frame['error']}")
                    if "say" in frame:
                        say(frame["say"])
        except TimeoutError:
            raise Unreachable(f"{self.host} has not answered for {timeout:.0f} s") from None
        finally:
            await connection.close()
        raise unreachable(self.host, await connection.reason())

    async def status(self, timeout: float = 15.0) -> dict[str, Any]:
        return await self.call("status", timeout)

    async def stop(
        self, tasks: list[str] | None, grace: float, lease: float | None = None, stacks: bool = False
    ) -> dict[str, Any]:
        return await self.call("stop", grace + 20, tasks=tasks, grace=grace, lease=lease, stacks=stacks)

    async def prepare_environment(self, name: str, lock: str, python: str, say: Callable[[str], None]) -> str:
        """Make the jobs' environment on the host unless it is there, and return its folder."""
        request = {"name": name, "lock": lock, "python": python}
        answer = await self._ask("environment", request=request, timeout=3600, say=say)
        return str(answer["folder"])

    async def follow(
        self,
        task: str,
        spec: dict[str, Any] | None,
        log: Path,
        *,
        patience: float,
        lease: float,
        is_gone: Callable[[], Awaitable[str | None]],
        on_frame: Callable[[dict[str, Any]], None] = lambda frame: None,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> Followed:
        """Start a task (given its spec) or find it, and follow it to its end.

        After a dropped connection the log continues at the byte where it broke. Raises TaskLost if the task or, by
        `is_gone`, the pod is gone, and TaskSilent if the host has been silent for longer than `patience` seconds.
        """
        followed = Followed(task, self.host, log)
        down_since = None
        with open(log, "ab", buffering=0) as file:
            offset = file.tell()
            while True:
                request = {"task": task, "spec": spec, "offset": offset, "lease": lease}
                connection = await self.open(request, "agent", "follow")
                beat = asyncio.ensure_future(self.beat(connection))
                try:
                    async for frame, payload in connection.frames():
                        down_since, spec = None, None
                        if payload:
                            offset += len(payload)
                            # A full disk costs this copy of the log but not the job.
                            with contextlib.suppress(OSError):
                                file.write(payload)
                            self._lines(followed, payload, on_line)
                        elif "exit" in frame:
                            followed.exit = frame["exit"]
                            return followed
                        else:
                            self._check(frame)
                            on_frame(frame)
                finally:
                    await end(beat)
                    await connection.close()
                reason = await connection.reason()
                if why := await is_gone():
                    raise TaskLost(why)
                unreachable(self.host, reason)  # raises if the host shows another key
                now = time.monotonic()
                down_since = now if down_since is None else down_since
                if now - down_since > patience:
                    raise TaskSilent(f"{self.host} has been out of reach for {patience:.0f} s ({reason})")
                await asyncio.sleep(min(0.1 + (now - down_since) / 4, 3.0))

    def _check(self, frame: dict[str, Any]) -> None:
        if frame.get("hello") in ("absent", "vanished") or frame.get("vanished"):
            raise TaskLost(f"{self.host} does not know the task: it was restarted or re-created")
        if "[Errno" in frame.get("error", ""):
            raise TaskLost(f"{self.host}: {frame['error']}")
        if "error" in frame:
            raise PodError(f"{self.host}: {frame['error']}")

    def _lines(self, followed: Followed, payload: bytes, on_line: Callable[[str], None]) -> None:
        *lines, rest = (followed.rest + payload).split(b"\n")
        # Of a progress bar, which overwrites its line, the last state is kept.
        followed.rest = rest if len(rest) < LONGEST_LINE else rest.rpartition(b"\r")[2][-LONGEST_LINE:]
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
            followed.tail.append(text)
            on_line(text)

    async def beat(self, connection: Connection, word: Callable[[], bytes] = bytes) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await connection.send(word() + b"\n")
