"""Passes that change the order of the cells every few steps."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.shell import ROOT
from tests.training.conftest import config, train
from trm.backends.cpu.device import CpuBackend
from trm.errors import UserError
from trm.evaluation import symmetry
from trm.evaluation.evaluate import Evaluation, inference_network
from trm.evaluation.passes import BLANK, Pass, fill
from trm.evaluation.solve import VIEW_GUESSES, geometry_of, keeps_rules, view_settings
from trm.evaluation.symmetry import random_views, restart_symmetries
from trm.study.reading import config_argument
from trm.study.schema import TASKS, DataConfig, EvaluationConfig, RunConfig
from trm.study.tasks import no_guesses, spec_of
from trm.training.dataset import Dataset
from trm.training.outputs import load_weights

HARD = "................12..3..4.........5......1......67..8.3.2.5.....17.....9.9....3..."


KINDS = {
    "mlp": {},
    "attention": {"mixer": "attention", "position": "none"},
    "learned": {"mixer": "attention", "position": "learned"},
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    """A model of each kind; attention without positions treats all places alike."""
    return request.param


@pytest.fixture(scope="module")
def measured(kind, dataset_folder, tmp_path_factory):
    run = config(KINDS[kind], {"steps": 20, "batch_size": 32, "lr": 3e-3})
    root = tmp_path_factory.mktemp(kind)
    train(run, dataset_folder, root)
    trained = load_weights(root / "run")
    return Evaluation(trained, Dataset(dataset_folder), EvaluationConfig(), CpuBackend())


@pytest.fixture
def data(measured):
    return measured.dataset.originals("test", measured.backend)


def logits_of(measured, data, steps, symmetry=None, views=None):
    states = Pass(measured.net, data.inputs, data.puzzle, symmetry, views)
    with torch.no_grad():
        return torch.stack([states.step()[0] for _ in range(steps)])


def test_a_state_moves_with_its_cells(kind, measured, data):
    views = random_views(measured.trained.config.data, 2, 7)
    for start in (None, restart_symmetries(measured.trained.config.data, 2)[1]):
        plain, seen = (logits_of(measured, data, 7, start, each) for each in (None, views))
        if kind == "attention":
            torch.testing.assert_close(seen, plain, atol=1e-4, rtol=1e-4)
        else:
            assert torch.equal(seen[:2], plain[:2])
            assert all((seen[step] - plain[step]).abs().max() > 1e-3 for step in range(2, 7))


def test_a_view_is_a_pass_on_the_moved_puzzle(measured, data, monkeypatch):
    """By hand: the states after two steps, put into the order of the second view, then into that of the third.

    The second sees no puzzle embedding and its first two blank cells filled with the answer.
    """
    monkeypatch.setattr(symmetry, "GUESS_FROM", 0)
    net, wanted = measured.net, []
    views = random_views(measured.trained.config.data, 2, 6, 2, guesses=2)
    with torch.no_grad():
        x = net.embed(data.inputs, data.puzzle)
        z_H, z_L = net.start(len(data.inputs), len(x))
        place = np.arange(data.inputs.shape[1])
        for turn, cells in enumerate((place, *views.cells)):
            old, tokens = np.argsort(place)[cells], net.arch.puzzle_tokens
            order = torch.from_numpy(np.concatenate([np.arange(tokens), tokens + old]))
            z_H, z_L, place = z_H[order], z_L[order], cells
            shown = data.inputs[:, torch.from_numpy(cells)].clone()
            if turn == 1:
                answers = wanted[-1].argmax(-1).t()[:, torch.from_numpy(cells)]
                for row, answer in zip(shown, answers, strict=True):
                    for cell in np.flatnonzero(row == 1)[:2]:
                        row[cell] = answer[cell]
                assert not torch.equal(shown, data.inputs[:, torch.from_numpy(cells)])
            x = net.embed(shown, None if turn == 1 else data.puzzle)
            for _ in range(2):
                z_H, z_L, logits, _ = net.step(z_H, z_L, x)
                wanted.append(logits[torch.from_numpy(np.argsort(cells))])
    found = logits_of(measured, data, 6, None, views)
    assert torch.equal(found, torch.stack(wanted))
    for changed in ({"puzzle_every": 1}, {"guesses": 0}):
        other = logits_of(measured, data, 6, None, views._replace(**changed))
        assert torch.equal(found[:2], other[:2])
        assert not torch.equal(found[2], other[2])


def test_views_without_the_puzzle_embedding_leave_the_halt_logits(measured, data):
    views = random_views(measured.trained.config.data, 2, 8, 2)
    states = Pass(measured.net, data.inputs, data.puzzle, None, views)
    with torch.no_grad():
        halts = torch.stack([states.step()[1] for _ in range(8)])
    differs = [not torch.equal(*pair) for pair in pairwise(halts)]
    assert differs == [True, False, False, True, True, False, False]


def test_wrong_answers_are_not_believed():
    """The shipped model on a hard puzzle under 6 symmetries, with views as in `trm solve`."""
    trained = load_weights(ROOT / "models" / "sudoku9_hard")
    net, _ = inference_network(trained, EvaluationConfig(), CpuBackend())
    boxes, (steps, every) = DataConfig(box_rows=3, box_cols=3), view_settings(net.h_cycles)
    question = torch.tensor([[int(cell) + 1 for cell in HARD.replace(".", "0")]], dtype=torch.uint8)
    inputs = torch.cat([each.apply(question) for each in restart_symmetries(boxes, 6)])
    assert (steps, every) == (1, 12)  # five rounds a step; of three it is (2, 6)
    views = random_views(boxes, steps, 24, every, VIEW_GUESSES)
    states = Pass(net, inputs, torch.zeros(6, dtype=torch.int32), views=views)
    believed = 0
    with torch.no_grad():
        for _ in range(24):
            logits, halt = states.step()
            answers = states.answers(logits).numpy() - 1
            wrong = ~keeps_rules(geometry_of(trained), inputs.numpy() - 1, answers)
            believed += int((wrong & (halt.numpy() > 0)).sum())
    assert believed == 0


def test_rows_that_stay_go_on_unchanged(measured, data, monkeypatch):
    monkeypatch.setattr(symmetry, "GUESS_FROM", 0)
    views, rows = random_views(measured.trained.config.data, 1, 5, guesses=2), torch.tensor([1, 4, 5])
    states = Pass(measured.net, data.inputs, data.puzzle, None, views)
    with torch.no_grad():
        states.step()
        states.keep(rows)
        found = [states.step()[0] for _ in range(4)]
    torch.testing.assert_close(torch.stack(found), logits_of(measured, data, 5, None, views)[1:, :, rows])


def with_options(measured, **options):
    """Another evaluation of the same run."""
    return Evaluation(measured.trained, measured.dataset, EvaluationConfig(**options), measured.backend)


def evaluated(measured, **options):
    """The document of an evaluation, and its results by policy, steps and split."""
    found = with_options(measured, **options).run()
    return found, {(r["policy"], r["steps"], r["split"]): r for r in found["results"]}


def test_evaluations_record_what_views_change(kind, measured):
    options = {"unroll": (1, 4), "restarts": (2,), "steps": 4, "traces": 2}
    (one, plain), (other, seen) = (evaluated(measured, **options, view_steps=steps) for steps in (0, 1))
    assert [found["evaluation"]["view_steps"] for found in (one, other)] == [0, 1]
    same = ("fixed", 1, "test")
    assert seen[same]["cross_entropy"] == plain[same]["cross_entropy"]
    if kind != "attention":
        for key in (("fixed", 4, "test"), ("fixed", 4, "train")):
            assert seen[key]["cross_entropy"] != plain[key]["cross_entropy"]
        assert seen["restarts", 4, "test"]["accuracy"] != plain["restarts", 4, "test"]["accuracy"]
        halts = [[trace["halt"] for trace in found["traces"]] for found in (one, other)]
        assert [row[0] for row in halts[1]] == [row[0] for row in halts[0]]
        assert halts[1] != halts[0]


def test_a_cell_that_has_no_answer_stays_blank():
    questions = torch.tensor([[5, 1, 1, 1, 3, 1]], dtype=torch.uint8)
    answers = torch.tensor([[4, 0, 1, 2, 2, 2]], dtype=torch.uint8)
    assert fill(questions, answers, 3).tolist() == [[5, 1, 1, 2, 3, 1]]
    assert torch.equal(fill(questions, answers, 0), questions)
    assert {spec_of(name).blank for name in TASKS if spec_of(name).takes_hints} == {BLANK}


def test_guesses_that_come_too_late_are_refused(measured):
    for view_steps, first in ((2, 18), (6, 18), (16, 16), (40, 40)):
        guessing = {"view_steps": view_steps, "view_guesses": 2}
        sentence = f"the first guess comes after step {first}, and no pass takes more than {first}: raise"
        with pytest.raises(UserError, match=sentence):
            with_options(measured, **guessing, unroll=(first,))
        views = with_options(measured, **guessing, unroll=(first + 1,), view_puzzle_every=3).views
        assert (views.steps, views.puzzle_every, views.guesses) == (view_steps, 3, 2)
        assert [taken for taken in range(first + 1) if views.guesses_at(taken)] == [first]


def test_views_are_random_orders_that_keep_the_rules():
    data = DataConfig(box_rows=3, box_cols=3)
    assert random_views(data, 0, 64) is None
    assert random_views(data, 8, 8) is None
    views = random_views(data, 8, 64)
    assert len(views.cells) == 7
    assert [sorted(cells.tolist()) == list(range(81)) for cells in views.cells] == [True] * 7
    assert len({cells.tobytes() for cells in views.cells}) == 7
    longer = random_views(data, 8, 128)  # begins with the same ones
    assert all(np.array_equal(*pair) for pair in zip(views.cells, longer.cells))
    starts = [at for at in range(100) if views.at(at) is not None]
    assert starts == [*range(8, 100, 8)]
    assert views.at(64) is views.cells[0]
    views = random_views(data, 8, 64, 3)
    assert [views.show_puzzle(taken) for taken in range(0, 64, 8)] == [True, False, False] * 2 + [True, False]
    views = random_views(data, 8, 64, guesses=2)
    assert [views.guesses_at(taken) for taken in range(0, 64, 4)] == [0] * 4 + [0, 0, 2, 2] * 3


def test_what_has_no_views_is_refused_in_one_sentence():
    maze = RunConfig(data=DataConfig(task="maze", source="generate", maze_size=9, min_path=9))
    guessing = EvaluationConfig(view_steps=2, view_guesses=2, unroll=(64,))
    assert "maze has no blank cells that a view can show filled" in no_guesses(maze, guessing)
    assert not no_guesses(RunConfig(), guessing)
    for given, words in (
        ('{"view_puzzle_every": 3}', "view_puzzle_every=3 needs views: give view_steps"),
        ('{"view_guesses": 3}', "view_guesses=3 needs views: give view_steps"),
    ):
        with pytest.raises(UserError, match=words):
            config_argument(EvaluationConfig, given, "--evaluation")
