"""The XLA step against the plain one, on 1 or 4 of XLA's CPU devices: same numbers, one program."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.shell import ROOT, python
from tests.training.puzzles import write_dataset

MLP = {"mixer": "mlp", "steps": 5}
ATTENTION = {"mixer": "attention", "steps": 5, "hints": (0, 4)}
LONG = {"mixer": "mlp", "precision": "bfloat16", "micro_batches": 2, "steps": 20}
TURNS = {"mixer": "mlp", "steps": 6, "cycles": [(2, 1), (1, 1)]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "tiny")


def train(dataset: Path, backend: str, devices: int, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of tests/xla/steps.py in a process of its own."""
    env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
    words = ("tests.xla.steps", backend, dataset, json.dumps(cases))
    done = python("-m", *words, env=env, cwd=ROOT, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def assert_equal(expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Losses and weights to 1e-5 of their size; gradient norms, which square the rounding, to 1e-4."""
    assert len(expected["losses"]) == len(found["losses"])
    for (lm, halt, norm), other in zip(expected["losses"], found["losses"]):
        assert other[0] == pytest.approx(lm, rel=1e-5)
        assert other[1] == pytest.approx(halt, abs=1e-5)
        assert other[2] == pytest.approx(norm, rel=1e-4)
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-5)


@pytest.fixture(scope="module")
def plain(dataset) -> list[dict[str, Any]]:
    """The same runs in plain torch on the CPU."""
    return train(dataset, "cpu", 1, [MLP, ATTENTION, TURNS])


@pytest.fixture(scope="module")
def on_four(dataset) -> list[dict[str, Any]]:
    """On four devices."""
    return train(dataset, "xla", 4, [ATTENTION, LONG, TURNS, TURNS | {"replay": "0"}])


def test_losses_equal_plain_torch_on_one_device_and_on_four(dataset, plain, on_four):
    on_one = train(dataset, "xla", 1, [case | {"remat": True} for case in (MLP, ATTENTION)])
    for expected, found in ((plain[0], on_one[0]), (plain[1], on_one[1]), (plain[1], on_four[0])):
        assert_equal(expected, found)
        assert found["compiled"] == [1, 0, 0, 0, 0]


def test_twenty_steps_are_one_program_in_bfloat16(on_four):
    found = on_four[1]
    assert found["compiled"] == [1] + [0] * 19
    assert found["ran"] == 1  # traced once: the other steps are replays
    assert found["losses"][-1][0] < found["losses"][0][0]


def test_replays_of_two_kinds_take_turns_and_equal_traced_steps(plain, on_four):
    replayed, traced = on_four[2:]
    assert (replayed["ran"], traced["ran"]) == (2, 6)
    for found in (replayed, traced):
        assert found["compiled"] == [1, 1, 0, 0, 0, 0]
        assert_equal(plain[2], found)
