"""Tiny steps traced and compiled by libtpu for a v4 host: memory under a bound, nothing gathered, one all-reduce."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .steps import config

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_a_tiny_step_fits_and_gathers_nothing(mixer: str, tmp_path: Path):
    run = config(mixer, batch_size=32, precision="bfloat16").model_dump_json()
    options = ["--run-config", run, "--topology", "v4-8", "--cache", str(tmp_path), "--json"]
    if mixer == "attention":
        options += ["--steps", "train"]
    command = [sys.executable, "-m", "trm", "tpu-check", *options]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    for result in json.loads(done.stdout):
        assert result["fits"]
        assert result["chips"] == 4
        assert 0 < result["peak_gib"] < (0.05 if result["what"] == "train" else 0.6)
        assert 0 < result["step_ms"] < 100
        assert set(result["collectives"]) <= {"all-reduce"}
        if result["what"] == "train":
            assert result["collectives"]["all-reduce"]["count"] <= 3
            assert result["collectives"]["all-reduce"]["bytes"] < 4 << 20
            assert not result["remat"]
    assert len(list(tmp_path.glob("*.json"))) == (2 if mixer == "mlp" else 1)
