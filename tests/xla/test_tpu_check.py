"""Tiny steps traced and compiled by libtpu for a v4 host: memory under a bound, nothing gathered, one all-reduce."""

import json
import re
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

from tests.shell import ROOT, python
from trm.checks.tpu_check.worker import environment
from trm.study.schema import RunConfig
from trm.study.slices import parse_slice

from .steps import config


def tpu_check(run: RunConfig, cache: Path, *more: str, **env: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and results."""
    options = ("--run-config", run.model_dump_json(), "--cache", cache, "--json", *more)
    done = python("-m", "trm", "tpu-check", *options, env=env, cwd=ROOT, timeout=900)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def check(run: RunConfig, cache: Path, **env: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the result of the training step."""
    code, results = tpu_check(run, cache, **env)
    return code, results[0]


def is_tiny(result: dict[str, Any], chips: int, puzzle_vectors: bool = False) -> None:
    """A step that fits and gathers nothing but, once, the gradients of the puzzle vectors of a batch's rows."""
    assert result["fits"]
    assert result["chips"] == chips
    assert 0 < result["gib"] < 0.05
    sums = result["collectives"]["all-reduce"]
    assert sums <= 3
    assert result["collectives"] == {"all-reduce": sums} | ({"all-gather": 1} if puzzle_vectors else {})
    assert not result["remat"]


RECORDED = """
import re
from tests.xla.steps import config
from trm.checks.tpu_check import check, worker
run = config("mlp", batch_size=24, precision="bfloat16")
text = worker.trace_training(run, check.sizes_of(run), None)[0]
given = text.partition("@main(")[2].partition(") -> ")[0]
print(re.findall(r"tensor<(?:\\d+x)?24x[^>]*>(?: {[^}]*})?", given))
"""


def test_every_argument_of_a_recorded_step_with_rows_is_sharded():
    """As on a pod from the second step on; else each chip of the compiled program held the slots of all."""
    done = python("-m", "tests.script", RECORDED, env=environment(parse_slice("v4-8")), cwd=ROOT, check=True)
    rows = literal_eval(done.stdout.splitlines()[-1])
    assert len(rows) > 5
    assert all(re.search(r"devices=\[(1,)?4", row) for row in rows), rows


def test_what_does_not_fit_fits_with_the_knob_that_is_named(tmp_path):
    run = config("mlp", batch_size=64, precision="bfloat16")
    code, found = check(run, tmp_path, TRM_XLA_REMAT="0")
    assert code == 0
    needs = found["gib"]
    bound = str(0.9 * needs)  # a few percent the compiler saves by itself
    code, found = check(run, tmp_path, TRM_XLA_REMAT="0", TRM_XLA_HBM_GIB=bound)
    assert (code, found["fits"]) == (1, False)
    assert found["gib"] == needs  # the batch is not split: that would be another program
    assert " makes it fit (" in found["advice"]
    knob, value = found["advice"].split(" makes")[0].split("=")
    if knob == "TRM_XLA_REMAT":
        code, found = check(run, tmp_path, TRM_XLA_REMAT=value, TRM_XLA_HBM_GIB=bound)
    else:
        assert knob == "training.micro_batches"
        run = config("mlp", batch_size=64, precision="bfloat16", micro_batches=int(value))
        code, found = check(run, tmp_path, TRM_XLA_REMAT="0", TRM_XLA_HBM_GIB=bound)
    assert (code, found["fits"]) == (0, True)


def test_kernels_of_attention_are_compiled(tmp_path):
    model = {"d_model": 128, "layers": 1, "h_cycles": 1}
    run = config("attention", batch_size=16, precision="bfloat16")
    run = run.model_copy(update={"model": run.model.model_copy(update=model)})
    code, found = check(run, tmp_path)
    assert code == 0
    assert found["collectives"].keys() == {"all-reduce"}


def sized(task: str) -> RunConfig:
    """A tiny run of each task, with kernels for Sudoku alone (the others' rows are too short or not bfloat16 lanes)."""
    run = config("attention" if task == "maze" else "mlp", batch_size=16, precision="bfloat16", snapshots=1)
    model, data = {"halt_max_steps": 2, "h_cycles": 1}, run.data.model_dump()
    if task == "sudoku":
        model |= {"d_model": 128, "layers": 1}
    elif task == "maze":
        data = {"task": "maze", "source": "generate", "maze_size": 7}
    else:
        data = {"task": "arc", "source": "generate", "arc_side": 6, "train_puzzles": 20, "augmentations": 3}
    data |= {"validation_puzzles": 20, "test_puzzles": 20}
    document = run.model_dump() | {"model": run.model.model_dump() | model, "data": data}
    return RunConfig.model_validate(document)


@pytest.mark.parametrize("task", ["sudoku", "maze", "arc"])
def test_every_program_of_a_run_compiles(task, tmp_path):
    code, (step, found) = tpu_check(sized(task), tmp_path, "--steps", "all")
    assert code == 0
    is_tiny(step, chips=4, puzzle_vectors=task == "arc")
    assert len(list(tmp_path.glob("*.json"))) == 2
    programs = found["programs"]
    wanted = {"step", "report", "validation", "checkpoint", "evaluation"}
    assert wanted <= {program["phase"] for program in programs}
    assert all(program["fits"] and 0 < program["gib"] < 1 for program in programs)
    phases = [program["phase"] for program in programs]
    # one step; the slots put together for the host; a validation is the first round, the others, and the score
    assert phases.count("checkpoint") <= 2
    assert phases.count("validation") <= 5
    reduced = [p for p in programs if p["phase"] == "step" and "all-reduce" in p["collectives"]]
    assert len(reduced) == 1
    gathered = {p["phase"] for p in programs if "all-gather" in p["collectives"]}
    assert gathered <= {"checkpoint", "validation", "evaluation"} | ({"step"} if task == "arc" else set())
