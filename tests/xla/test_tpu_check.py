"""Tiny programs traced and compiled by libtpu for a v4 host: memory under a bound, nothing gathered, one all-reduce."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.shell import ROOT, python
from trm.study.schema import RunConfig

from .steps import config


def tpu_check(run: RunConfig, cache: Path, *more: str, **env: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and results."""
    options = ("--run-config", run.model_dump_json(), "--cache", cache, "--json", *more)
    done = python("-m", "trm", "tpu-check", *options, env=env, cwd=ROOT, timeout=900)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def sized(task: str) -> RunConfig:
    """A tiny run of each task, with kernels for Sudoku alone (the others' rows are too short or not bfloat16 lanes)."""
    run = config("attention" if task == "maze" else "mlp", batch_size=24, precision="bfloat16", snapshots=1)
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


REHEARSED = """
import json, os, pathlib, sys
from trm.checks.tpu_check import worker
from trm.study.slices import parse_slice
where = parse_slice("v4-8")
os.environ.update(worker.environment(where))
worker.set_libtpu_flags(where)
from tests.xla.steps import config
from tests.xla.test_tpu_check import sized
from trm.checks.tpu_check.check import sizes_of
from trm.checks.tpu_check.tracing import rehearse

def traced(run, **options):
    return rehearse(run, sizes_of(run), **options)[0].programs

found = {"float32": [{"phase": phase, "text": text} for phase, text in
                     traced(config("attention", precision="float32"), evaluation=False)]}
wide = config("attention", batch_size=16, precision="bfloat16")
wide = wide.model_copy(update={"model": wide.model.model_copy(update={"d_model": 128, "layers": 1, "h_cycles": 1})})
runs = {"kernels": traced(wide, evaluation=False)} | {task: traced(sized(task)) for task in ("maze", "arc")}
for name, programs in runs.items():
    chosen = [each for each in programs if name != "kernels" or each[0] == "step"]
    found[name] = [{"phase": phase, "text": text} | worker.compiled(text, where) for phase, text in chosen]
pathlib.Path(sys.argv[1]).write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory) -> dict[str, list[dict[str, Any]]]:
    """Programs of a run in float32, of one with kernels for attention, and of all phases of two tasks."""
    file = tmp_path_factory.mktemp("rehearsed") / "programs.json"
    done = python("-m", "tests.script", REHEARSED, file, cwd=ROOT, timeout=900, check=True)
    assert "mat mul precision" not in done.stderr
    return json.loads(file.read_text())


def check_programs(programs: list[dict[str, Any]], gathers: bool = False) -> dict[str, Any]:
    """All programs of a run: each fits, and one, which is returned, is the step, whose only sums over the chips are
    those of the gradients. `gathers`: it gathers, once, the gradients of the puzzle vectors of a batch's rows."""
    wanted = {"step", "report", "validation", "checkpoint", "evaluation"}
    assert wanted <= {program["phase"] for program in programs}
    assert all(program["fits"] and 0 < program["gib"] < 1 for program in programs)
    phases = [program["phase"] for program in programs]
    # one step; the slots put together for the host; a validation is the first round, the others, and the score
    assert phases.count("checkpoint") <= 2
    assert phases.count("validation") <= 5
    (step,) = (p for p in programs if p["phase"] == "step" and "all-reduce" in p["collectives"])
    sums = step["collectives"]["all-reduce"]
    assert sums <= 3
    assert step["collectives"] == {"all-reduce": sums} | ({"all-gather": 1} if gathers else {})
    assert step["gib"] < 0.05
    gathered = {p["phase"] for p in programs if "all-gather" in p["collectives"] and p is not step}
    assert gathered <= {"checkpoint", "validation", "evaluation"}
    return step


def products(program: dict[str, Any]) -> int:
    return program["text"].count("stablehlo.dot_general")


@pytest.mark.parametrize("task", ["maze", "arc"])
def test_every_program_of_a_run_compiles(task, rehearsed):
    programs = rehearsed[task]
    step = check_programs(programs, gathers=task == "arc")
    # else each chip of a pod's compiled program held the slots of all, from the second step on
    given = step["text"].partition("@main(")[2].partition(") -> ")[0]
    rows = re.findall(r"tensor<(?:\d+x)?24x[^>]*>(?: {[^}]*})?", given)
    assert len(rows) > 5
    assert all(re.search(r"devices=\[(1,)?4", row) for row in rows), rows
    evaluation = [products(program) for program in programs if program["phase"] == "evaluation"]
    one_step = max(products(program) for program in programs if program["phase"] == "validation")
    assert 0 < max(evaluation) <= one_step  # no program holds two steps
    assert len(evaluation) <= 40


def test_the_command_compiles_every_program_of_a_run(tmp_path):
    code, (step, found) = tpu_check(sized("sudoku"), tmp_path, "--steps", "all")
    assert code == 0
    assert (step["fits"], step["chips"], step["remat"]) == (True, 4, False)
    recorded = check_programs(found["programs"])
    assert (step["gib"], step["collectives"]) == (recorded["gib"], recorded["collectives"])
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_kernels_of_attention_are_compiled(rehearsed):
    steps = [program["collectives"].keys() for program in rehearsed["kernels"] if program["collectives"]]
    assert steps == [{"all-reduce"}]
    assert any("tpu_custom_call" in program["text"] for program in rehearsed["kernels"])


@pytest.mark.parametrize(("name", "passes"), [("float32", "HIGHEST"), ("maze", "DEFAULT")])
def test_float32_is_multiplied_as_float32(name, passes, rehearsed):
    text = "".join(program["text"] for program in rehearsed[name] if program["phase"] == "step")
    assert set(re.findall(r"dot_general.*precision = \[(.*?)\]", text)) == {f"{passes}, {passes}"}


def test_what_does_not_fit_fits_with_the_knob_that_is_named(tmp_path):
    """The variable itself: tests/checks/tpu_check/test_remat.py."""
    run = config("mlp", batch_size=64, precision="bfloat16")
    code, (found,) = tpu_check(run, tmp_path, TRM_XLA_REMAT="0")
    assert code == 0
    needs = found["gib"]
    bound = {"TRM_XLA_HBM_GIB": str(0.9 * needs)}  # a few percent the compiler saves by itself
    code, (found,) = tpu_check(run, tmp_path, TRM_XLA_REMAT="0", **bound)
    assert (code, found["fits"]) == (1, False)
    assert found["gib"] == needs  # the batch is not split: that would be another program
    assert found["advice"].startswith("TRM_XLA_REMAT=1 makes it fit (")
