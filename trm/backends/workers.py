"""torch.distributed for backends with one process per device: collectives that fail instead of hanging.

The environment has torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and LOCAL_RANK to choose the GPU.
Workers that `trm train --workers` starts on one machine meet in a file of this user alone, which needs no port.
"""

import fcntl
import os
import socket
import struct
from datetime import timedelta

import torch
from torch import Tensor

from trm.backends.processes import STORE
from trm.errors import UserError
from trm.io import positive_number
from trm.storage import Patience, is_remote

TIMEOUT_VARIABLE = "TRM_WORKER_TIMEOUT"
DEFAULT_TIMEOUT_SECONDS = 300.0
LOOPBACK = "127.0.0.1"


def world_from_environment() -> tuple[int, int]:
    """(rank, world) of this process; (0, 1) if it was started alone."""
    try:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        raise UserError("RANK and WORLD_SIZE must be whole numbers, as torchrun sets them") from None
    if not 0 <= rank < world:
        raise UserError(f"RANK={rank} does not fit WORLD_SIZE={world}")
    return rank, world


def wait_for_storage(*places: str | None) -> None:
    """Have workers wait longer for each other than one of them waits for a bucket, if one of the places is in one: the
    first worker asks it for checkpoints while the others wait. $TRM_WORKER_TIMEOUT takes precedence."""
    if any(place and is_remote(place) for place in places):
        seconds = DEFAULT_TIMEOUT_SECONDS + 60 * Patience().minutes
        os.environ.setdefault(TIMEOUT_VARIABLE, str(seconds))


def choose_interface() -> None:
    """Connect workers through the loopback interface if all of them run on this machine, else through the interface
    by which the first worker's machine is reached.

    By default gloo, and torchrun's MASTER_ADDR, use the address of the host name, which a firewall, a VPN or an old
    entry in /etc/hosts can make unreachable: workers would wait for each other until the timeout. GLOO_SOCKET_IFNAME
    takes precedence.
    """
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        os.environ["MASTER_ADDR"] = LOOPBACK
    name = _interface_to(os.environ["MASTER_ADDR"])
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _interface_to(host: str) -> str | None:
    """Name of the interface by which a host is reached; None if the system does not say."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect((host, 9))
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                if name in ("lo", "lo0") and own.startswith("127."):
                    return name
                try:
                    request = struct.pack("256s", name.encode())
                    answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR of Linux
                except OSError:
                    continue  # an interface without an address
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    except OSError:
        return None
    return None


class Workers:
    """A group of processes that take every step together."""

    def __init__(self, transport: str, rank: int, world: int):
        import torch.distributed as dist

        if world > 1 and "MASTER_ADDR" not in os.environ:
            raise UserError(
                "WORLD_SIZE is set but MASTER_ADDR is not: start workers with --workers or torchrun"
            )
        if world > 1:
            choose_interface()
        seconds = positive_number(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT_SECONDS)
        self.rank, self.world, self.seconds, self._dist = rank, world, seconds, dist
        try:
            dist.init_process_group(
                transport,
                init_method=f"file://{os.environ[STORE]}" if world > 1 and STORE in os.environ else None,
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=seconds),
            )
            # host vectors (checksums, barriers) need a transport that reads host memory
            self._host = (
                None
                if transport == "gloo"
                else dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"worker {rank} of {world} did not find the others within {seconds:.0f} s: {error}"
            ) from error

    def _lost(self, error: Exception) -> UserError:
        return UserError(
            f"worker {self.rank} of {self.world} stops: another worker died or did not answer within "
            f"{self.seconds:.0f} s; start the job again to resume from the last checkpoint "
            f"({str(error).splitlines()[0].split('. ')[0]})"
        )

    def all_reduce(self, flat: Tensor) -> None:
        try:
            self._dist.all_reduce(flat)
        except RuntimeError as error:
            raise self._lost(error) from error

    def gather(self, vector: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(vector) for _ in range(self.world)]
        try:
            self._dist.all_gather(gathered, vector.contiguous(), group=self._host)
        except RuntimeError as error:
            raise self._lost(error) from error
        return gathered

    def broadcast(self, tensor: Tensor) -> None:
        try:
            self._dist.broadcast(tensor, 0, group=self._host)
        except RuntimeError as error:
            raise self._lost(error) from error

    def close(self) -> None:
        """Leave the group and end its threads."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group()
