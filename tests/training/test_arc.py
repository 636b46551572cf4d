"""ARC in the engine: every copy under its own identifier, and two attempts by vote."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.conftest import build
from tests.training.conftest import config, train, trainer
from trm.backends.cpu.device import CpuBackend
from trm.data.sampler import Sampler
from trm.errors import UserError
from trm.evaluation.evaluate import evaluate_run, inference_network
from trm.evaluation.votes import vote_results
from trm.model.inference import InferenceNetwork
from trm.study.fingerprint import evaluation_fingerprint, evaluation_marks
from trm.study.records import check_evaluation
from trm.study.schema import DataConfig, EvaluationConfig, RunConfig
from trm.tasks.arc.augment import ArcAugmenter
from trm.tasks.arc.spec import FAMILIES
from trm.training.dataset import Dataset
from trm.training.feed import Feed
from trm.training.outputs import load_weights
from trm.training.step import RowBatch

DATA = {"task": "arc", "source": "generate", "arc_side": 6, "augmentations": 3}
DATA |= {"train_puzzles": 5, "validation_puzzles": 5, "test_puzzles": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return build(DataConfig(**DATA), tmp_path_factory.mktemp("arc"))


def run_config(seed=0) -> RunConfig:
    found = config(None, {"steps": 6, "puzzle_lr": 1e-2}, seed)
    return found.model_copy(update={"data": DataConfig(**DATA)})


def test_a_batch_holds_augmented_copies_under_their_own_identifiers(folder):
    found = Dataset(folder)
    batch = Feed(run_config(), found, CpuBackend()).batch(3)
    assert isinstance(batch, RowBatch)
    split = found.split("train")
    wanted = ArcAugmenter(split).rows(Sampler.of(split, 16, 0).batch(2))
    for tensor, array in zip((batch.inputs, batch.labels, batch.puzzle), wanted, strict=True):
        assert (tensor.numpy() == array).all()
    assert set(wanted[2].tolist()) - set(split.puzzle_identifiers.tolist())


def test_training_moves_the_table_rows_of_the_copies_it_saw(folder, tmp_path):
    found = trainer(run_config(), folder, tmp_path)
    table = found.state.puzzle_table
    assert len(table) == 1 + 15 * 4
    batches = [found.feed.batch(step) for step in range(1, 7)]
    assert found.run() == 0
    moved = set(torch.nonzero(table.abs().sum(1)).flatten().tolist())
    seen = set(torch.cat([batch.puzzle for batch in batches]).tolist())
    assert moved
    assert moved <= seen
    assert any((identifier - 1) % 4 for identifier in moved)  # copies, not originals alone


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    return train(run_config(), folder, tmp_path_factory.mktemp("trained"))


class Solver(InferenceNetwork):
    """Answers from the labels of the copies asked for; the wrong ones give the question back, so they agree."""

    def __init__(self, net, labels, wrong):
        self.__dict__ = net.__dict__
        self._labels, self._wrong = labels, wrong

    def embed(self, inputs_BS, puzzle_ids_B):
        self._asked = list(zip(map(bytes, inputs_BS.numpy()), puzzle_ids_B.tolist()))
        return super().embed(inputs_BS, puzzle_ids_B)

    def step(self, z_H, z_L, x):
        z_H, z_L, _logits, halt = super().step(z_H, z_L, x)
        answers = [
            np.frombuffer(asked[0], np.uint8) if (asked[1] - 1) % 4 in self._wrong else self._labels[asked]
            for asked in self._asked
        ]
        symbols = torch.from_numpy(np.stack(answers)).long()
        return z_H, z_L, torch.nn.functional.one_hot(symbols.t(), 12).float(), halt


@pytest.mark.parametrize(
    ("wrong", "copies", "first", "second"),
    [
        ((), None, 1.0, 1.0),
        ((0,), None, 1.0, 1.0),  # three copies outvote the original
        ((1, 2, 3), None, 0.0, 1.0),  # and the other way around: the second attempt is right
        ((0, 1, 2, 3), None, 0.0, 0.0),
        ((0,), 0, 0.0, 0.0),  # only the original votes
    ],
)
def test_copies_vote(folder, trained, wrong, copies, first, second):
    dataset = Dataset(folder)
    test = dataset.split("test")
    augmenter = ArcAugmenter(test, shifted=False)
    rows, copy = np.repeat(np.arange(test.examples), 4), np.tile(np.arange(4), test.examples)
    questions, answers = augmenter.canvases(rows, copy)
    asked = zip(map(bytes, questions), augmenter.identifiers(rows, copy).tolist())
    backend = CpuBackend()
    net, _ = inference_network(load_weights(trained.out), EvaluationConfig(), backend)
    solver = Solver(net, dict(zip(asked, answers)), wrong)
    results, tasks = vote_results(solver, dataset, copies, None, 1, 10.0, backend)
    measured = {result["policy"]: result for result in results}
    assert measured["vote_first"]["exact_accuracy"] == first
    assert measured["vote"]["exact_accuracy"] == second
    assert measured["vote"]["puzzles"] == 5
    assert measured["vote"]["correct"] == 5 * second
    assert measured["vote"]["restarts"] == (4 if copies is None else 1)
    assert [task["vote"] for task in tasks] == [second] * 5
    assert {task["task"].split("-")[0] for task in tasks} == set(FAMILIES)


def evaluated(run, folder, **settings):
    """The document of an evaluation."""
    out = run / "evaluation-1.json"
    evaluate_run(run, folder, EvaluationConfig(**settings), out, None, CpuBackend())
    return json.loads(out.read_text())


def test_an_evaluation_holds_the_votes(folder, trained):
    evaluations = [evaluated(trained.out, folder, **more) for more in ({}, {"copies": 2, "test_puzzles": 3})]
    votes = [next(r for r in found["results"] if r["policy"] == "vote") for found in evaluations]
    assert [(vote["puzzles"], vote["restarts"]) for vote in votes] == [(5, 4), (3, 3)]
    assert votes[1]["flops_per_puzzle"] == pytest.approx(votes[0]["flops_per_puzzle"] * 3 / 4)
    assert [len(found["tasks"]) for found in evaluations] == [5, 3]


def test_an_evaluation_names_how_ties_between_votes_are_decided(folder, trained):
    """Earlier versions wrote no such entry: their files keep their names and are not the study's."""
    run, settings = trained.out, EvaluationConfig()
    training, document = json.loads((run / "training.json").read_text()), evaluated(run, folder)
    earlier = {key: value for key, value in document.items() if key not in ("ties", "checksum")}
    marks = evaluation_marks(run_config().data)
    new, old = (f"evaluation-{evaluation_fingerprint(settings, each)[:8]}.json" for each in (marks, {}))
    check_evaluation(Path(new), document, training)
    check_evaluation(Path(old), earlier, training)
    for name, each in ((new, earlier), (old, document)):
        with pytest.raises(UserError, match="belongs to evaluation-"):
            check_evaluation(Path(name), each, training)


