"""Training rows with extra clues: the batch and the curriculum."""

import torch

from tests.training.conftest import config, steps, train, trainer
from tests.training.puzzles import write_dataset
from trm.data.hints import BLANK
from trm.study.schema import CurriculumStage
from trm.training.step import transformed


def offered(found, step):
    """The rows that the batch of `step` offers."""
    return transformed(found.program.originals, found.feed.batch(step))


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
    assert torch.equal(hinted.validation.inputs, plain.validation.inputs)


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


def test_a_checkpoint_from_before_a_knob_was_added_is_still_resumed(dataset_folder, tmp_path):
    found = trainer(config(), dataset_folder, tmp_path)
    steps(found, 1, 1)
    for section, knob in (("data", "hints"), ("data", "curriculum"), ("model", "multiple")):
        found.saver.identity["config"][section].pop(knob)
    found.save()
    assert trainer(config(), dataset_folder, tmp_path).record.done == 1
