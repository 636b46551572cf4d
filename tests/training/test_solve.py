"""`trm solve`: a model trained here, and what it says of its answers."""

import csv
import io
import itertools
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.training.conftest import config, train
from tests.training.puzzles import write_dataset
from trm.cli import main
from trm.errors import UserError
from trm.evaluation.solve import fault, find_models, keeps_rules, panels, solve
from trm.evaluation.symmetry import restart_symmetries
from trm.play.animation import animation
from trm.study.schema import DataConfig
from trm.tasks.sudoku.geometry import Geometry, from_text, to_text
from trm.training.dataset import Dataset
from trm.training.outputs import load_weights

MODELS = Path(__file__).parents[2] / "models"
FOUR = Geometry(2, 2)
ANSWER = "1234341221434321"
PUZZLE = "12..34...1.3.321"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has learnt its few puzzles by heart, and their texts."""
    root = tmp_path_factory.mktemp("solve")
    data = write_dataset(root / "data", 6, 4, 6)
    run = config({"d_model": 32}, {"steps": 150, "lr": 5e-3, "warmup_steps": 10})
    train(run, data, root, log_every=150, evals=1)
    puzzles = Dataset(data).split("train")
    return root / "run", [(to_text(q - 1), to_text(a - 1)) for q, a in zip(puzzles.inputs, puzzles.labels)]


def solve_with(model, *words) -> int:
    """Exit code of `trm solve`."""
    return main(["solve", *map(str, words), "--model", str(model), "--threads", "1"])


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


def test_a_puzzle_is_solved_and_its_answer_grows(trained, capsys, monkeypatch):
    """Spinning threads would take the time of those that they wait for; a long search is not silent."""
    run, puzzles = trained
    question, answer = puzzles[0]
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    clock = SimpleNamespace(monotonic=itertools.count(step=3.0).__next__)
    monkeypatch.setattr("trm.data.progress.time", clock)
    assert solve_with(run, question) == 0
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    said = capsys.readouterr()
    assert said.out.split()[0] == "puzzle"
    for words in (answer, "keeps every rule and clue", "step 1", "It is the puzzle's only solution."):
        assert words in said.out
    sentence = r"solving with run: .* of 1 puzzles solved, step 1 of \d+, start 1 of 4"
    assert re.search(sentence, said.err)


def test_a_csv_file_is_solved_and_written(trained, tmp_path, capsys):
    run, puzzles = trained
    file, out = tmp_path / "puzzles.csv", tmp_path / "out.csv"
    full = puzzles[0][1]  # a complete grid is not counted
    file.write_text("question,answer\n" + "".join(f"{q},{a}\n" for q, a in [*puzzles, (full, full)]))
    code = solve_with(run, file, "--out", out)
    *rows, last = rows_of(out.read_text())
    solved = [row["solved"] == "1" for row in rows]
    assert code == (0 if all(solved) else 1)
    assert sum(solved) >= 5
    assert (last["answer"], last["solved"]) == (full, "")
    assert [row["question"] for row in rows] == [q for q, _ in puzzles]
    for row in rows:
        right = keeps_rules(FOUR, *(from_text(row[name])[None] for name in ("question", "answer")))[0]
        assert right == (row["solved"] == "1")
    said = rf"{sum(solved)} of 6 puzzles solved .*; 1 are complete grids"
    assert re.search(said, capsys.readouterr().out)
    assert solve_with(run, full) == 0
    assert "nothing to solve" in capsys.readouterr().out


def test_ctrl_c_keeps_what_is_solved(trained, tmp_path, monkeypatch, capsys):
    run, puzzles = trained
    file, out = tmp_path / "puzzles.txt", tmp_path / "out.csv"
    file.write_text("\n".join(question for question, _ in puzzles))

    def interrupt(progress, done, words):
        if done >= 2:
            raise KeyboardInterrupt  # as Python does at SIGINT, unless its parent ignores that

    monkeypatch.setattr("trm.evaluation.solve.Progress.update", interrupt)
    monkeypatch.setattr("trm.model.inference.inference_batch", lambda *sizes: 2)
    assert solve_with(run, file, "--out", out) == 130
    solved = [row["answer"] for row in rows_of(out.read_text()) if row["solved"] == "1"]
    assert set(solved) & set(dict(puzzles).values()) == set(solved) != set()
    assert f"{len(solved)} of 6 puzzles solved" in (said := capsys.readouterr().out)
    assert "stopped by Ctrl-C" in said


def test_a_file_takes_the_training_precision_unless_told(tmp_path, monkeypatch, capsys):
    file, widened = tmp_path / "one.csv", []
    file.write_text("question\n.4..1.32........4....6..2..4.......3\n")
    monkeypatch.setattr("trm.evaluation.solve.in_float32", lambda trained: widened.append(trained) or trained)
    for options, times in (((), 0), (("--precision", "training"), 0), (("--precision", "float32"), 1)):
        solve_with(MODELS / "sudoku6", file, *options)
        assert len(widened) == times
    said = capsys.readouterr()
    assert len(rows_of(said.out)) > 0  # without --out the answers are printed
    assert "1 of 1 puzzles solved" in said.err


def test_many_puzzles_come_from_the_standard_input(trained, monkeypatch, capsys):
    """One a line, without answers; those without one solution are said and not given to the model."""
    run, puzzles = trained
    lines = [puzzles[0][0], "", "1" + "." * 15, "11" + "." * 14, puzzles[1][0]]
    monkeypatch.setattr("sys.stdin", type("In", (), {"buffer": io.BytesIO("\n".join(lines).encode())}))
    assert solve_with(run, "-") in (0, 1)
    said = capsys.readouterr()
    rows = rows_of(said.out)
    assert [row["solutions"] for row in rows] == ["one", "several", "none", "one"]
    assert [row["question"] for row in rows] == [line for line in lines if line]
    assert (rows[0]["answer"], rows[2]["answer"]) == (puzzles[0][1], "." * 16)
    assert "of 4 puzzles solved" in said.err
    assert "1 have no solution; 1 have several solutions" in said.err
    assert "the file's" not in said.err


def test_a_puzzle_says_how_many_solutions_it_has(trained, capsys):
    """And whether the answer breaks the rules: a run that knows no such puzzle."""
    options = ["--steps", "1", "--restarts", "1"]
    assert solve_with(trained[0], "12........3...4.", *options) == 1
    assert capsys.readouterr().out == "The puzzle has no solution.\n"
    code = solve_with(trained[0], "." * 16, *options)
    said = capsys.readouterr().out
    assert "The puzzle has several solutions" in said
    assert ("breaks the rules" if code else "keeps every rule") in said


class Scripted:
    """A network whose answers are given: [start][step] -> text and halt logit, the same for all rows. The answers are
    to the puzzle as it is; a restart gives them under its symmetry."""

    multiple = 1

    def __init__(self, script):
        self.script, self.started, self.at, self.rows, self.seen = script, -1, 0, [], []
        self.symmetries = restart_symmetries(DataConfig(box_rows=2, box_cols=2), len(script))
        self.h_init, self.h_cycles, self.arch = torch.zeros(8), 1, type("Arch", (), {"puzzle_tokens": 0})()

    def batch_rows(self, length):
        return 1

    def embed(self, inputs, puzzles):
        self.seen.append(inputs)
        return torch.zeros(16, len(inputs), 8)

    def start(self, batch, length):
        self.started, self.at = self.started + 1, 0
        return torch.zeros(length, batch, 8), torch.zeros(length, batch, 8)

    def step(self, z_H, z_L, x):
        self.rows.append(x.shape[1])
        text, halt = self.script[self.started][self.at]
        self.at += 1
        tokens = self.symmetries[self.started].apply(torch.from_numpy(from_text(text) + 1)[None])[0]
        logits = torch.nn.functional.one_hot(tokens.long(), 6).float()[:, None].expand(16, x.shape[1], 6)
        return z_H, z_L, logits, torch.full((x.shape[1],), halt)


WRONG, WORSE = ANSWER[:-1] + "2", "1" * 16


SEARCHES = {
    "the first right answer ends it": (
        [[(WORSE, -1.0), (ANSWER, -2.0), (WRONG, 3.0)]], 3, (ANSWER, True, 0, 2, -2.0), [WORSE, ANSWER],
    ),
    "restarts go on until one is right": (
        [[(WRONG, 3.0)], [(WORSE, 5.0)], [(ANSWER, -1.0)], []], 1, (ANSWER, True, 2, 1, -1.0), [ANSWER],
    ),
    "else the most believed one is given": (
        [[(WORSE, 9.0), (WORSE, -3.0)], [(WRONG, 8.0), (WRONG, 2.0)], [(WORSE, 0.0)] * 2],
        2, (WRONG, False, 1, 2, 2.0), [WRONG, WRONG],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SEARCHES)
def test_a_search(case):
    """Each start but the first sees the puzzle under a symmetry."""
    script, steps, found, history = SEARCHES[case]
    net, asked = Scripted(script), torch.from_numpy(from_text(PUZZLE)[None] + 1)
    result = solve(net, FOUR, asked.numpy() - 1, steps, len(script))
    symmetries = net.symmetries[: net.started + 1]
    assert [seen.tolist() for seen in net.seen] == [each.apply(asked).tolist() for each in symmetries]
    told = [getattr(result, field)[0] for field in ("right", "starts", "steps", "halt_logits")]
    assert (to_text(result.answers[0]), *told) == found
    assert [to_text(grid) for grid in result.history] == history


def test_solved_puzzles_leave_the_batch():
    """The last puzzle, which the first answer does not solve, goes on alone."""
    other = "12..34...1.3.312"
    net = Scripted([[(ANSWER, 1.0), (WRONG, 1.0)]])
    net.batch_rows = lambda length: 4
    questions = np.stack([from_text(text) for text in (PUZZLE, PUZZLE, PUZZLE, other)])
    result = solve(net, FOUR, questions, 2)
    assert net.rows == [4, 1]
    assert result.right.tolist() == [True, True, True, False]
    assert to_text(result.answers[3]) == WRONG


@pytest.mark.parametrize(
    ("question", "answer", "said"),
    [
        ("." * 16, ANSWER, ""),
        ("." * 16, "11" + ANSWER[2:], "1 is repeated in row 1"),
        ("." * 16, "1..." + "1..." + "." * 8, "1 is repeated in column 1"),
        ("." * 16, "1...." + "1" + "." * 10, "1 is repeated in box 1"),
        (PUZZLE, WRONG, "the clue in row 4, column 4 is changed"),
    ],
)
def test_faults_are_named(question, answer, said):
    assert fault(FOUR, from_text(question), from_text(answer)) == said
    blank = from_text(ANSWER[:-1] + ".")
    assert not keeps_rules(FOUR, from_text("." * 16)[None], blank[None])[0]


def test_panels_stand_side_by_side():
    history = [from_text(PUZZLE)] * 5
    lines = list(panels(FOUR, from_text(PUZZLE), history, 40))
    assert lines[0].split() == ["puzzle", "step", "1", "step", "2", "step", "4"]
    assert lines[1].startswith("12 ..")
    assert "step 5" in lines[7]


def test_a_search_becomes_a_moving_picture():
    """Each text is visible while it stands: at any time one digit a cell, at the end the answer, wrong ones red."""
    from xml.etree import ElementTree

    text = animation(FOUR, from_text(PUZZLE[:-1] + "."), [from_text(WRONG), from_text(ANSWER)])
    svg = "{http://www.w3.org/2000/svg}"
    texts = list(ElementTree.fromstring(text).iter(f"{svg}text"))
    last = {item.text for item in texts if item.get("opacity") is None and item.get("class") == "note"}
    assert last == {"supervision step 2"}
    shown = {(float(t.get("y")), float(t.get("x"))): t.text for t in texts if t.get("opacity") is None}
    assert "".join(shown[place] for place in sorted(shown))[:16] == ANSWER
    (wrong,) = [item for item in texts if item.get("class") == "wrong"]
    assert wrong.text == "2"
    moves = wrong.find(f"{svg}animate")
    assert (moves.get("values"), moves.get("keyTimes")) == ("0;1;0", "0;0.2333;0.3333")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["12..34...1.3.32"], "has 15 characters, but there are models for 16 .4x4."),
        (["12..34...1.3.32x"], "has 'x' at character 16: write 1-4 for clues"),
        (["11.............."], "clues contradict one another: 1 is repeated in row 1"),
        ([PUZZLE, "--steps", "0"], "--steps 0: give 1 or more"),
        ([PUZZLE, "--model", "nowhere"], "--model nowhere does not exist"),
        (["nowhere.csv", "--svg", "s.svg"], "--svg draws one puzzle"),
        (["nowhere.csv"], "nowhere.csv cannot be read: No such file"),
        (["nowhere.txt"], "nowhere.txt cannot be read: No such file"),
        (["puzzels"], "puzzels cannot be read: No such file"),
        (["12xx34xxx1x3x32"], "has 15 characters"),
        (["nowhere/puzzles"], "nowhere/puzzles cannot be read: No such file"),
        (["docs"], "docs cannot be read: Is a directory"),
        (["docs/play.md"], "play.md line 1: the puzzle has 3 characters, but there are models for 16"),
        ([PUZZLE, "--out", "one.csv"], "--out is for a file of puzzles"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, words, trained, capsys):
    if "--model" not in arguments:
        arguments = [*arguments, "--model", str(trained[0])]
    assert main(["solve", *arguments]) == 2
    said = capsys.readouterr().err
    assert re.search(words, said), said
    assert said.count("\n") == 1


def test_a_small_model_and_its_card_solve_as_the_run_does(trained, tmp_path, monkeypatch, capsys):
    run, puzzles = trained
    assert main(["convert", "to-model", str(run), "--out", str(tmp_path / "models" / "four")]) == 0
    small = load_weights(tmp_path / "models" / "four")
    assert {name.split(".")[0] for name in small.tensors} == {"ema", "buffers", "raw"}
    whole = load_weights(run).weights("ema")
    assert all(torch.equal(tensor, whole[name]) for name, tensor in small.weights("ema").items())
    card = (tmp_path / "models/four/README.md").read_text()
    assert "sudoku4" in card
    assert json.loads(card.split("```json")[1].split("```")[0])["model"]["d_model"] == 32
    monkeypatch.chdir(tmp_path)  # models/ is where `solve` looks
    capsys.readouterr()
    assert main(["solve", puzzles[0][0], "--threads", "1"]) == 0
    assert puzzles[0][1] in capsys.readouterr().out
    with pytest.raises(UserError, match="no trained model in"):
        find_models([tmp_path / "nothing"], 16)
