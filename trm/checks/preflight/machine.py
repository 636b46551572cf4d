"""Checks of the machine itself."""

import os
import shutil
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from uuid import uuid4

import torch

from trm.backends.cpu.device import host_memory
from trm.backends.registry import open_backend
from trm.checks.preflight.report import Site
from trm.errors import UserError
from trm.study.text import count

BACKENDS = {"local": "cpu", "gpu": "cuda", "tpu": "xla"}
LOCK = Path(__file__).parents[3] / "envs" / "tpu" / "requirements.lock"
PINNED = ("torch", "torch_xla", "libtpu", "jax", "jaxlib")
OLDEST_TORCH = (2, 9)
LARGEST_SKEW_SECONDS = 30.0
GIB = 2**30


def pinned() -> dict[str, str]:
    """Versions pinned by envs/tpu, by name with underscores."""
    lines = (line.split("==") for line in LOCK.read_text().split() if "==" in line)
    return {name.lower().replace("-", "_"): pin for name, pin in lines}


def versions(site: Site) -> str:
    """The libraries have versions that were tested."""
    if site.profile == "tpu":
        pins = pinned()
        for name in PINNED:
            try:
                installed = version(name).partition("+")[0]
            except PackageNotFoundError:
                installed = "missing"
            if installed != pins[name]:
                raise UserError(
                    f"{name} is {installed}, but envs/tpu pins {pins[name]}: build the environment from its lock file"
                )
        return ", ".join(f"{name} {pins[name]}" for name in PINNED)
    installed = version("torch")
    if tuple(int(part) for part in installed.split("+")[0].split(".")[:2]) < OLDEST_TORCH:
        raise UserError(
            f"torch is {installed}, but {'.'.join(map(str, OLDEST_TORCH))} or later is required: update it"
        )
    return f"torch {installed}, safetensors {version('safetensors')}"


def devices(site: Site) -> str:
    """The profile's devices are visible, as many as expected."""
    on_host = os.environ.get("PJRT_DEVICE", "").upper() == "CPU"
    # the trials are so small that one thread is fastest
    threads = 1 if site.profile == "local" else None
    backend = site.backend = site.backend or open_backend(BACKENDS[site.profile], threads)
    devices = backend.device_count()
    if site.profile == "tpu" and not (on_host or getattr(backend, "on_tpu", False)):
        raise UserError(f"no TPU chip is visible here, only {backend.device_name()}: check the slice")
    if site.devices is not None and devices != site.devices:
        raise UserError(
            f"expected {site.devices} devices, found {devices}: check the slice and its processes"
        )
    return f"{backend.device_name()}, {count(backend.processes, 'process', 'processes')}"


def arithmetic(site: Site) -> str:
    """A matrix product on the device equals the host's."""
    backend = site.opened
    backend.precision("float32")  # TPUs default to a single bfloat16 pass
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(512, 512, generator=generator) for _ in range(2))
    product = backend.fetch(backend.place(a) @ backend.place(b))
    error = float((product - a @ b).norm() / (a @ b).norm())
    if not error < 1e-4:  # another summation order of 512 float32 products differs by about 1e-6
        raise UserError(
            f"a 512 x 512 matrix product is off by {100 * error:.2g} %: this device is faulty, do not use it"
        )
    return f"512 x 512 product within {error:.1e} of the host's"


def memory(site: Site) -> str:
    """The host has enough memory."""
    gib = host_memory() / GIB
    if gib < site.memory_gib:
        raise UserError(
            f"the host has {gib:.1f} GiB of memory, but {site.memory_gib:g} are required: use a larger machine"
        )
    limit = site.backend.memory_limit() / GIB if site.backend else 0
    return f"{gib:.1f} GiB on the host" + (f", {limit:.1f} GiB a device" if limit and limit != gib else "")


def disk(site: Site) -> str:
    """The checkpoint folder is writable and has space."""
    probe = site.scratch / f".preflight-{uuid4().hex}"
    try:
        site.scratch.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
        free = shutil.disk_usage(site.scratch).free / GIB
    except OSError as error:
        raise UserError(
            f"{site.scratch} cannot be written ({error.strerror}): choose another --scratch"
        ) from error
    if free < site.disk_gib:
        raise UserError(
            f"{site.scratch} has {free:.1f} GiB free, but {site.disk_gib:g} are required: free some space"
        )
    return f"{free:.0f} GiB free below {site.scratch}"


def bucket(site: Site) -> str:
    """The bucket's objects can be written, claimed, overwritten as a run's lease is, read and deleted."""
    if site.bucket is None:
        return "not used"
    from trm.storage import ABSENT, Conflict, open_store

    store = open_store(site.bucket)
    name, content = f".preflight/{uuid4().hex}", uuid4().bytes
    before = site.clock()
    info = store.put_bytes(name, content, generation=ABSENT)
    site.shared["bucket time"] = (before, info.updated, site.clock())
    try:
        store.put_bytes(name, content, generation=info.generation)
        if store.get_bytes(name) != content:
            raise UserError(f"{site.bucket} returned other bytes than were written: use another bucket")
        try:
            store.put_bytes(name, b"", generation=ABSENT)
        except Conflict:
            pass
        else:
            raise UserError(
                f"{site.bucket} let two writers create one object, so it cannot guard a run: use another"
            )
    finally:
        store.delete(name)
    return f"{site.bucket}: written, claimed, read, deleted"


def clock(site: Site) -> str:
    """The clock agrees with the bucket's and those of the other processes."""
    known = []
    if "bucket time" in site.shared:
        before, server, after = site.shared["bucket time"]
        skew = max(before - server, server - after, 0.0)
        if skew > LARGEST_SKEW_SECONDS:
            raise UserError(
                f"the clock differs from the bucket's by {skew:.0f} s: set it (chrony, timedatectl)"
            )
        known.append(f"{skew:.0f} s from the bucket's")
    if site.backend is not None and site.backend.processes > 1:
        times = [float(t) for t in site.backend.gather(torch.tensor([site.clock()], dtype=torch.float64))]
        if max(times) - min(times) > LARGEST_SKEW_SECONDS:
            raise UserError(
                f"the processes' clocks differ by {max(times) - min(times):.0f} s: set them (chrony)"
            )
        known.append(f"{max(times) - min(times):.0f} s between processes")
    newest = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    if site.clock() < newest - LARGEST_SKEW_SECONDS:
        raise UserError(
            "the clock is behind the modification time of this program: set it (chrony, timedatectl)"
        )
    return ", ".join(known) or time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(site.clock()))
