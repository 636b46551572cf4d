"""The XLA step against the plain one, on 1, 4 or 8 of XLA's CPU devices: same numbers, one program."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.shell import ROOT, python
from tests.training.puzzles import write_dataset

CASES = [
    {"mixer": "mlp", "steps": 5},
    {"mixer": "attention", "steps": 5, "hints": (0, 4)},
    {"mixer": "mlp", "steps": 3, "remat": True},
]
LONG = {"mixer": "mlp", "precision": "bfloat16", "micro_batches": 2, "steps": 20}
TURNS = {"mixer": "mlp", "steps": 6, "cycles": [(2, 1), (1, 1)]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "tiny")


def train(
    dataset: Path, backend: str, devices: int, cases: list[dict[str, Any]], **more: str
) -> list[dict[str, Any]]:
    """Results of tests/xla/steps.py in a process of its own."""
    env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), **more}
    words = ("tests.xla.steps", backend, dataset, json.dumps(cases))
    done = python("-m", *words, env=env, cwd=ROOT, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def assert_close(expected: list[list[float]], found: list[list[float]]) -> None:
    """Losses to 1e-5 of their size; gradient norms, which square the rounding, to 1e-4."""
    assert len(expected) == len(found)
    for (lm, halt, norm), other in zip(expected, found):
        assert other[0] == pytest.approx(lm, rel=1e-5)
        assert other[1] == pytest.approx(halt, abs=1e-5)
        assert other[2] == pytest.approx(norm, rel=1e-4)


@pytest.fixture(scope="module")
def plain(dataset) -> list[dict[str, Any]]:
    """The same runs in plain torch on the CPU."""
    return train(dataset, "cpu", 1, [{**case, "remat": None} for case in [*CASES, TURNS]])


@pytest.fixture(scope="module")
def on_four(dataset) -> list[dict[str, Any]]:
    """LONG and TURNS on four devices."""
    return train(dataset, "xla", 4, [LONG, TURNS])


@pytest.mark.parametrize("devices", [1, 8])
def test_losses_equal_plain_torch_on_any_number_of_devices(dataset, plain, devices):
    cases = CASES if devices == 1 else CASES[:2]
    for case, expected, found in zip(cases, plain, train(dataset, "xla", devices, cases)):
        assert_close(expected["losses"], found["losses"])
        assert found["weights"] == pytest.approx(expected["weights"], rel=1e-5), case
        assert found["compiled"] == [1] + [0] * (case["steps"] - 1), case


def test_twenty_steps_are_one_program_in_bfloat16(on_four):
    found, _ = on_four
    assert found["compiled"] == [1] + [0] * 19
    assert found["ran"] == 1  # traced once: the other steps are replays
    assert found["losses"][-1][0] < found["losses"][0][0]


def test_replays_of_two_kinds_take_turns_and_equal_traced_steps(dataset, plain, on_four):
    _, replayed = on_four
    (traced,) = train(dataset, "xla", 4, [TURNS], TRM_XLA_REPLAY="0")
    assert (replayed["ran"], traced["ran"]) == (2, 6)
    for found in (replayed, traced):
        assert_close(plain[-1]["losses"], found["losses"])
        assert found["compiled"] == [1, 1, 0, 0, 0, 0]


PRODUCTS = """
import re, sys
from tests.xla.steps import config
from trm.checks.tpu_check.worker import trace_training
from trm.study.tasks import Sizes
run = config("attention", precision=sys.argv[1])
module = trace_training(run, Sizes(16, 6, 1, 0), None)[0]
print(sorted(set(re.findall(r"dot_general.*precision = \\[(.*?)\\]", module))))
"""


@pytest.mark.parametrize(("precision", "passes"), [("float32", "HIGHEST"), ("bfloat16", "DEFAULT")])
def test_float32_is_multiplied_as_float32(precision, passes):
    devices = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
    done = python("-m", "tests.script", PRODUCTS, precision, env=devices, cwd=ROOT, check=True)
    assert done.stdout.split("\n")[-2] == f"['{passes}, {passes}']"
    assert "mat mul precision" not in done.stderr
