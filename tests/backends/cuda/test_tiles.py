"""The choice of tiles: a function of architecture and shape, refreshed by measurement."""

import json
from itertools import count

import pytest
import torch

from benchmarks import gpu_tiles
from benchmarks.kernels import WORTH_TIMING
from trm.backends.cuda import tiles
from trm.backends.cuda.tiles import OPERATIONS, TABLE, chosen, parse
from trm.io import write_json
from trm.study.schema import ModelConfig

CPU = torch.device("cpu")


def test_a_shape_of_the_table_has_its_own_tile():
    table = {"tokens": {"*": "64x64x4x2", "97x512": "64x128x8x1"}}
    assert chosen(table, "tokens", 97, 512) == {"COLUMNS": 64, "INNER": 128, "num_warps": 8, "num_stages": 1}
    assert chosen(table, "tokens", 97, 256) == parse("tokens", "64x64x4x2")


@pytest.mark.parametrize(
    ("changes", "cells", "dtype", "covered"),
    [
        ({}, 81, torch.bfloat16, True),
        ({}, 81, torch.float32, False),  # no tensor cores
        ({}, 900, torch.bfloat16, False),  # too many tokens for one program
        ({"multiple": 8, "puzzle_tokens": 0}, 9, torch.float16, False),  # tiles do not divide the inner width
        ({"mixer": "attention"}, 81, torch.bfloat16, True),
        ({"mixer": "attention", "d_model": 384}, 81, torch.bfloat16, False),  # half a head is 24 channels
    ],
)
def test_models_that_the_kernels_compute(changes, cells, dtype, covered, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", False)
    assert tiles.cover(ModelConfig(**changes), cells, dtype, "90") is covered


@pytest.mark.parametrize(("capability", "architecture"), [((8, 0), "80"), ((9, 0), "90"), ((12, 0), "80")])
def test_every_gpu_has_a_table(capability, architecture, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert tiles.architecture_of(torch.device("cuda")) == architecture
    assert {*tiles.table(architecture)} == {*OPERATIONS}


def test_shapes_of_the_study():
    shapes = gpu_tiles.study_shapes()
    assert (512, 1536) in shapes["channels"]
    assert (97, 512) in shapes["tokens"]
    assert shapes["tokens"] == shapes["tokens backward"]


@pytest.mark.parametrize(
    ("operation", "shape"),
    [("channels", (32, 64)), ("tokens", (9, 64)), ("tokens backward", (9, 64))],
)
def test_the_fastest_tile_enters_the_table(operation, shape, tmp_path, monkeypatch):
    """With a clock that finds each tile faster than the one before: the last wins."""
    two = WORTH_TIMING[operation]["90"][:2]
    monkeypatch.setattr(gpu_tiles, "WORTH_TIMING", {operation: {"90": two}})
    monkeypatch.setattr(gpu_tiles, "ROUNDS", 1)
    monkeypatch.setattr(gpu_tiles, "WIDTH", 32)
    path, times = tmp_path / "tiles.json", count(0, -1)
    write_json(path, json.loads(TABLE.read_text()))

    def clock(call):
        call()
        return next(times)

    monkeypatch.setattr(gpu_tiles, "milliseconds", clock)
    gpu_tiles.refresh({operation: [shape]}, CPU, "test", rows=1, dtype=torch.float32, path=path)
    before, after = json.loads(TABLE.read_text()), json.loads(path.read_text())
    assert after["90"][operation] == before["90"][operation] | {"x".join(map(str, shape)): two[-1]}
    assert after["90"]["source"] == "test"
    assert after["80"] == before["80"]


def test_a_candidate_that_does_not_run_is_left_out(monkeypatch, capsys):
    """64 does not divide the inner width 32."""
    monkeypatch.setattr(gpu_tiles, "ROUNDS", 1)
    monkeypatch.setattr(gpu_tiles, "WIDTH", 32)
    monkeypatch.setattr(gpu_tiles, "milliseconds", lambda call: call() is None or 1.0)
    assert gpu_tiles.fastest("tokens", (9, 32), 1, CPU, torch.float32) is None
    assert "64x64x4x2 does not run: the inner width 32 is not a multiple of 64" in capsys.readouterr().out
