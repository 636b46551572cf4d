"""Which backend `auto` takes, and that a job planned for TPU chips computes on nothing else."""

import importlib.util
from pathlib import Path

import pytest
import yaml

from trm.backends.registry import open_backend
from trm.backends.tpu import chips
from trm.errors import UserError
from trm.launch.jobs import shell_prefix
from trm.pipeline.cloud import tpu_pod
from trm.pipeline.settings import Settings, split

HAS_XLA = importlib.util.find_spec("torch_xla") is not None


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Path:
    """A machine without accelerators: /dev and the PCI bus are empty folders."""
    for name, folder in (("DEVICES", "dev"), ("PCI", "pci")):
        (tmp_path / folder).mkdir()
        monkeypatch.setattr(chips, name, tmp_path / folder)
    for variable in ("PJRT_DEVICE", "TRM_BACKEND", chips.CHIPS_VARIABLE):
        monkeypatch.setenv(variable, "")  # so that what the backend sets is taken back
        monkeypatch.delenv(variable)
    return tmp_path


def add(machine: Path, *files: str, pci: tuple[str, str] | None = None) -> None:
    for file in files:
        path = machine / "dev" / file
        path.parent.mkdir(exist_ok=True)
        path.touch()
    if pci:
        place = machine / "pci/0000:00:05.0"
        place.mkdir()
        (place / "vendor").write_text(pci[0] + "\n")
        (place / "device").write_text(pci[1] + "\n")


@pytest.mark.parametrize(
    ("files", "pci", "found"),
    [
        (["accel0", "accel1"], None, ["accel0", "accel1"]),
        (["vfio/0", "vfio/1", "vfio/vfio"], (chips.GOOGLE, "0x0063"), ["0", "1"]),
        (
            ["accel/accel0", "vfio/0", "vfio/vfio"],
            ("0x8086", "0x7d1d"),
            [],
        ),  # an Intel NPU, a passed-through card
    ],
)
def test_chips_are_told_from_other_accelerators(machine, files, pci, found):
    add(machine, *files, pci=pci)
    assert [Path(file).name for file in chips.tpu_files()] == found
    assert found or open_backend().name in ("cpu", "cuda")


@pytest.mark.parametrize(
    ("chosen", "files", "wanted"), [("CPU", ["accel0"], False), ("TPU", [], True), ("", ["accel0"], True)]
)
def test_pjrt_device_decides_where_it_is_set(machine, monkeypatch, chosen, files, wanted):
    add(machine, *files)
    monkeypatch.setenv("PJRT_DEVICE", chosen)
    assert chips.tpu_wanted() is wanted


@pytest.mark.skipif(HAS_XLA, reason="torch_xla is installed here: it would look for the chips")
@pytest.mark.parametrize("planned", [False, True])
def test_auto_never_falls_back_to_the_cpu(machine, monkeypatch, planned):
    if planned:
        monkeypatch.setenv("TRM_BACKEND", "xla")  # what the tpu profile says outright
    else:
        add(machine, "accel0")
    with pytest.raises(UserError, match="the xla backend needs torch_xla"):
        open_backend()
    assert open_backend("cpu").name == "cpu"


def test_a_job_planned_for_chips_refuses_the_host(machine, monkeypatch):
    monkeypatch.setenv(chips.CHIPS_VARIABLE, "4")
    with pytest.raises(UserError, match="planned for 4 TPU chips, but would run on the host's CPU"):
        open_backend("xla")


def test_the_variable_of_the_profile_is_checked(machine, monkeypatch):
    monkeypatch.setenv("TRM_BACKEND", "tpu")
    with pytest.raises(UserError, match="TRM_BACKEND tpu: choose one of auto, cpu, cuda, xla"):
        open_backend()


def test_planned_chips(monkeypatch):
    monkeypatch.delenv(chips.CHIPS_VARIABLE, raising=False)
    assert chips.planned_chips(8) is None
    monkeypatch.setenv(chips.CHIPS_VARIABLE, "4")
    assert chips.planned_chips(8) == 32
    for text in ("0", "four", "-4"):
        monkeypatch.setenv(chips.CHIPS_VARIABLE, text)
        with pytest.raises(UserError, match=f"{chips.CHIPS_VARIABLE}={text}: give the number of TPU chips"):
            chips.planned_chips(1)


@pytest.mark.skipif(not HAS_XLA, reason="torch_xla is not installed here")
def test_chips_are_recognised_as_torch_xla_does():
    from torch_xla._internal import tpu

    assert tpu._GOOGLE_PCI_VENDOR_ID == chips.GOOGLE
    assert set(chips.TPU_DEVICE_IDS) == set(tpu._TPU_PCI_DEVICE_IDS)


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("tpu", f" TRM_BACKEND=xla {chips.CHIPS_VARIABLE}=4;"),
        ("gpu", " TRM_BACKEND=cuda;"),
        ("slurm", " TRM_BACKEND=cuda;"),
        ("local", " TRM_BACKEND=cpu;"),
    ],
)
def test_a_profile_tells_every_job_its_device(profile, said):
    config = yaml.safe_load((Path(__file__).parents[2] / f"profiles/{profile}/workflow.yaml").read_text())
    if profile == "tpu":  # whose config.yaml names the slice
        config |= tpu_pod("v4-64").settings
    assert said in shell_prefix(split(config)[0])
    assert "TRM_BACKEND" not in shell_prefix(Settings())
