"""Checks of the machine: versions, devices, arithmetic, memory, disk, bucket, clock."""

from __future__ import annotations

import os
import shutil
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from uuid import uuid4

import torch

from trm.checks.preflight.report import Site
from trm.devices import open_backend
from trm.devices.cpu import host_memory
from trm.errors import UserError
from trm.study.text import count

BACKENDS = {"local": "cpu", "gpu": "cuda", "tpu": "xla"}
LOCK = Path(__file__).parents[3] / "envs" / "tpu" / "requirements.lock"
PINNED = ("torch", "torch_xla", "libtpu", "jax", "jaxlib")
OLDEST_TORCH = (2, 9)
LARGEST_SKEW_SECONDS = 30.0
GIB = 2**30


def pinned() -> dict[str, str]:
    """Versions that envs/tpu pins, by name with underscores."""
    lines = (line.split("==") for line in LOCK.read_text().split() if "==" in line)
    return {name.lower().replace("-", "_"): found for name, found in lines}


def versions(site: Site) -> str:
    """The libraries are those that the code was tested with."""
    if site.profile == "tpu":
        pins = pinned()
        for name in PINNED:
            try:
                found = version(name).partition("+")[0]
            except PackageNotFoundError:
                found = "missing"
            if found != pins[name]:
                raise UserError(
                    f"{name} is {found}, and envs/tpu pins {pins[name]}: build the environment from its lock file"
                )
        return ", ".join(f"{name} {pins[name]}" for name in PINNED)
    found = version("torch")
    if tuple(int(part) for part in found.split("+")[0].split(".")[:2]) < OLDEST_TORCH:
        raise UserError(
            f"torch is {found}, and the code needs {'.'.join(map(str, OLDEST_TORCH))} or later: update it"
        )
    return f"torch {found}, safetensors {version('safetensors')}"


def devices(site: Site) -> str:
    """The profile's devices are there, as many as expected."""
    host_asked_for = os.environ.get("PJRT_DEVICE", "").upper() == "CPU"
    # one thread is quickest for the tiny trials of a CPU
    threads = 1 if site.profile == "local" else None
    backend = site.backend = site.backend or open_backend(BACKENDS[site.profile], threads)
    devices = backend.device_count()
    if site.profile == "tpu" and not (host_asked_for or getattr(backend, "on_tpu", False)):
        raise UserError(f"no TPU chip is visible here, only {backend.device_name()}: check the slice")
    if site.devices is not None and devices != site.devices:
        raise UserError(
            f"expected {site.devices} devices, found {devices}: check the slice and its processes"
        )
    return f"{backend.device_name()}, {count(backend.processes, 'process', 'processes')}"


def arithmetic(site: Site) -> str:
    """A matrix product on the device equals the host's."""
    backend = site.opened
    backend.precision("float32")  # a TPU's default is one bfloat16 pass
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(512, 512, generator=generator) for _ in range(2))
    found = backend.fetch(backend.place(a) @ backend.place(b))
    wrong = float((found - a @ b).norm() / (a @ b).norm())
    if not wrong < 1e-4:  # float32 sums of 512 products in another order differ by about 1e-6
        raise UserError(
            f"a 512 x 512 matrix product is off by {100 * wrong:.2g} %: this device is faulty, leave it out"
        )
    return f"512 x 512 product within {wrong:.1e} of the host's"


def memory(site: Site) -> str:
    """The host has the memory that a run needs."""
    gib = host_memory() / GIB
    if gib < site.memory_gib:
        raise UserError(
            f"the host has {gib:.1f} GiB of memory and {site.memory_gib:g} are needed: use a larger machine"
        )
    limit = site.backend.memory_limit() / GIB if site.backend else 0
    return f"{gib:.1f} GiB on the host" + (f", {limit:.1f} GiB a device" if limit and limit != gib else "")


def disk(site: Site) -> str:
    """The folder of checkpoints is writable and has room."""
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
            f"{site.scratch} has {free:.1f} GiB free and {site.disk_gib:g} are needed: free space"
        )
    return f"{free:.0f} GiB free below {site.scratch}"


def bucket(site: Site) -> str:
    """Objects can be written, claimed, read and deleted."""
    if site.bucket is None:
        return "none is used"
    from trm.storage import Conflict, Patience, open_store

    store = open_store(site.bucket, Patience(minutes=1.0))
    name, content = f".preflight/{uuid4().hex}", uuid4().bytes
    before = site.clock()
    info = store.put_bytes(name, content, if_generation_match=0)
    site.shared["bucket time"] = (before, info.updated, site.clock())
    try:
        if store.get_bytes(name) != content:
            raise UserError(f"{site.bucket} gave back other bytes than were written: use another bucket")
        try:
            store.put_bytes(name, b"", if_generation_match=0)
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
    """The clock agrees with the bucket's and with the other processes'."""
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
            "the clock is behind the date of the program's own files: set it (chrony, timedatectl)"
        )
    return ", ".join(known) or time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(site.clock()))
