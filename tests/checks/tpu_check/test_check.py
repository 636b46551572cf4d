"""Verdicts, advice and the table from the numbers of compiled programs (kept ones, in the cache's own format)."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trm.checks.tpu_check import check as module
from trm.checks.tpu_check.check import WORKER, check, imported, program_key, sizes_of, table, tpu_python
from trm.cli import main
from trm.errors import UserError
from trm.pipeline.project import open_project
from trm.study.schema import RunConfig
from trm.study.slices import Slice, parse_slice

HOST = parse_slice("v4-8")


def run(**training: Any) -> RunConfig:
    return RunConfig.model_validate({"training": {"batch_size": 3072, **training}})


def keep(
    folder: Path, config: RunConfig, remat: bool | None = None, where: Slice = HOST, **numbers: Any
) -> None:
    answer = {"fits": True, "gib": 12.0, "collectives": {}, "remat": bool(remat)} | numbers
    (folder / f"{program_key(config, where, 'train', remat)}.json").write_text(json.dumps(answer))


@pytest.fixture
def checked(tmp_path):
    """Checks a run's training step by the numbers that are kept; returns the result, and its row of the table."""

    def result(config: RunConfig | None = None, where: Slice = HOST) -> Any:
        found = check(config or run(), where, tmp_path)
        return found, table([("it", found)], where).splitlines()[1]

    return result


def test_chips_of_other_generations_have_their_own_memory(tmp_path, checked):
    v6e, v5e = parse_slice("v6e-4"), parse_slice("v5litepod-4")
    keep(tmp_path, run(), where=v6e, gib=20.0)
    result, row = checked(where=v6e)
    assert (result.fits, result.rows_per_chip, result.advice) == (True, 768, "")
    assert "fits" in row
    keep(tmp_path, run(), where=v5e, gib=20.0)
    keep(tmp_path, run(), where=v5e, remat=True, gib=16.0)
    keep(tmp_path, run(micro_batches=2), where=v5e, gib=10.0)
    result, row = checked(where=v5e)
    assert not result.fits  # 20 GiB of 15.75
    assert "DOES NOT FIT (15.75 GiB)" in row
    assert result.advice == "training.micro_batches=2 makes it fit (10.0 GiB)"


def test_programs_differ_by_shape_and_not_by_rates():
    key = program_key(run(), HOST, "train")
    assert key == program_key(run(lr=1e-3, steps=5), HOST, "train")
    assert key != program_key(run(micro_batches=2), HOST, "train")
    assert key != program_key(run(), parse_slice("v4-64"), "train")


def test_what_determines_a_program_follows_from_imports():
    found = imported(WORKER)
    assert {"trm.evaluation.policies", "trm.training.metrics", "trm.training.state"} <= found.keys()
    assert {path.parent.name for path in found.values()} >= {"optim", "tpu", "evaluation"}
    assert "trm.pipeline.plan" not in found


def test_what_makes_it_fit_is_said(tmp_path, checked):
    keep(tmp_path, run(), fits=False, gib=39.5)
    keep(tmp_path, run(), remat=True, gib=8.4)
    result, row = checked()
    assert not result.fits
    assert result.advice.startswith("TRM_XLA_REMAT=1 makes it fit (8.4 GiB)")
    assert "DOES NOT FIT (30.75 GiB)" in row


def test_rows_must_divide_over_the_chips(checked):
    with pytest.raises(UserError, match="30 rows .* do not divide over the 4 chips of v4-8"):
        checked(run(batch_size=30))


def test_a_missing_environment_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("TRM_TPU_PYTHON", str(tmp_path / "python"))
    with pytest.raises(UserError, match="build the environment envs/tpu"):
        tpu_python()


def test_the_command_knows_the_runs_of_the_study(capsys):
    assert main(["tpu-check", "--run", "no-such-run"]) == 2
    assert "the study has no run 'no-such-run'" in capsys.readouterr().err
    assert main(["tpu-check", "--topology", "v5e-8"]) == 2
    assert "unknown TPU slice 'v5e-8'" in capsys.readouterr().err


def test_the_command_says_what_it_does_and_one_program_s_failure_hides_no_other(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRM_TPU_PYTHON", sys.executable)  # asked for, never started
    pod, runs = parse_slice("v4-64"), open_project({"study": "config/laptop.yaml"}).runs

    alike: dict[str, list[str]] = {}
    for name, one in runs.items():
        if one.config.training.batch_size % pod.chips == 0:
            alike.setdefault(program_key(one.config, pod, "train"), []).append(name)
    first, second, *_ = next(names for names in alike.values() if len(names) > 1)
    small = next(name for name, one in runs.items() if one.config.training.batch_size == 16)
    keep(tmp_path, runs[first].config, where=pod)
    words = f"tpu-check --study config/laptop.yaml --topology v4-64 --cache {tmp_path}"
    options = [*words.split(), "--run", first, "--run", second]
    assert main(options) == 0
    shown = capsys.readouterr()
    assert "v4-64, 32 chips: 2 runs to check with 1 program; 1 known" in shown.err
    assert f"{first} and 1 more" in shown.out
    assert main([*options, "--run", small]) == 1
    shown = capsys.readouterr()
    assert "16 rows" in shown.err
    assert "do not divide over the 32 chips" in shown.err
    assert f"{first} and 1 more" in shown.out


def test_a_canvas_and_the_puzzles_evaluated_are_the_run_s_own():
    arc = {"task": "arc", "source": "json", "files": ["x"], "arc_side": 4}
    assert sizes_of(RunConfig.model_validate({"data": arc})).seq_len == 16
    few = run().model_copy(update={"data": run().data.model_copy(update={"test_puzzles": 100})})
    for what, same in (("run", False), ("train", True)):
        assert (program_key(run(), HOST, what) == program_key(few, HOST, what)) is same