def test_from_tasks_to_the_figure(folder, trained, tmp_path):
    """Every file between the data set and the published sentence, as the pipeline hands them on."""
    from trm.analysis.drawing import styled
    from trm.analysis.kinds import FIGURE, draw
    from trm.analysis.specs import TableSpec
    from trm.analysis.tables import collect, load, save

    runs = []
    other = train(run_config(1), folder, tmp_path, "arc-s1")
    for seed, out in enumerate((trained.out, other.out)):
        evaluated(out, folder)
        entry = {"run": out.name, "seed": seed, "directory": str(out)}
        runs.append(entry | {"evaluations": ["evaluation-1.json"]})
    point = {"label": "base", "runs": runs}
    spec = TableSpec.model_validate({"name": "arc", "scale": "laptop", "study": "test", "points": [point]})
    save(collect(spec), tmp_path / "arc.csv")
    with styled():
        drawing = draw(FIGURE.validate_python({"kind": "votes"}), [load(tmp_path / "arc.csv")], [])
    assert drawing.sentence.startswith("Share of tasks solved with no vote: the task as it is is 0.0 % ")
    assert "5 tasks in all." in drawing.sentence
    assert "in 4 versions" in drawing.caption
    assert len(drawing.canvas.axes[1].get_yticklabels()) == 5
