"""The network of the emulated pod: a switch in its own namespace, with a cable to each host and to this machine.

Without CAP_NET_ADMIN or iproute2 the hosts share this machine's network and differ by loopback address. A network
disappears with the process that made it, however that ends.
"""

import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

PORT = 2222
# Reserved for network tests (RFC 2544): no host on the internet has such an address.
PREFIX = "198.18"


def dying_with_us() -> tuple[str, ...]:
    """Return a command prefix that ends the command together with this process."""
    return ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


def network_of(folder: Path) -> "Loopback":
    """Return a network for the pod in this folder, separate from others if the kernel allows it."""
    number = int(hashlib.sha256(str(folder).encode()).hexdigest(), 16)
    if shutil.which("ip") and shutil.which("nsenter"):
        for step in range(254):
            switched = Switched(1 + (number + step) % 254)
            if (made := switched.start()) is None:
                continue  # another pod uses this number
            if made:
                return switched
            break
    return Loopback(number)


class Loopback:
    """Loopback addresses of this machine."""

    separate = False

    def __init__(self, number: int):
        self.gateway = "127.0.0.1"
        for step in range(10000):
            place = (number + step) % 10000
            self.net = f"127.{100 + place // 100}.{100 + place % 100}"
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind((f"{self.net}.1", PORT))
                return
        raise RuntimeError("no loopback network is free for the emulated pod: stop other emulated pods")

    def address(self, rank: int) -> str:
        """Return the address of a host."""
        return f"{self.net}.{rank + 1}"

    def joined(self, rank: int, command: list[str]) -> list[str]:
        """Return a command that runs `command` in a host's network."""
        return command

    def cable(self, rank: int, up: bool) -> None:
        """Raise RuntimeError: these hosts have no cables."""
        raise RuntimeError("the hosts share this machine's network: there is no cable to pull")

    def stop(self) -> None:
        """Remove the network."""


class Switched(Loopback):
    """A network namespace for each host. Hosts reach each other and this machine, and nothing else."""

    separate = True

    def __init__(self, number: int):
        self.net, self.device = f"{PREFIX}.{number}", f"tpu-pod-{number}"
        self.gateway = f"{self.net}.254"
        self.process: subprocess.Popen[bytes] | None = None
        self.plugged: dict[int, int] = {}

    def start(self) -> bool | None:
        """Build the switch; None: its number is taken, False: the kernel does not allow it."""
        if Path("/sys/class/net", self.device).exists():
            return None
        # Without address learning: a re-created host has another port.
        script = "ip link add br0 type bridge ageing_time 0 && ip link set br0 up && echo up && exec sleep infinity"
        self.process = subprocess.Popen(
            [*dying_with_us(), "unshare", "--net", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        pid, output = self.process.pid, self.process.stdout
        assert output
        with output as lines:
            up = lines.readline() == b"up\n"
        script = (
            f"ip link add {self.device} type veth peer name up0 netns {pid} && "
            f"ip addr add {self.gateway}/24 dev {self.device} && ip link set {self.device} up && "
            f"nsenter -t {pid} -n sh -c 'ip link set up0 master br0 && ip link set up0 up'"
        )
        if up and not subprocess.run(["sh", "-c", script], capture_output=True).returncode:
            return True
        self.stop()
        return None if Path("/sys/class/net", self.device).exists() else False

    def joined(self, rank: int, command: list[str]) -> list[str]:
        """Return a command that makes a namespace, connects it to the switch and runs `command` in it."""
        assert self.process
        self.plugged[rank] = self.plugged.get(rank, 0) + 1
        port = self._port(rank)
        script = (
            f"ip link add eth0 address 02:00:00:00:00:{rank:02x} type veth peer name {port} netns {self.process.pid} "
            f"&& ip addr add {self.address(rank)}/24 dev eth0 && ip link set eth0 up && ip link set lo up "
            f"&& nsenter -t {self.process.pid} -n sh -c 'ip link set {port} master br0 && ip link set {port} up' "
            f"&& exec {shlex.join(command)}"
        )
        return ["unshare", "--net", "sh", "-c", script]

    def _port(self, rank: int) -> str:
        # The kernel removes a dead host's port late, so each boot has a new one.
        return f"w{rank}b{self.plugged[rank]}"

    def cable(self, rank: int, up: bool) -> None:
        """Pull a host's cable or plug it in again, without a packet to the others."""
        assert self.process
        command = ["ip", "link", "set", self._port(rank), "up" if up else "down"]
        subprocess.run(["nsenter", "-t", str(self.process.pid), "-n", *command], check=True)

    def stop(self) -> None:
        """Stop the switch; the cables disappear with its namespace."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
