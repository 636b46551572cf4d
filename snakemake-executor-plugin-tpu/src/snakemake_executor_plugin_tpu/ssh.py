"""OpenSSH connections to the hosts: a configuration for each incarnation of the pod, and asyncio processes."""

import asyncio
import atexit
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from .cloud import Endpoint
from .errors import DOWN, HostKeyError, LoginRefused, PodError, Unreachable
from .keys import run
from .worker.agent import MAGIC

CLOSE_SECONDS = 5.0
HELD: set[Path] = set()  # this process's folders for sockets
# The first value of an option counts: what could make a command interactive, local or another one comes first.
OPTIONS = """\
BatchMode=yes RemoteCommand=none RequestTTY=auto SessionType=default StdinNull=no ForkAfterAuthentication=no Tunnel=no
PermitLocalCommand=no AddKeysToAgent=no KnownHostsCommand=none VerifyHostKeyDNS=no UpdateHostKeys=no VisualHostKey=no
HostbasedAuthentication=no PubkeyAuthentication=yes PreferredAuthentications=publickey CanonicalizeHostname=no
CheckHostIP=no ExitOnForwardFailure=no ServerAliveInterval=5 ServerAliveCountMax=3 ControlMaster=auto ControlPersist=60
ForwardAgent=no ForwardX11=no LogLevel=ERROR"""
NEWER = "IgnoreUnknown SessionType,StdinNull,ForkAfterAuthentication,KnownHostsCommand"  # than some clients'


def quoted(path: Path | str) -> str:
    if '"' in str(path) or "\n" in str(path):
        raise PodError(f"ssh cannot use the path {str(path)!r}: it contains a quote.")
    return f'"{path}"'


def host_name(rank: int) -> str:
    return f"w{rank}"


def control_folder(place: str = "/tmp") -> Path:
    """Make a folder for the sockets of shared connections, whose paths must be short: TMPDIR's is not on macOS.

    Raises:
        PodError: there cannot be one.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="tpussh-", dir=place))
    except OSError as error:
        raise PodError(f"ssh needs {place} for its sockets, which cannot be used: {error}.") from None
    HELD.add(folder)
    atexit.register(release_folder, folder)
    return folder


def release_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    HELD.discard(folder)


async def try_ssh(folder: Path, include: Path | None = None) -> None:
    """Raise PodError if ssh cannot work here, before a pod costs money: no client, a bad configuration, no sockets."""
    config = write_config(folder, [Endpoint("127.0.0.1")], include=include)
    try:
        done = await asyncio.to_thread(run, "ssh", "-F", str(config), "-G", host_name(0))
    finally:
        release_folder(control_of(config))
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise PodError(
            f"ssh does not accept its configuration ({' '.join(lines[-2:])}): correct tpu-ssh-config."
        )


def control_of(config: Path) -> Path:
    (line,) = [line for line in config.read_text().splitlines() if line.strip().startswith("ControlPath ")]
    return Path(line.split(None, 1)[1]).parent


def write_config(
    folder: Path,
    endpoints: Sequence[Endpoint],
    *,
    pod: str = "pod",
    user: str | None = None,
    key: Path | None = None,
    port: int = 22,
    include: Path | None = None,
    connect_timeout: int = 10,
) -> Path:
    """Write ssh_config and known_hosts for this incarnation of the pod, and return the configuration's path.

    Only the host keys from the API are accepted. Each incarnation has its own: addresses come back with other keys.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    control = control_folder()
    known_hosts = folder / "known_hosts"
    options = [option.replace("=", " ") for option in OPTIONS.split()]
    options += [f"ConnectTimeout {connect_timeout}", f"ControlPath {control}/%C"]
    lines = [NEWER, "Host *", *(f"  {option}" for option in options)]
    known = []
    for rank, endpoint in enumerate(endpoints):
        alias = f"{pod}-{host_name(rank)}"
        known += [f"{alias} {host_key}" for host_key in endpoint.host_keys]
        lines += [
            f"Host {host_name(rank)}",
            f"  HostName {endpoint.address}",
            f"  Port {port}",
            f"  HostKeyAlias {alias}",
            f"  UserKnownHostsFile {quoted(known_hosts)}",
            "  GlobalKnownHostsFile /dev/null",
            "  StrictHostKeyChecking yes",
        ]
        lines += [f"  User {user}"] if user else []
        lines += [f"  IdentityFile {quoted(key)}", "  IdentitiesOnly yes"] if key else []
    if include:
        lines += ["Host *", f"  Include {quoted(include)}"]
    known_hosts.write_text("".join(f"{line}\n" for line in known))
    config = folder / "ssh_config"
    config.write_text("\n".join(lines) + "\n")
    return config


