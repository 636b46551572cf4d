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
run = sized(sys.argv[1])
backend, _ = rehearse(run, sizes_of(run))
print(json.dumps([(phase, text.count("stablehlo.dot_general")) for phase, text in backend.programs]))
"""


@pytest.mark.parametrize("task", ["maze", "arc"])
def test_no_program_of_an_evaluation_holds_two_steps(task):
    done = python("-c", SCRIPT, task, cwd=ROOT, check=True)
    programs = json.loads(done.stdout.splitlines()[-1])
    step = max(products for phase, products in programs if phase == "validation")
    found = [products for phase, products in programs if phase == "evaluation"]
    assert step > 0
    assert max(found) <= step
    assert len(found) <= 40
