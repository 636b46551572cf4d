"""What the names of TPU slices mean."""

import pytest

from snakemake_executor_plugin_tpu.allocation import slice_of
from trm.errors import UserError
from trm.study.slices import hbm_gib, parse_slice


@pytest.mark.parametrize(
    ("name", "chips", "hosts", "topology"),
    [
        ("v4-8", 4, 1, "v4:2x2x1"),
        ("v4-64", 32, 8, "v4:2x4x4"),
        ("v5litepod-1", 1, 1, "v5e:1x1"),
        ("v5litepod-8", 8, 1, "v5e:2x4"),
        ("v5litepod-16", 16, 4, "v5e:4x4"),
        ("v6e-4", 4, 1, "v6e:2x2"),
        ("v6e-256", 256, 64, "v6e:16x16"),
    ],
)
def test_slices(name, chips, hosts, topology):
    found = parse_slice(name)
    assert (found.chips, found.hosts, found.topology) == (chips, hosts, topology)


@pytest.mark.parametrize(
    "name", ["v4-8", "v4-32", "v4-512", "v5litepod-1", "v5litepod-8", "v5litepod-64", "v6e-4", "v6e-32"]
)
def test_plugin_and_study_agree_on_slices(name):
    ours, theirs = parse_slice(name), slice_of(name)
    assert (ours.chips, ours.hosts) == (theirs.chips, theirs.hosts)


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
