"""Training rows with extra clues: the batch, the curriculum, the adaptive level and its resume."""

import numpy as np
import pytest
import torch

from tests.training.conftest import config, first_losses, steps, train, trainer
from tests.training.puzzles import write_dataset
from trm.data.hints import BLANK
from trm.errors import UserError
from trm.study.schema import CurriculumStage
from trm.training import adaptive
from trm.training.dataset import Dataset
from trm.training.step import HintBatch, transformed


def offered(found, step):
    """The rows that the batch of `step` offers."""
    batch = found.feed.batch(step)
    hints = adaptive.hints(batch.hints, found.state.hint_level) if isinstance(batch, HintBatch) else None
    return transformed(found.program.originals, batch, hints)


def test_rows_are_those_without_hints_but_for_more_clues(dataset_folder, tmp_path):
    plain = trainer(config(), dataset_folder, tmp_path, "plain")
    hinted = trainer(config(data={"hints": [2, 4]}), dataset_folder, tmp_path, "hinted")
    for step in (1, 2):
        before, after = offered(plain, step), offered(hinted, step)
        assert torch.equal(before.labels, after.labels)
        added = before.inputs != after.inputs
        assert set(added.sum(1).tolist()) <= {2, 3, 4}
        assert (before.inputs[added] == BLANK).all()
        assert torch.equal(after.inputs[added], after.labels[added])
    assert not torch.equal(offered(hinted, 1).inputs, offered(hinted, 2).inputs)


def test_hints_reach_augmented_copies(tmp_path):

    folder = write_dataset(tmp_path / "data", 20, 8, 8, augmentations=5)
    found = trainer(config(data={"hints": [16, 16], "augmentations": 5}), folder, tmp_path)
    rows = offered(found, 1)
    assert torch.equal(rows.inputs, rows.labels)  # every cell is given


def test_a_curriculum_changes_the_hints_at_its_steps(dataset_folder, tmp_path):
    stages = [{"until": 0.25, "hints": [16, 16]}, {"until": 0.5, "hints": [1, 1]}]
    found = trainer(config(data={"curriculum": stages}), dataset_folder, tmp_path)
    blank = [int((offered(found, step).inputs == BLANK).sum()) for step in (3, 4, 6, 7)]
    plain = trainer(config(), dataset_folder, tmp_path, "plain")
    own = [int((offered(plain, step).inputs == BLANK).sum()) for step in (3, 4, 6, 7)]
    assert blank == [0, own[1] - 16, own[2] - 16, own[3]]  # 16 rows


def test_hints_and_stages_of_recursion_go_together(dataset_folder, tmp_path):
    stages = (CurriculumStage(until=0.5, h_cycles=1, l_cycles=1),)
    data = {"hints": [0, 3], "curriculum": [{"until": 0.5, "hints": [3, 6]}]}
    run = config(training={"curriculum": stages, "micro_batches": 2}, data=data)
    done = train(run, dataset_folder, tmp_path)
    assert [row["train/hints"] > 2.9 for row in done.record.rows] == [True, True, False, False]


def test_micro_batches_get_the_same_hints(dataset_folder, tmp_path):
    data = {"hints": "auto"}
    whole = first_losses(config(data=data), dataset_folder, tmp_path, 4, "whole")
    split = config(training={"micro_batches": 2}, data=data)
    parts = first_losses(split, dataset_folder, tmp_path, 4, "parts")
    assert parts == pytest.approx(whole, rel=1e-5)


def test_the_level_falls_while_rows_are_solved_and_rises_while_they_are_not():
    level = adaptive.initial_level(81, torch.device("cpu"))
    assert level == 27
    one, none = torch.tensor(1.0), torch.tensor(0.0)
    adaptive.update(level, one, one, 81)
    assert level == 26
    adaptive.update(level, none, one, 81)
    adaptive.update(level, one / 2, one, 81)
    adaptive.update(level, none, none, 81)
    assert level == 27
    for _ in range(100):
        adaptive.update(level, none, one, 81)
    assert level == 81
    for _ in range(100):
        adaptive.update(level, one, one, 81)
    assert level == -4
    drawn = torch.linspace(0, 1, 101)[:-1]
    assert not adaptive.hints(drawn, level).any()
    spread = adaptive.hints(drawn, torch.tensor(10.0))
    assert (spread.min(), spread.max()) == (6, 14)


def test_a_run_at_the_level_follows_its_own_success(dataset_folder, tmp_path):
    """A model that solves nothing gets more hints at every step, by the rule and by nothing else."""
    found = train(config(training={"steps": 6, "lr": 1e-9}, data={"hints": "auto"}), dataset_folder, tmp_path)
    # all rows end after 4 steps: one batch has finished, none of it solved
    assert found.state.hint_level.item() == pytest.approx(16 / 3 + 1, abs=0.2)
    assert found.record.rows[-1]["train/hints"] > 0


def test_an_adaptive_run_resumes_bit_for_bit(dataset_folder, tmp_path):
    run = config(training={"lr": 3e-3}, data={"hints": "auto"})
    whole = train(run, dataset_folder, tmp_path, "whole")
    first = trainer(run, dataset_folder, tmp_path, "parts")
    steps(first, 1, 7)
    first.save()
    level = first.state.hint_level.item()
    second = trainer(run, dataset_folder, tmp_path, "parts")
    assert second.record.done == 7
    assert second.state.hint_level.item() == level != adaptive.initial_level(16, torch.device("cpu"))
    second.run()
    assert torch.equal(second.state.params, whole.state.params)
    assert torch.equal(second.state.hint_level, whole.state.hint_level)


def test_a_checkpoint_from_before_a_knob_was_added_is_still_resumed(dataset_folder, tmp_path):
    found = trainer(config(), dataset_folder, tmp_path)
    steps(found, 1, 1)
    for section, knob in (("data", "hints"), ("data", "curriculum"), ("model", "multiple")):
        found.saver.identity["config"][section].pop(knob)
    found.save()
    assert trainer(config(), dataset_folder, tmp_path).record.done == 1
    with pytest.raises(UserError, match=r"data.hints is \[0, 0\] there and \[0, 2\] here"):
        trainer(config(data={"hints": [0, 2]}), dataset_folder, tmp_path)


def test_validation_and_test_have_no_hints(dataset_folder, tmp_path):
    found = trainer(config(data={"hints": [16, 16]}), dataset_folder, tmp_path)
    data = Dataset(dataset_folder)
    assert np.array_equal(found.validation.inputs.numpy(), data.split("validation").inputs)