class Connection:
    """One ssh process and the frames of the agent."""

    def __init__(self, host: str, process: asyncio.subprocess.Process):
        self.host = host
        # Any: its pipes exist, and its transport has no public name.
        pipes: Any = process
        self.process = pipes
        self._errors: asyncio.Future[bytes] = asyncio.ensure_future(pipes.stderr.read())

    async def send(self, data: bytes) -> None:
        """Send bytes to the agent; if the connection is broken, its frames end."""
        with contextlib.suppress(ConnectionError, RuntimeError):
            self.process.stdin.write(data)
            await self.process.stdin.drain()

    async def frames(self) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
        """Yield frames until the connection ends; output of a login shell before them is skipped."""
        seen = b""
        try:
            while not seen.endswith(MAGIC):
                if not (byte := await self.process.stdout.readline()):
                    return
                seen = (seen + byte)[-4096:]
            while line := await self.process.stdout.readline():
                frame = json.loads(line)
                payload = await self.process.stdout.readexactly(frame["bytes"]) if "bytes" in frame else b""
                yield frame, payload
        except (asyncio.IncompleteReadError, ValueError, ConnectionError):
            return  # the connection broke within a frame

    async def reason(self) -> str:
        errors = (await self._errors).decode(errors="replace").strip()
        return (errors.splitlines() or [f"ssh ended with exit code {await self.process.wait()}"])[-1][:300]

    async def close(self) -> None:
        """End the process in any state."""
        if self.process.returncode is None:
            # Not `process.kill()`: of a process that has just ended it takes the exit code from asyncio, which warns.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.stdin.close()
        await asyncio.wait({self._errors}, timeout=CLOSE_SECONDS)
        # asyncio waits for the pipes as well, which child processes of ssh may keep open forever.
        for descriptor in (1, 2):
            self.process._transport.get_pipe_transport(descriptor).close()
        await self.process.wait()
        # The transport closes its pipes in callbacks, which have run by now.
        self.process._transport.close()


class Ssh:
    """Reaches the hosts of one incarnation of the pod."""

    def __init__(self, config: Path, hosts: Sequence[str]):
        self.config, self.hosts = config, list(hosts)
        self.closed = False

    async def connect(self, host: str, command: str) -> Connection:
        """Start a command on a host. Secrets go through its input, never into `command`."""
        if self.closed:
            raise Unreachable(f"{host} belongs to a pod that is gone")
        process = await asyncio.create_subprocess_exec(
            *("ssh", "-F", str(self.config), "-T", "-o", "ClearAllForwardings=yes", host, command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 24,
            start_new_session=True,  # Ctrl-C in the terminal must not reach ssh
        )
        return Connection(host, process)

    async def run(self, host: str, command: str, data: bytes = b"", timeout: float = 60.0) -> bytes:
        """Run a command to its end, give it data, and return its output."""
        connection = await self.connect(host, command)
        try:
            async with asyncio.timeout(timeout):
                await connection.send(data)
                connection.process.stdin.close()
                output: bytes = await connection.process.stdout.read()
                code = await connection.process.wait()
        except TimeoutError:
            raise Unreachable(f"{host} has not answered for {timeout:.0f} s") from None
        finally:
            await connection.close()
        if code:
            raise unreachable(host, await connection.reason())
        return output

    async def close(self) -> None:
        """End the shared connections and remove their sockets, once."""
        if self.closed:
            return
        self.closed = True
        for host in self.hosts:
            words, nothing = ("ssh", "-F", str(self.config), "-O", "exit", host), asyncio.subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(
                *words, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
            )
            await process.wait()
        release_folder(control_of(self.config))


def unreachable(host: str, reason: str) -> Unreachable:
    """Return the error for a failed ssh; raise HostKeyError for a wrong host key, as waiting would not help."""
    if "host key verification failed" in reason.lower() or "IDENTIFICATION HAS CHANGED" in reason:
        raise HostKeyError(
            f"{host} shows another host key than the TPU API has: the connection may be intercepted. If "
            f"the host was re-imaged, delete the pod by {DOWN} and create it again."
        )
    kind = LoginRefused if "Permission denied" in reason else Unreachable
    return kind(f"{host}: {reason}")
