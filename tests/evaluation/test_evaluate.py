import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.training.conftest import config, train
from tests.training.puzzles import write_dataset
from trm.backends.cpu.device import CpuBackend
from trm.cli import main
from trm.data import progress, rng
from trm.data.dataset import Meta, one_example_set
from trm.errors import UserError
from trm.evaluation import bins, policies
from trm.evaluation.evaluate import Evaluation, evaluate_run
from trm.evaluation.passes import Noise
from trm.evaluation.symmetry import restart_symmetries
from trm.model import inference
from trm.model.inference import InferenceNetwork
from trm.model.scores import Score
from trm.study.flops import forward_flops
from trm.study.schema import TASKS, DataConfig, EvaluationConfig
from trm.study.tasks import spec_of
from trm.tasks import task_of
from trm.tasks.sudoku.task import candidates
from trm.training.dataset import Dataset
from trm.training.outputs import load_weights, save_weights


@pytest.fixture(scope="module")
def trained(dataset_folder, tmp_path_factory):
    """A run that has learnt a little, with a halt logit that falls on both sides of 0."""
    root = tmp_path_factory.mktemp("trained")
    run = config({"halt_max_steps": 4}, {"steps": 80, "batch_size": 32, "lr": 3e-3, "snapshots": 3})
    train(run, dataset_folder, root, log_every=40)
    return root / "run"


def evaluation(trained, data, backend=None, **options):
    given = load_weights(trained), Dataset(data), EvaluationConfig(**options)
    return Evaluation(*given, backend or CpuBackend())


@pytest.fixture
def measured(trained, dataset_folder):
    """An evaluation, and the test puzzles on its device."""
    found = evaluation(trained, dataset_folder)
    return found, found.dataset.originals("test", found.backend)


def spread_halting(net):
    """Make about half of the puzzles halt early, at different steps."""
    weight = torch.randn(net._weights["halt.weight"].shape, generator=torch.Generator().manual_seed(0))
    net._weights["halt.weight"].copy_(weight * 0.7)
    net._weights["halt.bias"].copy_(torch.tensor([-1.0, 0.0]))


def test_progress_names_the_work_on_the_first_worker_alone(trained, dataset_folder, monkeypatch, capsys):
    monkeypatch.setattr(progress.time, "monotonic", itertools.count(step=60.0).__next__)
    monkeypatch.setattr(inference, "inference_batch", lambda *sizes: 16)
    measured = evaluation(trained, dataset_folder, unroll=(2, 3), restarts=(2,), confident=True)
    measured.run()
    shown = capsys.readouterr().err
    works = ("train puzzles, 3 steps", "test puzzles, 3 steps", "test puzzles, 2 starts of 4 steps")
    for work in works:
        assert re.search(rf"evaluating {work}: \d+ %", shown)
    measured.backend.rank = 1
    measured.run()
    assert not capsys.readouterr().err


