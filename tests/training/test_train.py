"""A step, and a run: pinned losses, an independent implementation, precisions, the files of a run."""

import json
import runpy
from itertools import repeat

import pytest
import torch

from examples import train_simple
from tests.model.equations import EagerTrainer, EagerTRM
from tests.training.conftest import config, first_losses, history, steps, train, trainer
from tests.training.puzzles import write_dataset
from trm.backends.cpu import build
from trm.model.parameters import initial_states, initial_weights
from trm.study.fingerprint import RECIPE_VERSION, run_fingerprint
from trm.study.flops import parameter_shapes
from trm.training import programs
from trm.training.dataset import Dataset
from trm.training.kernel_step import KernelStep
from trm.training.metrics import INDEX
from trm.training.outputs import load_weights
from trm.training.state import flatten_carry
from trm.training.step import transformed

GOLDEN = {1: [1.922657, 1.926309, 1.92928, 1.911509, 1.851241, 1.890259]}
"""Losses of the first steps of the tiny run, by recipe version."""


def test_golden_losses(dataset_folder, tmp_path):
    """If this fails, the mathematics of training has changed: raise RECIPE_VERSION, and pin the new losses here."""
    losses = first_losses(config(), dataset_folder, tmp_path, 6)
    assert losses == pytest.approx(GOLDEN[RECIPE_VERSION], rel=1e-4)


STEPS = {
    "AdamW, clipped": {"optimizer": "adamw", "max_grad_norm": 0.1},
    "Lion, no EMA": {"optimizer": "lion", "ema": 0.0},
    "Muon": {"optimizer": "muon"},
    "micro-batches, halting cost": {"micro_batches": 2, "halting_cost": 0.05},
    "noise": {"micro_batches": 2, "start_noise": 0.5, "step_noise": 0.2},
}


@pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("case", STEPS)
def test_the_kernels_step_equals_the_one_through_autograd(case, dataset_folder, tmp_path, monkeypatch):
    """Weights, EMA, puzzle table, batch slots and every metric."""
    run = config({"h_cycles": 1}, {"steps": 6, "precision": "float32", "lr": 1e-4} | STEPS[case])
    kernel = trainer(run, dataset_folder, tmp_path, "kernel")
    monkeypatch.setattr(programs, "products_for", lambda weights, arch: None)
    plain = trainer(run, dataset_folder, tmp_path, "plain")
    assert type(kernel.program) is KernelStep
    assert type(plain.program) is not KernelStep
    for found in (kernel, plain):
        steps(found, 1, 6)
    mine, its = (found.state.shared_tensors() for found in (kernel, plain))
    assert mine.keys() == its.keys()
    for name in mine:
        differ = ~torch.isclose(mine[name], its[name], rtol=2e-4, atol=2e-6)
        # Lion takes the sign of sums that are zero but for rounding.
        assert differ.sum() <= 1e-4 * differ.numel(), name
    for a, b in zip(kernel.state.carries, plain.state.carries, strict=True):
        for name, tensor in flatten_carry(a).items():
            torch.testing.assert_close(tensor, flatten_carry(b)[name], rtol=1e-3, atol=1e-3)
    assert mine["metrics"][INDEX["halted"]] > 0


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_the_algorithm_on_one_page_has_the_losses_of_the_engine(dataset_folder, tmp_path, monkeypatch, mixer):
    """examples/train_simple.py; its average and its puzzle table are the engine's, too."""
    monkeypatch.setattr("trm.backends.cpu.device.CpuBackend.implementation", "plain")
    run = config(
        {"mixer": mixer, "l_cycles": 2, "layers": 1},
        {"steps": 24, "lr": 4e-3, "exploration": 0.5, "lr_min_ratio": 0.1},
    )
    expected = first_losses(run, dataset_folder, tmp_path / "engine", 20)
    engine = trainer(run, dataset_folder, tmp_path / "data")
    sizes = engine.dataset.puzzles
    weights = initial_weights(run.model, sizes.seq_len, sizes.vocab, run.seed)
    starts = initial_states(run.model, run.seed, torch.float32).values()

    fed = (engine.feed.batch(step) for step in range(1, 21))
    batches = ((*transformed(engine.program.originals, batch), batch.minimum) for batch in fed)
    simple = train_simple.train(run.model, run.training, weights, [*starts], sizes.num_ids, batches)
    losses, averages, tables = zip(*(next(simple) for _ in range(20)), strict=True)
    assert list(losses) == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < 0.9 * expected[0]
    steps(engine, 1, 20)
    state = engine.state
    for name, tensor in state.layout.views(state.averaged()).items():
        torch.testing.assert_close(averages[-1][name], tensor, rtol=1e-3, atol=2e-4)
    torch.testing.assert_close(tables[-1], state.puzzle_table)


