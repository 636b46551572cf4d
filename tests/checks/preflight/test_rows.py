"""Every row of the table: green on a sound machine, red when just that is broken."""

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.storage.conftest import BUCKET
from trm.backends.cpu.device import CpuBackend
from trm.backends.tpu.device import product_precision
from trm.checks.preflight import machine, work
from trm.checks.preflight.report import Row, Site, run_checks, table
from trm.checks.preflight.work import CHECKS
from trm.data.sampler import Sampler
from trm.training.programs import program_of

STEPS = 40


class Tampered(CpuBackend):
    """A CPU whose faults can be switched on."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self.sums: Callable[[Tensor], None] = lambda flat: None
        self.reads: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def all_reduce(self, flat: Tensor) -> None:
        super().all_reduce(flat)
        self.sums(flat)

    def fetch(self, tensor: Tensor) -> Tensor:
        return self.reads(super().fetch(tensor))


@pytest.fixture(scope="module")
def puzzles() -> dict:
    """The trial's data set, built once for all tests."""
    site = Site("local", Path())
    work.trial_data(site)
    return site.shared


@pytest.fixture
def site(tmp_path, puzzles) -> Site:
    """A sound machine."""
    return Site("local", tmp_path, Tampered(), steps=STEPS, disk_gib=0.01, shared=dict(puzzles))


def only_red(site: Site, name: str) -> str:
    """The text of the one red row."""
    rows = run_checks(site, CHECKS)
    assert {row.name for row in rows if not row.green} == {name}, table(rows, colour=False)
    return next(row.text for row in rows if row.name == name)


def test_a_sound_machine_is_green(site):
    rows = run_checks(site, CHECKS)
    assert all(row.green for row in rows), table(rows, colour=False)
    assert [row.name for row in rows] == list(CHECKS)


def test_versions(site, monkeypatch):
    monkeypatch.setattr(machine, "version", lambda name: "2.1.0")
    assert "torch is 2.1.0" in only_red(site, "versions")


def test_versions_of_the_tpu_environment(tmp_path, monkeypatch):
    pins = machine.pinned()
    monkeypatch.setattr(machine, "version", lambda name: pins[name])
    assert "libtpu" in machine.versions(Site("tpu", tmp_path))
    monkeypatch.setattr(machine, "version", lambda name: {**pins, "libtpu": "0.0.1"}[name])
    (row,) = run_checks(Site("tpu", tmp_path), {"versions": machine.versions})
    assert row == Row("versions", False, row.text)
    assert "libtpu is 0.0.1" in row.text


RED = {
    "devices": ({"devices": 4}, "expected 4 devices, found 1: check the slice and its processes"),
    "memory": ({"memory_gib": 1e6}, "1e+06 are required"),
    "disk": ({"disk_gib": 1e9}, "GiB free, but 1e+09 are required"),
    "clock": ({"clock": lambda: 1e9}, "behind the modification time of this program"),
    "training": ({"learning_rate": 1e-9}, "A fall by at least 10 % is expected"),
}


@pytest.mark.parametrize("name", RED)
def test_a_red_row(site, name):
    fields, words = RED[name]
    assert words in only_red(dataclasses.replace(site, **fields), name)


def test_arithmetic(site):
    site.backend.reads = lambda tensor: tensor * 1.5 if tensor.shape == (512, 512) else tensor
    assert "off by 50 %" in only_red(site, "arithmetic")


def test_gradients(site):
    site.backend.sums = lambda flat: flat.mul_(2)  # as if a worker were counted twice
    assert "differs from the one-process gradient by 100 %" in only_red(site, "gradients")


def test_a_pod_host_without_chips_is_red(site, monkeypatch):
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    site.profile = "tpu"
    (row,) = run_checks(site, {"devices": machine.devices})
    assert not row.green
    assert row.text.startswith("no TPU chip is visible here")


def test_a_missing_device_is_no_crash(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "x")
    rows = {row.name: row for row in run_checks(Site("local", tmp_path), CHECKS)}
    assert "RANK" in rows["devices"].text
    assert rows["training"].text == "not checked: there is no device"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    (row,) = run_checks(Site("local", tmp_path / "file/below"), {"disk": machine.disk})
    assert not row.green
    assert "choose another --scratch" in row.text


@pytest.fixture
def cloud(broken, site):
    """What stands before the bucket of the site and can deny."""
    site.bucket = f"gs://{BUCKET}/trm"
    return broken[1]


def test_bucket(site, cloud):
    assert all(row.green for row in run_checks(site, CHECKS))
    cloud.answer(then=403)
    assert f"No permission to write gs://{BUCKET}" in only_red(site, "bucket")


def test_the_clock_of_the_bucket(site, cloud):
    site.clock = lambda: 2e9
    assert "the clock differs from the bucket's by" in only_red(site, "clock")


def test_shards(site, monkeypatch):
    right = Sampler.batch

    def overlapping(self, step: int, worker: int, workers: int):
        return right(self, step, 0, workers)

    monkeypatch.setattr(Sampler, "batch", overlapping)
    assert "the rows of 2 workers at step 1 do not make up one batch" in only_red(site, "shards")


class RoundedProducts(TorchDispatchMode):
    """Operands of float32 products rounded to bfloat16, as a TPU takes them in one pass."""

    FIRST = {"mm": 0, "bmm": 0, "dot": 0, "addmm": 1, "baddbmm": 1}
    """The first operand that is multiplied."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        first = self.FIRST.get(func.overloadpacket.__name__)
        if first is not None:
            args = (*args[:first], *(tensor.bfloat16().float() for tensor in args[first:]))
        return func(*args, **(kwargs or {}))


class LikeTpu(Tampered):
    """Multiplies float32 as a TPU: in one pass unless torch_xla's setting is `highest`."""

    implementation, products = "plain", "default"
    highest = staticmethod(product_precision)

    def precision(self, requested: str, mixer: str = "mlp"):
        found = super().precision(requested)
        self.products = self.highest(found.forward)
        return found


def rounding_program(state, originals, backend):
    """The step, whose products are rounded on `LikeTpu`."""
    step = program_of(state, originals, backend)
    rounded = getattr(backend, "products", "") == "default"

    def run(*batch: object) -> None:
        with RoundedProducts() if rounded else nullcontext():
            step(*batch)

    return run


@pytest.mark.parametrize("forgotten", [False, True])
def test_gradients_compare_float32_with_float32(site, monkeypatch, forgotten):
    if forgotten:
        monkeypatch.setattr(LikeTpu, "highest", lambda self, forward: "default")
    monkeypatch.setattr(work, "program_of", rounding_program)
    site.backend = LikeTpu()
    (row,) = run_checks(site, {"gradients": work.gradients})
    assert row.green is not forgotten, row.text


def test_resume(site, monkeypatch):
    right = work.load_file

    def forgetful(file: Path) -> dict[str, Tensor]:
        tensors = right(file)
        return {**tensors, "moment1": torch.zeros_like(tensors["moment1"])}

    monkeypatch.setattr(work, "load_file", forgetful)
    assert "checkpoints cannot be trusted here" in only_red(site, "resume")


def test_the_table_in_words_and_in_colour():
    rows = [Row("disk", True, "fine"), Row("clock", False, "wrong")]
    assert table(rows, colour=False) == "green  disk   fine\nRED    clock  wrong"
    assert "\033[31m" in table(rows, colour=True)


def test_every_row_is_turned_red_by_a_test():
    assert [name for name in CHECKS if name not in RED and f"test_{name}" not in globals()] == []
