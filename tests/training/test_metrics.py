"""What a run tells: every series of the list, where it goes, and the warnings that go with it."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.training.conftest import after, config, history, train, trainer
from trm.backends.cpu.device import CpuBackend
from trm.backends.tpu.metrics import Use
from trm.errors import UserError
from trm.study.fingerprint import run_fingerprint
from trm.study.flops import parameter_shapes
from trm.training.history import TensorBoard
from trm.training.report import TRANSFER_SHARE

WEIGHTS = [*parameter_shapes(config().model, 16, 6), "puzzle.weight"]
TRAIN = "loss lm_loss halt_loss accuracy exact_accuracy halt_accuracy steps finished hints grad_norm noise_scale lr"
TRAIN = [*TRAIN.split(), "weight_norm", *(f"weight_norm/{name}" for name in WEIGHTS)]
TRAIN += [f"halt_share/{step}" for step in (1, 2, 3, 4)]
EVAL = ["exact_accuracy", "accuracy", "blank_accuracy", "cross_entropy"]
PERF = ["rows_per_second", "flops_per_second", "step_seconds", "feed_seconds", "transfer_seconds"]
PERF += ["compilations", "compile_seconds", "peak_memory_bytes", "peak_host_bytes/0", "peak_device_bytes/0"]
GROUPS = {"train": TRAIN, "eval": EVAL, "perf": PERF}
SERIES = {f"{group}/{name}" for group, names in GROUPS.items() for name in names}
"""On every backend; xla adds xla/* (tests/xla). Each further process has its own peak_*_bytes/<process>."""


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's scalar series by name: (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.fixture(scope="module")
def told(dataset_folder, tmp_path_factory):
    """A run with every series: its trainer and its folder."""
    root = tmp_path_factory.mktemp("told")
    run = config(training={"steps": 40, "batch_size": 32, "lr": 3e-3, "micro_batches": 4})
    return train(run, dataset_folder, root, tensorboard=True, log_every=20), root


def test_every_series_is_measured(told):
    found, root = told
    last = found.record.rows[-1]
    assert {name for name in last if "/" in name} == SERIES
    assert [name for name, value in last.items() if value is None] == []
    assert last["perf/step_seconds"] > last["perf/feed_seconds"] > 0
    assert last["perf/peak_host_bytes/0"] > 2**26
    assert last["train/noise_scale"] > 0
    assert float(history(root)[-1]["train/grad_norm"]) == last["train/grad_norm"]


def test_what_chips_do_is_in_the_history_and_in_the_status(dataset_folder, tmp_path, monkeypatch):
    found = iter([Use(2**34, 2**35, None), Use(None, None, None), Use(2**33, 2**35, 87.654)])
    monkeypatch.setattr(CpuBackend, "use", lambda self: next(found))
    monkeypatch.setenv("TPU_STATUS_FILE", str(tmp_path / "status"))
    train(config(training={"steps": 6, "batch_size": 8}), dataset_folder, tmp_path, log_every=2, evals=1)
    told = [(row["perf/hbm_bytes/0"], row["perf/duty_cycle_percent/0"]) for row in history(tmp_path)]
    assert told == [(str(2**34), ""), ("", ""), (str(2**33), "87.65")]
    assert (tmp_path / "status").read_text() == "at step 6, HBM 8.0 of 32.0 GiB, duty cycle 88 %"


def test_norms_of_the_parts_make_up_the_norm_of_the_whole(told):
    last, state = told[0].record.rows[-1], told[0].state
    parts = [last[f"train/weight_norm/{name}"] for name in WEIGHTS if name != "puzzle.weight"]
    assert sum(part**2 for part in parts) == pytest.approx(last["train/weight_norm"] ** 2, rel=1e-4)
    head = state.layout.views(state.params)["head.weight"].norm().item()
    assert last["train/weight_norm/head.weight"] == pytest.approx(head, rel=1e-5)


def test_tensorboard_has_the_same_numbers(told):
    found, root = told
    series = scalars(root / "checkpoints/run/tensorboard")
    assert set(series) == SERIES | {"rows", "seconds"}
    expected = [(row["step"], pytest.approx(row["train/loss"])) for row in found.record.rows]
    assert series["train/loss"] == expected


def test_tensorboard_of_a_resumed_run_hides_what_came_after_its_checkpoint(tmp_path):
    for done, steps in ((0, (2, 4, 6)), (4, (6, 8))):
        writer = TensorBoard(tmp_path, done)
        for step in steps:
            writer.write({"step": step, "train/loss": float(step + done)})
        writer.close()
    assert scalars(tmp_path)["train/loss"] == [(2, 2.0), (4, 4.0), (6, 10.0), (8, 12.0)]


class SlowLink(CpuBackend):
    """A device behind a link so slow that a batch takes longer than its step."""

    own_memory = True

    def place_rows(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        for _ in range(20_000):
            tensor = tensor.clone()
        return tensor


def test_a_transfer_that_holds_up_the_step_is_warned_of_once(dataset_folder, tmp_path):
    found = trainer(config(training={"steps": 2}), dataset_folder, tmp_path, log_every=1)
    found.backend = found.feed._backend = found.reporter._backend = SlowLink()
    sentence = r"moving batches to the device takes .* more than 10 %"
    with pytest.warns(RuntimeWarning, match=sentence) as caught:
        found.run()
    assert len(caught) == 1
    last = found.record.rows[-1]
    assert last["perf/transfer_seconds"] > TRANSFER_SHARE * last["perf/step_seconds"]


def test_a_signal_asks_for_the_backends_own_report(dataset_folder, tmp_path, monkeypatch):
    found = trainer(config(training={"steps": 3}), dataset_folder, tmp_path)
    monkeypatch.setattr(found.backend, "report", lambda: f"report at step {found.record.done}")
    written, seen = found.saver.folder.root / "xla-metrics-0.txt", []
    after(found, 1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    after(found, 2, lambda: seen.append(written.read_text()))
    found.run()
    assert [*seen, written.read_text()] == ["report at step 2", "report at step 3"]


def test_wandb_that_is_not_installed(dataset_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="requires the wandb package: pip install wandb, or set wandb to off"):
        train(config(training={"steps": 1}), dataset_folder, tmp_path, wandb="offline")


class Wandb:
    """What is used of Weights & Biases, which the tests' environment lacks; as strict as version 0.31."""

    def init(self, *, mode, dir, id, name, config, resume):
        assert (mode in ("online", "offline"), resume, type(dir)) == (True, "allow", str)
        assert not set(id) & set(":;,#?/'")
        self.id, self.name, self.config, self.logged = id, name, config, {}
        return self

    def log(self, values, step):
        assert step >= max(self.logged, default=0)  # else it would drop them
        assert None not in values.values()
        self.logged[step] = values

    def finish(self):
        self.finished = True


def test_wandb_has_the_rows_under_the_fingerprint(dataset_folder, tmp_path, monkeypatch):
    run, service = config(training={"steps": 4}), Wandb()
    monkeypatch.setitem(sys.modules, "wandb", service)
    found = train(run, dataset_folder, tmp_path, wandb="offline", log_every=2)
    assert (service.id, service.name, service.finished) == (run_fingerprint(run), "run", True)
    assert service.config == run.model_dump(mode="json")
    assert list(service.logged) == [2, 4]
    assert service.logged[4]["train/loss"] == found.record.rows[-1]["train/loss"]