def test_the_command_writes_the_contract(trained, dataset_folder, tmp_path):
    """4 steps in training; every policy takes 6, too."""
    settings = {"unroll": [1, 4, 6], "steps": 6, "confident": True, "restarts": [1, 3]}
    settings |= {"step_noise": 0.5, "train_puzzles": 30}
    chosen = ("restarts", "majority", "oracle")
    arguments = evaluate_words(trained, dataset_folder, tmp_path / "e.json", settings)
    assert main([*arguments, "--predictions", str(tmp_path / "p.npz")]) == 0
    document = json.loads((tmp_path / "e.json").read_text())
    assert document["evaluation"]["restarts"] == [1, 3]
    found = {(r["split"], r["policy"], r["steps"], r["restarts"]): r for r in document["results"]}
    assert {key[1] for key in found if key[2] == 6} == {"fixed", "confident", *chosen}
    assert {key[2] for key in found if key[1] == "fixed"} == {1, 4, 6}
    assert all(r["puzzles"] == (40 if r["split"] == "test" else 30) for r in document["results"])
    run = load_weights(trained).config
    fixed = found["test", "fixed", 6, 1]
    assert fixed["flops_per_puzzle"] == 6 * forward_flops(run.model, 16, 6)
    assert fixed["accuracy"] > document["guess"]["uniform"]
    assert 0 < fixed["blank_accuracy"] < fixed["accuracy"]
    assert found["test", "restarts", 6, 3]["flops_per_puzzle"] == 3 * fixed["flops_per_puzzle"]
    for policy in chosen:
        assert found["test", policy, 6, 1]["correct"] == fixed["correct"]
    assert found["test", "oracle", 6, 3]["correct"] >= found["test", "restarts", 6, 3]["correct"]
    solved = {k: found["test", "restarts", 6, k]["solved_counts"] for k in (1, 3)}
    assert solved[1] == [40 - fixed["correct"], fixed["correct"]]
    assert (len(solved[3]), sum(solved[3])) == (4, 40)
    assert sum(solved[3][1:]) == found["test", "oracle", 6, 3]["correct"]
    clues = (Dataset(dataset_folder).split("test").inputs > 1).sum(1)
    for row in (found["test", "fixed", steps, 1] for steps in (1, 4, 6)):
        rows = row["bins"]["clues"]
        assert [(b["from"], b["to"], b["puzzles"]) for b in rows] == [
            (n, n, (clues == n).sum()) for n in np.unique(clues)
        ]
        assert sum(b["correct"] for b in rows) == row["correct"]
    halting = document["halting"]
    assert halting["steps"] == [1, 2, 3, 4, 5, 6]
    assert halting["solved"][0] == found["test", "fixed", 1, 1]["exact_accuracy"]
    assert sum(halting["solved"]) >= found["test", "fixed", 6, 1]["exact_accuracy"]
    assert len(document["traces"]) == 4
    assert np.shape(document["traces"][0]["steps"]) == (6, 16)
    predictions = np.load(tmp_path / "p.npz")
    labels = Dataset(dataset_folder).split("test").labels
    assert (predictions["test_answers"] == labels).all(1).sum() == found["test", "fixed", 6, 1]["correct"]


def evaluate_words(run, data, out, settings):
    words = f"evaluate --run {run} --dataset {data} --out {out} --threads 1 --evaluation"
    return [*words.split(), json.dumps(settings)]


def test_bins_of_ratings_double_and_many_clue_counts_share_bins():
    ratings = np.array([0, 1, 3, 9, 9, -1], dtype=np.int32)
    inputs = np.ones((6, 40), dtype=np.uint8)
    for row, clues in enumerate((3, 5, 8, 20, 27, 28)):
        inputs[row, :clues] = 2
    puzzles = one_example_set(inputs, inputs, Meta("sudoku", 40, 9, 1))
    puzzles = replace(puzzles, ratings=ratings)
    found = bins.binned(puzzles, blank=1)
    assert set(found) == {"rating", "clues"}
    numbers, limits = found["rating"]
    right = np.array([1, 0, 1, 1, 0, 0])
    rows = bins.rows(bins.counts(right, numbers, len(limits)), limits)
    assert [tuple(row.values()) for row in rows] == [
        (-1, -1, 1, 0), (0, 0, 1, 1), (1, 1, 1, 0), (2, 3, 1, 1), (8, 15, 2, 1)
    ]  # fmt: skip
    numbers, limits = found["clues"]
    assert [limits[n] for n in numbers] == [(3, 5), (3, 5), (6, 8), (18, 20), (27, 28), (27, 28)]
    assert bins.binned(puzzles.first(1), blank=1) == {}
    lengths = replace(puzzles, ratings=np.array([11, 12, 20, 30, 40, 43], dtype=np.int32))
    assert bins.binned(lengths, blank=None)["rating"][1][:2] == [(11, 13), (14, 16)]  # of paths: equally wide


def test_an_evaluation_measures_what_it_is_told_and_records_on_what(trained, tmp_path):
    other = write_dataset(tmp_path / "other", 10, 5, 8, seed=9)
    document = evaluation(trained, other, test_puzzles=7, train_puzzles=0, traces=2).run()
    assert document["dataset"]["name"] == "other"
    assert document["dataset"]["identity"] == "test-10-9"
    assert [row["puzzles"] for row in document["results"]] == [7]
    assert [len(trace["steps"]) for trace in document["traces"]] == [4, 4]  # as in training


def test_validation_and_evaluation_agree(measured, trained):
    """The last validation pass of a run equals the reference evaluation of the same puzzles."""
    found, _ = measured
    data = found.dataset.originals("validation", found.backend)
    values = found.policies.fixed(data, (4,)).scores[4].result(found.backend.total)
    last = json.loads((trained / "training.json").read_text())["final"]
    for name in ("accuracy", "cross_entropy", "blank_accuracy"):
        assert values[name] == pytest.approx(last[f"eval/{name}"], rel=1e-5)
    assert 0.0 <= last["eval/blank_accuracy"] < last["eval/accuracy"]  # not every cell is blank


