"""The hosts of the emulated pod: an sshd in its own mount, pid, ipc, host name and network namespace each."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from .metadata import NAMES
from .network import PORT, Loopback, dying_with_us

CONFIG = """\
ListenAddress {address}
Port {port}
HostKey {key}
PidFile none
AuthorizedKeysFile {authorized}/%u .ssh/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
PrintLastLog no
LogLevel ERROR
{environment}
Subsystem sftp internal-sftp
"""


def sshd() -> str:
    """Return the path of the ssh server."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "/usr/sbin/sshd"


def make_key(path: Path) -> str:
    """Make an ssh key if it does not exist, and return type and value of its public half."""
    if not path.exists():
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "emulated", "-f", path], check=True
        )
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


class Host:
    """One host of the pod."""

    def __init__(
        self,
        folder: Path,
        network: Loopback,
        rank: int,
        hosts: int,
        disk_mb: int | None = None,
        environment: dict[str, str] | None = None,
    ):
        self.environment = environment or {}
        self.folder, self.rank, self.disk_mb = folder, rank, disk_mb
        self.network, self.hosts = network, hosts
        self.address = network.address(rank)
        self.process: subprocess.Popen[bytes] | None = None
        self.host_key = ""
        self.unknown: set[str] = set()  # names of Google that this host cannot resolve from its next boot on

    @property
    def home(self) -> Path:
        """Return the home folder of the host's user on this machine (empty if the host has its own disk)."""
        return self.folder / "home"

    def boot(self, keys: dict[str, list[str]] | None = None, startup: str | None = None) -> None:
        """Start the host, run its startup script, and wait until its ssh server listens.

        Args:
            keys: public keys by user for a new host with a new disk and new host keys; None: the host reboots.
            startup: the startup script of a new host.
        """
        self.kill()
        if keys is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._authorize(keys)
        self.home.mkdir(parents=True, exist_ok=True)
        self.host_key = make_key(self.folder / "host_key")
        known = [name for name in NAMES if self.network.separate and name not in self.unknown]
        servers = [f"{self.network.gateway} {name}" for name in known]
        if keys is not None:
            (self.folder / "startup-script").write_text(startup or "#!/bin/sh\n")
        (self.folder / "startup-script").chmod(0o700)
        names = [f"{self.network.address(k)} t1v-n-emulated-w-{k}" for k in range(self.hosts)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *servers, *names]) + "\n")
        config = self.folder / "sshd_config"
        config.write_text(
            CONFIG.format(
                address=self.address,
                port=PORT,
                key=self.folder / "host_key",
                authorized=self.folder / "keys",
                # On one line: sshd uses only the first SetEnv.
                environment=" ".join(
                    ["SetEnv", *(f"{key}={value}" for key, value in self.environment.items())]
                ),
            )
        )
        (self.folder / "up").unlink(missing_ok=True)
        disk = f"mount -t tmpfs -o size={self.disk_mb}m tmpfs {self.home};" if self.disk_mb else ""
        script = (
            f"set -e; hostname t1v-n-emulated-w-{self.rank}; cd {self.folder}; "
            # All of /etc: a file bound over /etc/passwd goes when this machine's is replaced, by useradd, say.
            "rm -rf etc; cp -a /etc etc; cp passwd hosts etc/; mount --bind etc /etc; cd /; "
            f"{disk} "
            # Terminals of its own: what is typed on this machine keeps no pod alive.
            "mount -t tmpfs tmpfs /run; mkdir /run/sshd; mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts; "
            # Like Google's runner, which waits for everyone who holds the script's output.
            f"{self.folder}/startup-script 2>&1 | cat > {self.folder}/startup.log; "
            f"touch {self.folder}/up; "
            f"exec {sshd()} -D -e -f {config}"
        )
        with open(self.folder / "sshd.log", "ab") as log:
            space = ["unshare", "--mount", "--uts", "--pid", "--ipc", "--fork", "--kill-child=KILL"]
            space += ["--mount-proc", "--propagation", "private", "sh", "-c", script]
            self.process = subprocess.Popen(
                [*dying_with_us(), *self.network.joined(self.rank, space)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait()

    def _authorize(self, keys: dict[str, list[str]]) -> None:
        """Create the users in the node's metadata, as the guest agent does; root cannot log in."""
        folder = self.folder / "keys"
        folder.mkdir(parents=True)
        users = [user for user in keys if user != "root"]
        for user in users:
            (folder / user).write_text("".join(f"{key}\n" for key in keys[user]))
        # Each user has root's id, since only root may be able to read the files of this Python.
        lines = [f"{user}:x:0:0:{user}:{self.home}:/bin/bash" for user in users]
        lines += Path("/etc/passwd").read_text().splitlines()
        (self.folder / "passwd").write_text("".join(f"{line}\n" for line in lines))

    def _wait(self) -> None:
        assert self.process
        deadline = time.monotonic() + 20
        # A connection attempt before the network is up would be retried after a second.
        while time.monotonic() < deadline and self.process.poll() is None:
            with (
                contextlib.suppress(OSError),
                (self.folder / "up").open(),
                socket.create_connection((self.address, PORT), 1) as connection,
            ):
                connection.recv(4)
                return
            time.sleep(0.02)
        raise RuntimeError(f"host {self.rank} did not boot: {(self.folder / 'sshd.log').read_text()[-500:]}")

    @property
    def is_up(self) -> bool:
        """Whether the host runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Kill the host with all its processes."""
        if self.process is not None:
            # The first process inside ends all others before its parent outside ends: the next boot must not find
            # the old host.
            for pid in self._children() or [self.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            self.process.kill()
            self.process.wait()
            self.process = None

    def _children(self) -> list[int]:
        """Return the first process inside the host, a child of its first process outside."""
        if self.process is None:
            return []
        try:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in children.split()]

    def processes(self) -> dict[int, str]:
        """Return the command lines of the processes inside the host, by their pid on this machine."""
        if not self.is_up:
            return {}
        children = self._children()
        space = os.readlink(f"/proc/{children[0]}/ns/pid") if children else ""
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{entry}/ns/pid") == space:
                        line = Path("/proc", entry, "cmdline").read_text(errors="replace")
                        found[int(entry)] = line.replace("\0", " ").strip()
        return found

    def jobs(self) -> dict[int, str]:
        """Return the processes inside the host except sshd's."""
        ours = ("sshd", "/usr/sbin/sshd")
        return {pid: line for pid, line in self.processes().items() if line and not line.startswith(ours)}

    def signal_jobs(self, number: int) -> None:
        """Signal every job's process, as at a shutdown."""
        for pid in self.jobs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def drop_connections(self) -> int:
        """Kill every ssh session; jobs keep running."""
        sessions = [
            pid
            for pid, line in self.processes().items()
            if line.startswith("sshd:") and "[listener]" not in line
        ]
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(sessions)

    def enter(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside the host."""
        return subprocess.run(
            ["nsenter", "-t", str(self._children()[0]), "-a", *command],
            capture_output=True,
            text=True,
            timeout=60,
        )

    def fill_disk(self, name: str = "filler") -> None:
        """Fill the host's own disk with a file below the home folder."""
        assert self.disk_mb, "only a host with its own disk can be filled"
        self.enter("sh", "-c", f"cat /dev/zero > {self.home}/{name} 2>/dev/null; true")
