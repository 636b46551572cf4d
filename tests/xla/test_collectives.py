"""One traced step, partitioned over four devices, on one process and on two that really exchange their sums."""

import sys

import numpy as np
import pytest

from tests.shell import ROOT, python, start
from tests.storage.cloud import free_port

TRACED = """
import os, sys
from pathlib import Path
from trm.checks.tpu_check.worker import environment
from trm.study.slices import parse_slice
os.environ.update(environment(parse_slice("v4-8")))
from tests.xla.steps import config
from trm.checks.tpu_check.tracing import rehearse
from trm.study.tasks import Sizes
backend, _ = rehearse(config(sys.argv[1]), Sizes(16, 6, 1, 0), evaluation=False)
Path(sys.argv[2]).write_text([text for phase, text in backend.programs if phase == "step"][-1])
"""


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_two_processes_compute_what_one_does(mixer, tmp_path):
    module = tmp_path / "step.mlir"
    python("-c", TRACED, mixer, module, cwd=ROOT, check=True)
    outs, port = [tmp_path / f"{name}.npz" for name in ("one", "first", "second")], free_port()
    command = (sys.executable, "-m", "tests.xla.collectives", module)
    for process in (
        start(*command, outs[0], cwd=ROOT),
        *(start(*command, outs[1 + k], k, 2, port, cwd=ROOT) for k in range(2)),
    ):
        told, _ = process.communicate(timeout=600)
        assert process.returncode == 0, told[-3000:]
    one, first, second = (dict(np.load(out)) for out in outs)
    shared_out = 0
    for name, expected in one.items():
        axis = int(name.split()[1])
        if axis < 0:
            np.testing.assert_array_equal(first[name], second[name])  # every process holds the same weights
            found = first[name]
        else:
            found, shared_out = np.concatenate([first[name], second[name]], axis), shared_out + 1
        # float32 in another order, over made-up weights of one sign; a sum that is left out would be wrong by half
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-4, err_msg=name)
    assert shared_out >= 5  # the slots