@pytest.mark.parametrize("slots", [8, 64])
def test_stopping_when_confident_scores_each_answer_where_its_puzzle_stops(slots, measured, monkeypatch):
    monkeypatch.setattr("trm.model.inference.inference_batch", lambda *_: slots)
    (found, data), depth = measured, 6
    spread_halting(found.net)
    passes = [found.policies.fixed(data, (at,)) for at in range(1, depth + 1)]
    first = passes[-1].first_positive
    assert len(first.unique()) > 3  # early, late, never
    last = torch.where(first == 0, depth, first)
    expected = torch.stack([each.answers for each in passes])[last.long() - 1, torch.arange(len(last))]
    whole = found.policies.fixed(data, (3, depth), stopping=True)
    result = whole.confident[depth].result(found.backend.total)
    assert result["puzzles"] == len(last)
    assert result["mean_steps"] == pytest.approx(last.float().mean().item())
    assert result["correct"] == (expected == data.labels).all(1).sum()
    assert result["accuracy"] == pytest.approx((expected == data.labels).float().mean().item())
    shallow = whole.confident[3].result(found.backend.total)
    assert shallow["mean_steps"] == pytest.approx(last.clamp(max=3).float().mean().item())


def test_choosing_among_restarts():
    rows = [[[1, 1], [2, 2]], [[1, 2], [2, 2]], [[1, 2], [2, 1]]]
    answers = torch.tensor(rows, dtype=torch.uint8)  # K, B, S
    halts = torch.tensor([[3.0, 0.0], [1.0, 1.0], [2.0, 5.0]])
    labels = torch.tensor([[1, 2], [1, 1]], dtype=torch.uint8)
    best, majority, oracle = policies.chosen(answers, halts, policies.is_right(answers, labels, ignore=0))
    assert (best.tolist(), majority.tolist()) == ([0, 2], [2, 1])
    assert oracle.tolist()[0] in (1, 2)
    # data sets of other tools may ignore no label: then an answer must have the padding right, too
    answers, labels = torch.tensor([[[1, 1]], [[1, 0]]]), torch.tensor([[1, 0]])
    for ignore, right in ((0, 0), (-1, 1)):
        rights = policies.is_right(answers, labels, ignore)
        assert policies.chosen(answers, halts[:2, :1], rights)[2].tolist() == [right]


