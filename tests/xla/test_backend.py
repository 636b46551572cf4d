"""What the XLA backend refuses and warns of, and a whole run with it."""

import csv
import glob
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.shell import ROOT, python
from tests.training.conftest import train_words
from tests.training.puzzles import write_dataset
from tests.training.test_metrics import SERIES

from .steps import config

NONE_HALTED = {f"train/{name}" for name in ("accuracy", "exact_accuracy", "halt_accuracy", "steps")}
NONE_HALTED |= {f"train/halt_share/{step}" for step in (1, 2, 3, 4)}
"""Empty where no row ended since the last report."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    write_dataset(home / "tiny")
    return home


def xla_python(*arguments: str, check: bool = True, **more: str) -> subprocess.CompletedProcess:
    devices = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", **more}
    return python(*arguments, env=devices, cwd=ROOT, check=check)


def train(folder: Path, name: str, **more: Any) -> subprocess.CompletedProcess:
    runtime = {"log_every": 1, "evals": 1, "checkpoint_minutes": 1e-9, "profile_steps": "2:3"}
    words = train_words(config("mlp", steps=6), folder / "tiny", folder / name, "--backend", "xla", **runtime)
    return xla_python("-m", "trm", *words, **more)


def test_a_run_on_xla_and_the_same_resumed(folder):
    from safetensors.numpy import load_file

    done = train(folder, "xla")
    assert "compiled the training step again" not in done.stderr
    result = json.loads((folder / "xla/run/training.json").read_text())
    assert (result["backend"], result["device_name"], result["workers"]) == ("xla", "2 x XLA CPU", 1)
    assert "Metric: CompileTime" in (folder / "xla/checkpoints/xla-metrics-0.txt").read_text()
    last = list(csv.DictReader((folder / "xla/run/history.csv").read_text().splitlines()))[-1]
    told = {"compilations", "compile_seconds", "transfer_seconds", "late_compilations"}
    assert {name for name in last if "/" in name} - SERIES == {f"xla/{name}" for name in told}
    # nothing was measured of the noise scale: one micro-batch on one worker
    assert {name for name, value in last.items() if not value} <= {"train/noise_scale"} | NONE_HALTED
    assert float(last["perf/compile_seconds"]) == pytest.approx(float(last["xla/compile_seconds"]), abs=1e-3)
    assert int(last["perf/compilations"]) > 0
    assert float(last["perf/transfer_seconds"]) > 0
    assert list((folder / "xla/checkpoints/profile-0").rglob("*.xplane.pb"))
    weights = load_file(folder / "xla/run/weights.safetensors")

    # killed after step 3, gone on with: the same weights to the bit
    for step in (4, 5, 6):
        shutil.rmtree(folder / f"xla/checkpoints/step-{step:08d}")
    shutil.rmtree(folder / "xla/run")
    assert "step-00000003" in train(folder, "xla").stdout
    resumed = load_file(folder / "xla/run/weights.safetensors")
    assert all((resumed[name] == tensor).all() for name, tensor in weights.items())


TPU_HERE = bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))
JOINED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (JOINED, "XLA's CPU devices cannot join 2"),
        ({"CPU_NUM_DEVICES": "3"}, "16 rows do not divide over 3 XLA devices"),
        pytest.param(
            {"PJRT_DEVICE": "TPU"},
            "PJRT_DEVICE=TPU, but this machine has no TPU",
            marks=pytest.mark.skipif(TPU_HERE, reason="there is a TPU"),
        ),
    ],
)
def test_devices_that_cannot_be_used_are_said(folder, variables, words):
    done = train(folder, "refused", check=False, **variables)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith(f"trm train: {words}")


LATE = """
import warnings
from collections import Counter
import torch
from trm.backends.tpu.device import XlaBackend
from trm.training.replayed import ReplayedStep

class Step(ReplayedStep):
    def __init__(self):
        self.backend, self._calls, self._replays, self._replayed = backend, Counter(), {}, False

    def trace(self, batch, recursion):
        total.add_(batch)

backend = XlaBackend()
total = backend.place(torch.zeros(4))
program = Step()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for call in range(8):
        program(backend.place(torch.ones(4)), (1, 1, 1))
    assert not caught, [str(warning.message) for warning in caught]
    total = backend.place(torch.zeros(1))  # another shape: another program
    program(backend.place(torch.ones(1)), (1, 1, 1))
print(*[warning.message for warning in caught])
assert backend.counters()["xla/late_compilations"] == 1
"""


def test_a_late_compilation_is_warned_of():
    told = xla_python("-m", "tests.script", LATE).stdout
    assert told.startswith("XLA compiled the training step again at call 9")


CLONES = """
import torch
from trm.backends.tpu.device import XlaBackend
from trm.backends.tpu.replay import Replay
backend = XlaBackend()
one = backend.place(torch.ones(4))
two = one.clone()  # one memory for both, until one of them changes

def step():
    one.add_(given)
    two.mul_(3.0)

given = backend.place(torch.full((4,), 2.0))
replay = Replay(step, [one, two], [given])
held = one.clone()
replay.run([backend.place(torch.full((4,), 5.0))])
two.zero_()  # between steps
replay.run([given])
print(held[0].item(), one[0].item(), two[0].item(), len(replay._changed))
"""


def test_clones_and_held_values_are_kept_apart_by_replays():
    assert xla_python("-m", "tests.script", CLONES).stdout.split() == ["3.0", "10.0", "0.0", "2"]