def test_the_baseline_of_the_benchmarks_is_the_algorithm_on_one_page(dataset_folder):
    """On one batch, as benchmarks/step.py trains it."""
    run, rows = (
        config(training={"steps": 6, "warmup_steps": 2}),
        Dataset(dataset_folder).split("train").first(16),
    )
    weights, starts = initial_weights(run.model, 16, 6, 0), initial_states(run.model, 0, torch.float32)
    net = EagerTRM(run.model, 16, 6, 1, torch.float32)
    net.load_ours(weights, starts)
    baseline, none = EagerTrainer(net, run.training, 16, 16), torch.zeros(16, dtype=torch.int64)
    questions, answers = torch.from_numpy(rows.inputs), torch.from_numpy(rows.labels)
    batches = repeat((questions, answers, none, none))
    for loss, *_ in train_simple.train(run.model, run.training, weights, [*starts.values()], 1, batches):
        assert baseline.step(questions.long(), answers.long(), none) == pytest.approx(loss, rel=1e-5)


def test_the_algorithm_on_one_page_learns_and_writes_the_file_of_a_run(tmp_path, monkeypatch, capsys):
    data, out = write_dataset(tmp_path / "small", 120, 24, 40), tmp_path / "weights.safetensors"
    manifest = json.loads((data / "manifest.json").read_text())
    manifest["config"] = {"source": "generate", "box_rows": 2, "box_cols": 2}
    (data / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(train_simple.TRAINING, "steps", 200)
    monkeypatch.setattr(train_simple.MODEL, "d_model", 16)
    train_simple.main(data, out)
    first, last = (float(line.split()[3]) for line in capsys.readouterr().out.splitlines())
    assert last < 0.9 * first
    found = load_weights(out)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.weights("ema").items()}
    assert shapes == parameter_shapes(found.config.model, 16, 6)


def test_a_run_learns_and_writes_its_files(dataset_folder, tmp_path):
    run = config(training={"steps": 60, "batch_size": 32, "lr": 3e-3})
    done = train(run, dataset_folder, tmp_path, log_every=20)
    rows = history(tmp_path)
    assert [int(row["step"]) for row in rows] == [20, 30, 40, 60]
    assert float(rows[-1]["train/loss"]) < 0.8 * float(rows[0]["train/loss"])
    assert rows[0]["eval/accuracy"] == ""
    assert rows[0]["train/noise_scale"] == ""  # measured between micro-batches
    assert 0 < float(rows[-1]["eval/accuracy"]) <= 1
    shares = sum(float(rows[-1][f"train/halt_share/{k}"]) for k in range(1, 5))
    assert shares == pytest.approx(1)
    document = json.loads((tmp_path / "run" / "training.json").read_text())
    assert document["outcome"] == "finished"
    assert document["steps"] == 60
    assert document["rows"] == 1920
    assert document["fingerprint"] == run_fingerprint(run)
    assert document["final"]["train/loss"] == float(rows[-1]["train/loss"])
    assert document["best"]["step"] in (30, 60)
    trained = load_weights(tmp_path / "run")
    assert trained.config == run
    for kind, flat in (("raw", done.state.params), ("ema", done.state.averaged())):
        assert torch.equal(trained.weights(kind)["head.weight"], done.state.layout.views(flat)["head.weight"])


@pytest.mark.parametrize(
    ("precision", "error"), [("bfloat16", 0.005), ("float16", 0.001), ("bfloat16_weights", 0.03)]
)
def test_every_precision_trains_close_to_float32(precision, error, dataset_folder, tmp_path):
    # every row halts at once: another decision about one row would change the losses more than rounding does
    model = {"halt_max_steps": 1}
    rounded = config(model, {"precision": precision})
    exact = first_losses(config(model), dataset_folder, tmp_path, 8)
    losses = first_losses(rounded, dataset_folder, tmp_path, 8, "other")
    assert losses == pytest.approx(exact, rel=error)
    assert losses != exact
    # states that are carried over are rounded too
    exact = first_losses(config(), dataset_folder, tmp_path, 3, "carried")
    losses = first_losses(config(training={"precision": precision}), dataset_folder, tmp_path, 3, "both")
    assert losses == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("data", [{}, {"hints": [0, 4]}])
def test_micro_batches_equal_the_whole_batch(data, dataset_folder, tmp_path):
    whole = first_losses(config(data=data), dataset_folder, tmp_path, 6)
    split = config(training={"micro_batches": 4}, data=data)
    parts = first_losses(split, dataset_folder, tmp_path, 6, "parts")
    assert parts == pytest.approx(whole, rel=1e-5)


def test_the_example_without_its_files_says_how_to_call_it(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train_simple.py"])
    with pytest.raises(SystemExit, match=r"train_simple\.py /tmp/sudoku6"):
        runpy.run_path(train_simple.__file__, run_name="__main__")