def test_an_evaluation_goes_on_after_its_time_limit_bit_for_bit(
    trained, dataset_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(InferenceNetwork, "batch_rows", lambda *sizes: 16)
    ask = {"unroll": [2, 3], "restarts": [1, 2], "start_noise": 0.5, "confident": True, "train_puzzles": 20}
    whole, parts, kept = tmp_path / "whole.json", tmp_path / "parts.json", tmp_path / "kept"
    assert main(evaluate_words(trained, dataset_folder, whole, ask)) == 0

    command = evaluate_words(trained, dataset_folder, parts, ask)
    ends = []
    while not ends or ends[-1] == 75:
        assert not parts.exists()
        ends.append(main([*command, "--parts", str(kept), "--time-limit", "1e-6"]))
    assert ends[-1] == 0
    assert len(ends) > 5
    assert f"stopped after 1 batch; it goes on from {kept}\n" in capsys.readouterr().out
    documents = [json.loads(path.read_text()) for path in (whole, parts)]
    for document in documents:
        seconds = [row.pop("seconds") for row in document["results"] if row["policy"] != "confident"]
        assert min(seconds) >= 0
    for key in ("results", "halting", "traces", "tasks", "guess"):
        assert documents[0][key] == documents[1][key]
    assert not list(kept.glob("*.pt"))


def test_what_several_workers_cannot_do_is_refused_before_the_work(trained, dataset_folder, tmp_path):
    backend, settings = CpuBackend(), EvaluationConfig()
    backend.world = 4
    with pytest.raises(UserError, match="--predictions requires a single worker"):
        evaluate_run(tmp_path, dataset_folder, settings, tmp_path / "e.json", tmp_path / "p", backend)
    few = evaluation(trained, dataset_folder, test_puzzles=3)
    few.backend = backend
    with pytest.raises(UserError, match=f"3 puzzles of {dataset_folder} for 4 workers: give more puzzles"):
        few.run()


def test_restarts_differ_by_noise_or_symmetry(measured):
    measured, data = measured

    def restarts(noise, symmetric):
        symmetries = restart_symmetries(measured.trained.config.data, 4, noise=not symmetric)
        found = measured.policies.restarts(data, 4, (4,), noise, symmetries)
        return found.best[4].result(measured.backend.total), found.oracle[4].result(measured.backend.total)

    plain = restarts((0.0, 0.0), False)
    assert plain[0]["correct"] == plain[1]["correct"]
    for way in (((3.0, 0.0), False), ((0.0, 3.0), False), ((0.0, 0.0), True)):
        assert restarts(*way) == restarts(*way)
        assert restarts(*way)[0]["accuracy"] != plain[0]["accuracy"]


def test_noise_is_drawn_for_batches_of_their_own_size(measured, monkeypatch):
    """Published results hold, whatever size is the fastest."""
    assert inference.inference_batch(37, 32, torch.device("cpu"), True) == 48
    measured, data = measured
    found = []
    for size in (16, 64):
        rows = lambda length, width, device, noise=False, size=size: 16 if noise else size  # noqa: E731
        monkeypatch.setattr(inference, "inference_batch", rows)
        symmetries = restart_symmetries(measured.trained.config.data, 4, noise=True)
        noisy = measured.policies.restarts(data, 4, (4,), (0.5, 0.5), symmetries).best[4].sums.nan_to_num()
        fixed = measured.policies.fixed(data, (4,))
        found.append((noisy, fixed.answers, fixed.halt_logits))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_noise_does_not_depend_on_the_number_of_workers(trained, dataset_folder, monkeypatch):
    """Three batches; of four workers one has none."""
    monkeypatch.setattr(InferenceNetwork, "batch_rows", lambda *sizes: 16)
    right = dict.fromkeys((1, 2, 4), 0.0)
    for world in right:
        for rank in range(world):
            backend = CpuBackend()
            backend.rank, backend.world = rank, world
            found = evaluation(
                trained, dataset_folder, backend, restarts=(3,), step_noise=0.5, traces=0
            ).run()
            rows = (row for row in found["results"] if row["restarts"] == 3)
            right[world] += sum(row["accuracy"] * row["puzzles"] for row in rows)
    assert [right[2], right[4]] == pytest.approx([right[1]] * 2, rel=1e-6)


def test_a_restart_is_a_run_on_the_moved_puzzle(measured):
    measured, data = measured
    symmetries = restart_symmetries(measured.trained.config.data, 2)
    found = measured.policies.restarts(data, 4, (1,), (0.0, 0.0), symmetries[1:]).best[1]
    moved = data._replace(inputs=symmetries[1].apply(data.inputs), labels=symmetries[1].apply(data.labels))
    wanted = measured.policies.fixed(moved, (4,)).scores[4]
    one, other = (each.result(measured.backend.total) for each in (found, wanted))
    assert (one["accuracy"], one["correct"]) == (other["accuracy"], other["correct"])


@pytest.mark.parametrize("changes", [{"box_rows": 2}, {"box_rows": 3}, {"task": "maze", "maze_size": 9}])
def test_symmetries_are_undone(changes):
    config = DataConfig(**changes)
    vocab, cells = task_of(config.task).symmetries(config, rng.key(1))
    grids = torch.randint(0, vocab.shape[1], (5, cells.shape[1]), dtype=torch.uint8)
    first, *others = restart_symmetries(config, 8)
    assert torch.equal(first.apply(grids), grids)
    for symmetry in others:
        assert torch.equal(symmetry.undo(symmetry.apply(grids)), grids)
    assert len({symmetry.apply(grids).numpy().tobytes() for symmetry in others}) > 1
    assert all(np.array_equal(s.cells, first.cells) for s in restart_symmetries(config, 8, noise=True))


def test_a_task_without_symmetries_needs_noise():
    advice = "arc has no symmetries for restarts and views: give evaluation.start_noise or step_noise"
    with pytest.raises(UserError, match=advice):
        restart_symmetries(DataConfig(task="arc", source="generate", arc_side=6), 2)
    for name in TASKS:
        found = task_of(name).symmetries(DataConfig(task=name, maze_size=9), rng.key(1))
        assert spec_of(name).symmetric == (found is not None)


def test_weights_raw_ema_and_average(trained):
    tensors = load_weights(trained)
    raw, ema = tensors.weights("raw"), tensors.weights("ema")
    assert not torch.equal(raw["head.weight"], ema["head.weight"])
    average = tensors.weights("average", 2)["head.weight"]
    expected = (tensors.tensors["snapshot2.head.weight"] + tensors.tensors["snapshot3.head.weight"]) / 2
    torch.testing.assert_close(average, expected)
    assert torch.equal(tensors.tensors["snapshot3.head.weight"], raw["head.weight"])

    def kept(*kinds):
        found = {name: tensor for name, tensor in tensors.tensors.items() if name.startswith(kinds)}
        return tensors._replace(tensors=found)

    for model, kind, words in (
        (tensors, "average", "has 3 snapshots: give 1 to 3"),
        (kept("ema"), "average", "has 0 snapshots: train it with training.snapshots"),
        (kept("ema", "buffers"), "raw", "holds averaged weights alone, no raw ones"),
    ):
        with pytest.raises(UserError, match=words):
            model.weights(kind, 4)


def test_blank_accuracy_has_its_error_over_puzzles():
    inputs = torch.tensor([[1, 1, 3], [1, 4, 1], [2, 3, 4]], dtype=torch.uint8)
    labels = torch.tensor([[2, 3, 3], [2, 4, 3], [2, 3, 4]], dtype=torch.uint8)
    answers = torch.tensor([[2, 3, 4], [2, 4, 2], [2, 3, 4]], dtype=torch.uint8)
    score = Score(torch.device("cpu"), ignore=0, blank=1)
    score.add_answers(answers, inputs, labels, 1)
    result = score.result(CpuBackend().total)
    assert result["blank_accuracy"] == pytest.approx(0.75)  # 1 and 1/2; the third has no blank
    assert result["blank_error"] == pytest.approx(0.25)
    assert result["correct"] == 1
    assert result["cross_entropy"] is None


def test_rule_aware_guess():
    row = np.array([[1, 2, 3, 4] + [1] * 12], dtype=np.uint8)  # 4x4: digits 1, 2, 3 given in the first row
    assert candidates(row, 2, 2)[0, 0] == 1
    assert candidates(row, 2, 2)[0, 15] == 3  # its column has 3; its box and row nothing
    found = task_of("sudoku").guesses(DataConfig(box_rows=2, box_cols=2), row, row)
    assert found["uniform"] == 0.25
    assert found["rules"] > 0.25
    arc = DataConfig(task="arc", source="json", files=("x",))
    assert task_of("arc").guesses(arc, row, row) == {"uniform": None, "rules": None}


def test_every_restart_and_state_has_noise_of_its_own():
    def draw(restart, first, which):
        return Noise(0.3, 0.0, restart, first).add(torch.zeros(3, 4, 5), 0.3, which)

    drawn = [draw(*place) for place in ((1, 0, 0), (2, 0, 0), (1, 0, 1), (1, 8, 0))]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    assert torch.equal(drawn[0], draw(1, 0, 0))


@pytest.mark.parametrize("content", [b"", b"12345", b"\xff" * 3000])
def test_damaged_weights_are_named_with_the_remedy(tmp_path, content):
    (tmp_path / "weights.safetensors").write_bytes(content)
    with pytest.raises(
        UserError, match=r"weights\.safetensors is damaged .* trained again once its run folder is deleted"
    ):
        load_weights(tmp_path)


def test_weights_that_are_not_numbers_are_named_with_the_remedy(tmp_path, trained):
    found = load_weights(trained)
    name = next(iter(found.tensors))
    found.tensors[name].view(-1)[0] = float("nan")
    save_weights(tmp_path / "weights.safetensors", found.tensors, found.config, found.meta)
    with pytest.raises(UserError, match=f"{name} holds NaN.*delete"):
        load_weights(tmp_path)


def test_equal_weights_are_equal_files(tmp_path, trained):
    """Several entries of metadata would be written in random order."""
    found = load_weights(trained)
    for number in range(8):
        save_weights(tmp_path / str(number), found.tensors, found.config, found.meta)
    assert len({(tmp_path / str(number)).read_bytes() for number in range(8)}) == 1
