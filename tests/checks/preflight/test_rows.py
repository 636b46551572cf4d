"""Every row of the table: green on a sound machine, red when just that is broken."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.storage.conftest import BUCKET
from trm.backends.cpu.device import CpuBackend
from trm.checks.preflight import machine, work
from trm.checks.preflight.report import Row, Site, run_checks, table
from trm.checks.preflight.work import CHECKS
from trm.cli import main
from trm.data.sampler import Sampler

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


def test_a_sound_machine_is_green(site):
    rows = run_checks(site, CHECKS)
    assert all(row.green for row in rows), table(rows, colour=False)
    assert [row.name for row in rows] == list(CHECKS)


def wants(**fields):
    """More than the machine has."""
    return lambda site, patch: [setattr(site, name, value) for name, value in fields.items()]


def old_torch(site, patch):
    patch.setattr(machine, "version", lambda name: "2.1.0")


def old_libtpu(site, patch):
    site.profile, pins = "tpu", machine.pinned()
    patch.setattr(machine, "version", lambda name: {**pins, "libtpu": "0.0.1"}[name])


def pod_host_without_chips(site, patch):
    patch.delenv("PJRT_DEVICE", raising=False)
    site.profile = "tpu"


def wrong_products(site, patch):
    site.backend.reads = lambda tensor: tensor * 1.5 if tensor.shape == (512, 512) else tensor


def a_worker_counted_twice(site, patch):
    site.backend.sums = lambda flat: flat.mul_(2)


def a_rounded_gradient(site, patch):
    """As products of a TPU in one bfloat16 pass would; tests/xla sees that it takes six."""
    site.backend.sums = lambda flat: flat.copy_(flat.bfloat16())


def a_folder_below_a_file(site, patch):
    (site.scratch / "file").write_text("x")
    site.scratch /= "file/below"


def overlapping_shards(site, patch):
    right = Sampler.batch
    patch.setattr(Sampler, "batch", lambda self, step, worker, workers: right(self, step, 0, workers))


def forgetful_checkpoints(site, patch):
    right = work.load_file
    patch.setattr(work, "load_file", lambda file: {**right(file), "moment1": right(file)["moment1"] * 0})


RED = [
    ("versions", old_torch, "torch is 2.1.0"),
    ("versions", old_libtpu, "libtpu is 0.0.1"),
    ("devices", wants(devices=4), "expected 4 devices, found 1: check the slice and its processes"),
    ("devices", pod_host_without_chips, "no TPU chip is visible here"),
    ("arithmetic", wrong_products, "off by 50 %"),
    ("memory", wants(memory_gib=1e6), "1e+06 are required"),
    ("disk", wants(disk_gib=1e9), "GiB free, but 1e+09 are required"),
    ("disk", a_folder_below_a_file, "choose another --scratch"),
    ("clock", wants(clock=lambda: 1e9), "behind the modification time of this program"),
    ("shards", overlapping_shards, "the rows of 2 workers at step 1 do not make up one batch"),
    ("gradients", a_worker_counted_twice, "differs from the one-process gradient by 100 %"),
    ("gradients", a_rounded_gradient, "differs from the one-process gradient by 0."),
    ("training", wants(learning_rate=1e-9), "A fall by at least 10 % is expected"),
    ("resume", forgetful_checkpoints, "checkpoints cannot be trusted here"),
]


@pytest.mark.parametrize(("name", "fault", "words"), RED)
def test_a_fault_turns_its_row_red(site, monkeypatch, name, fault, words):
    fault(site, monkeypatch)
    before = ["training"] if name == "resume" else []
    *_, row = run_checks(site, {key: CHECKS[key] for key in [*before, name]})
    assert not row.green
    assert words in row.text


def test_a_red_row_fails_the_command_which_then_writes_nothing(tmp_path, monkeypatch, capsys):
    """Green rows, and what two processes gather: tests/pipeline/test_preflight.py and test_cloud_page.py."""
    names = ["devices", "memory", "disk"]
    monkeypatch.setattr(work, "CHECKS", {name: CHECKS[name] for name in names})
    words = f"preflight --profile local --scratch {tmp_path} --devices 3 --memory-gib 1e6 --disk-gib 1e9"
    assert main([*words.split(), "--out", str(tmp_path / "rows.json")]) == 1
    assert re.findall(r"RED +(\w+)", capsys.readouterr().out) == names
    assert not (tmp_path / "rows.json").exists()


def test_every_row_is_turned_red_by_a_test():
    assert {name for name, *_ in RED} | {"bucket"} == set(CHECKS)


def test_the_pinned_versions_of_the_tpu_environment_are_green(tmp_path, monkeypatch):
    pins = machine.pinned()
    monkeypatch.setattr(machine, "version", lambda name: pins[name])
    assert "libtpu" in machine.versions(Site("tpu", tmp_path))


def test_a_missing_device_is_no_crash(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "x")
    rows = {row.name: row for row in run_checks(Site("local", tmp_path), CHECKS)}
    assert "RANK" in rows["devices"].text
    assert rows["training"].text == "not checked: there is no device"


@pytest.fixture
def cloud(gs, proxy, site):
    """What stands before the bucket of the site and can deny."""
    site.bucket = gs
    return proxy


def test_bucket(site, cloud):
    near = {name: CHECKS[name] for name in ("bucket", "clock")}
    assert all(row.green for row in run_checks(site, near))
    cloud.answer(then=403)
    bucket, clock = run_checks(site, near)
    assert clock.green
    assert not bucket.green
    assert f"No permission to write gs://{BUCKET}" in bucket.text


def test_the_clock_of_the_bucket(site, cloud):
    site.clock = lambda: 2e9
    _, row = run_checks(site, {name: CHECKS[name] for name in ("bucket", "clock")})
    assert not row.green
    assert "the clock differs from the bucket's by" in row.text


def test_the_table_in_words_and_in_colour():
    rows = [Row("disk", True, "fine"), Row("clock", False, "wrong")]
    assert table(rows, colour=False) == "green  disk   fine\nRED    clock  wrong"
    assert "\033[31m" in table(rows, colour=True)
