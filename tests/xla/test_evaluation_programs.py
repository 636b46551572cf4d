"""The programs that an evaluation by every policy starts on a TPU: few, and none of more than one supervision step."""

import json

import pytest

from tests.shell import ROOT, python

SCRIPT = """
import json, os, sys
from trm.checks.tpu_check.worker import environment
from trm.study.slices import parse_slice
os.environ.update(environment(parse_slice("v4-8")))
from tests.xla.test_tpu_check import sized
from trm.checks.tpu_check.check import sizes_of
from trm.checks.tpu_check.tracing import rehearse
for task in sys.argv[1:]:
    run = sized(task)
    backend, _ = rehearse(run, sizes_of(run))
    print(json.dumps([(phase, text.count("stablehlo.dot_general")) for phase, text in backend.programs]))
"""


@pytest.fixture(scope="module")
def programs() -> dict[str, list[tuple[str, int]]]:
    """By task, phase and number of products of each program."""
    tasks = ("maze", "arc")
    done = python("-m", "tests.script", SCRIPT, *tasks, cwd=ROOT, check=True)
    return dict(zip(tasks, map(json.loads, done.stdout.splitlines()[-len(tasks) :])))


@pytest.mark.parametrize("task", ["maze", "arc"])
def test_no_program_of_an_evaluation_holds_two_steps(programs, task):
    step = max(products for phase, products in programs[task] if phase == "validation")
    found = [products for phase, products in programs[task] if phase == "evaluation"]
    assert step > 0
    assert max(found) <= step
    assert len(found) <= 40
