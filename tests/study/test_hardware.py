"""The machines of config/hardware.yaml: what the names of TPU slices mean, speeds, and memory."""

import pytest
import yaml

from snakemake_executor_plugin_tpu.allocation import slice_of
from tests.shell import ROOT
from trm.errors import UserError
from trm.study.cost import estimate, read_hardware
from trm.study.schema import RunConfig
from trm.study.slices import hbm_gib, parse_slice


@pytest.mark.parametrize(
    ("name", "chips", "hosts", "topology"),
    [
        ("v4-8", 4, 1, "v4:2x2x1"),
        ("v4-32", 16, 4, "v4:2x2x4"),
        ("v4-64", 32, 8, "v4:2x4x4"),
        ("v5litepod-1", 1, 1, "v5e:1x1"),
        ("v5litepod-8", 8, 1, "v5e:2x4"),
        ("v5litepod-16", 16, 4, "v5e:4x4"),
        ("v6e-4", 4, 1, "v6e:2x2"),
        ("v6e-256", 256, 64, "v6e:16x16"),
    ],
)
def test_plugin_and_study_know_the_slices(name, chips, hosts, topology):
    found, plugins = parse_slice(name), slice_of(name)
    assert (found.chips, found.hosts, found.topology) == (chips, hosts, topology)
    assert (plugins.chips, plugins.hosts) == (chips, hosts)


def test_generations_differ_in_speed_and_memory():
    v4, v5e, v6e = (parse_slice(name).generation for name in ("v4-8", "v5litepod-4", "v6e-4"))
    assert v5e.peak_flops < v4.peak_flops < v6e.peak_flops
    assert v5e.hbm_gib < v4.hbm_gib < v6e.hbm_gib


def test_unknown_slices_and_memory_are_refused(monkeypatch):
    with pytest.raises(UserError, match="unknown TPU slice 'v5e-8': there are v4-8, .*v5litepod-8"):
        parse_slice("v5e-8")
    monkeypatch.setenv("TRM_XLA_HBM_GIB", "31.25")  # a chip of v6e
    assert hbm_gib() == 31.25
    monkeypatch.setenv("TRM_XLA_HBM_GIB", "40")
    with pytest.raises(UserError, match="not above 31.25"):
        hbm_gib()


def test_every_tpu_has_one_utilisation():
    path = ROOT / "config/hardware.yaml"
    machines = [
        read_hardware(path, name)
        for name, entry in yaml.safe_load(path.read_text()).items()
        if "slices" in entry
    ]
    assert len({machine.utilisation for machine in machines}) == 1
    for machine in machines:
        peak = parse_slice(machine.slices[0]).generation.peak_flops
        assert machine.flops_per_second == machine.utilisation * peak


@pytest.mark.parametrize(
    ("model", "compiled_gib"), [({}, 15.53), ({"mixer": "attention", "position": "rope"}, 19.87)]
)
def test_a_chips_memory_is_close_to_what_libtpu_compiles(model, compiled_gib):
    """The paper's models at 768 rows a chip of v4-8 (docs/tpu.md, Variants)."""
    config = RunConfig.model_validate({"model": model, "training": {"batch_size": 3072}})
    needed = estimate(config, read_hardware(ROOT / "config/hardware.yaml", "v4-64")).memory_bytes / 2**30
    assert needed == pytest.approx(compiled_gib, rel=0.1)


ENTRY = "here: {device: chip, memory_gib: 1, "


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("here: [", "line 2, column 1: not valid YAML"),
        ("here: {fixd: 3}", r"here: unknown key 'fixd'; did you mean 'fixed'\?"),
        ("here: {devices: none}", "here: .*must be a whole number, not 'none'|here: .*is required"),
        ("- here", "must be a mapping from names to machines"),
        ("there: {}", "no entry 'here'"),
        (ENTRY + "utilisation: 0.3, flops_per_second: 1e+12, slices: [v4-8]}", "hardware.yaml: here: "),
        (ENTRY + "utilisation: 0.3}", "hardware.yaml: here: "),
        (ENTRY + "slices: [v4-8]}", "hardware.yaml: here: "),
        (ENTRY + "utilisation: 30, slices: [v4-8]}", "hardware.yaml: here: "),
    ],
)
def test_a_wrong_hardware_file_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "hardware.yaml"
    path.write_text(text + "\n")
    with pytest.raises(UserError, match=sentence):
        read_hardware(path, "here")
