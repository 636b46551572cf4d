"""Traces all programs of a run, in the trainer's order and as on a TPU host, without running any.

The trainer gets a backend that records each program's StableHLO instead of running it and returns made-up values to the
host. It acts as the second of two hosts, which runs the same programs as the first but writes no files.
"""

import dataclasses
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_xla
from torch import Tensor

from trm.backends.tpu.device import XlaBackend
from trm.data.dataset import Meta, PuzzleSet, one_example_set
from trm.evaluation.evaluate import Evaluation
from trm.study.dataset_identity import shape
from trm.study.schema import EvaluationConfig, RunConfig, RuntimeConfig
from trm.study.stages import Recursion
from trm.study.tasks import Sizes
from trm.training.dataset import Dataset
from trm.training.loop import Trainer
from trm.training.origin import record
from trm.training.outputs import PUZZLE, TrainedModel
from trm.training.replayed import ReplayedStep
from trm.training.step import AnyBatch

XLA = torch_xla._XLAC
PHASES = {
    "_one_step": "step",
    "_report": "report",
    "save": "checkpoint",
    "_validate": "validation",
    "_finish": "finish",
    "compare_workers": "comparison of hosts",
}
"""The phase of the programs that each method of the trainer runs."""
COLOUR_CODE = 2


@contextmanager
def traced_as_on_tpu() -> Iterator[None]:
    """Set PJRT_DEVICE to TPU, on which torch_xla's lowering depends; its client stays the same."""
    before = os.environ["PJRT_DEVICE"]
    os.environ["PJRT_DEVICE"] = "TPU"
    try:
        yield
    finally:
        os.environ["PJRT_DEVICE"] = before


class Rehearsal(XlaBackend):
    """Records programs instead of running them."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self._processes, self.on_tpu = 1, 2, True
        self.phase = "start"
        self.programs: list[tuple[str, str]] = []
        """(phase, StableHLO) of each distinct program, in the order of first use."""
        self._known: set[str] = set()
        torch_xla.sync = lambda *_, **__: self.start([])

    def gather(self, vector: Tensor) -> list[Tensor]:
        return [vector] * self._processes

    def broadcast(self, tensor: Tensor) -> None:
        pass

    def stop_agreed(self, stop: Tensor, step: int, requested: int) -> bool:
        return False

    def during(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call` so that its programs are recorded under `phase`."""

        def run(*arguments: Any, **options: Any) -> Any:
            before, self.phase = self.phase, phase
            try:
                return call(*arguments, **options)
            finally:
                self.phase = before

        return run

    def _read(self, tensor: Tensor) -> Tensor:
        make = torch.ones if self.phase == "validation" else torch.zeros  # scores are divided by a count
        return make(tensor.shape, dtype=tensor.dtype)

    def read(self, tensor: Tensor) -> Tensor:
        """Replaces `Tensor.cpu`: a pending tensor is a program of its own."""
        if tensor.device.type != "xla":
            return tensor
        if XLA._check_tensor_need_materialization([tensor])[0]:
            self.start([tensor])
        return self._read(tensor)

    def start(self, outputs: list[Tensor], recorded: bool = True) -> None:
        """Record the program that computes these tensors (empty: all that are pending) and drop it."""
        text = without_passthrough(XLA._get_stablehlo(outputs, str(self.device), [], False).decode())
        if recorded and text and text not in self._known:
            self._known.add(text)
            self.programs.append((self.phase, text))
        XLA._clear_pending_irs(str(self.device))


class RecordedStep(ReplayedStep):
    """Records the training step's program."""

    backend: Rehearsal
    calls = 0

    def __call__(self, batch: AnyBatch, recursion: Recursion) -> None:
        torch_xla.sync()
        for tensor, axis in self.state.row_axes():  # as the step before it left them
            if axis is not None:
                tensor.copy_(self.backend.place_rows(torch.zeros(tensor.shape, dtype=tensor.dtype), axis))
        self.trace(batch, recursion)
        tensors = self.state.changed_tensors()
        pending = XLA._check_tensor_need_materialization(tensors)
        changed = [tensor for tensor, new in zip(tensors, pending, strict=True) if new]
        first, self.calls = not self.calls, self.calls + 1
        self.backend.start(
            changed, recorded=not first
        )  # the first: the EMA still shares memory with the weights


def without_passthrough(module: str) -> str:
    """Remove results that are arguments, and unused arguments, from a StableHLO module; empty if nothing is left.

    When torch_xla lowers all pending tensors, it passes every other tensor through.
    """
    lines = module.splitlines()
    at = next(i for i, line in enumerate(lines) if "func.func @main(" in line)
    end = next(i for i, line in enumerate(lines) if i > at and line.strip().startswith("return"))
    values, _, types = lines[end].strip().removeprefix("return").partition(":")
    results = list(zip(re.findall(r"%[\w#]+", values), re.findall(r"tensor<[^>]*>", types), strict=True))
    results = [pair for pair in results if not pair[0].startswith("%arg")]
    if not results:
        return ""
    names, kinds = (", ".join(column) for column in zip(*results, strict=True))
    lines[end] = f"    return {names} : {kinds}"
    given = lines[at].partition("@main(")[2].rpartition(") -> ")[0]
    arguments = {part.partition(":")[0]: part for part in re.split(r", (?=%arg\d+:)", given)}
    read = set(re.findall(r"%arg\d+\b", "\n".join(lines[at + 1 :])))
    kept = [part for name, part in arguments.items() if name in read]
    lines[at] = f"  func.func @main({', '.join(kept)}) -> ({kinds}) {{"
    number: dict[str, str] = {}  # numbers continue through inner functions
    for name in re.findall(r"%arg\d+\b", "\n".join(lines[at:])):
        number.setdefault(name, f"%arg{len(number)}")
    text = re.sub(r"%arg\d+\b", lambda match: number[match.group()], "\n".join(lines))
    return re.sub(r"module @\S+", "module @program", text, count=1)


class BlankDataset(Dataset):
    """Placeholder puzzles with the shapes and counts of a run's config."""

    def __init__(self, config: RunConfig, puzzles: Sizes):
        super().__init__(Path())
        data = config.data
        counts = (1000, data.validation_puzzles, data.test_puzzles or 4096)  # no program depends on the first
        for name, count in zip(("train", "validation", "test"), counts, strict=True):
            self._splits[name] = blank_set(config, puzzles, count)
        self.__dict__["puzzles"] = puzzles
        tasks = [str(task) for task in range(self.split("test").groups)]
        self.__dict__["manifest"] = {"identity": "blank", "tasks": tasks}

    def has(self, name: str) -> bool:
        return self.split(name).examples > 0


def blank_set(config: RunConfig, puzzles: Sizes, count: int) -> PuzzleSet:
    """`count` placeholder puzzles of one split."""
    data, cells = config.data, np.ones((count, puzzles.seq_len), dtype=np.uint8)
    ignore = None if puzzles.ignore < 0 else puzzles.ignore
    meta = Meta(data.task, puzzles.seq_len, puzzles.vocab, puzzles.num_ids, data.augmentations)
    meta = dataclasses.replace(meta, box_rows=data.box_rows, box_cols=data.box_cols, ignore_label_id=ignore)
    blank = one_example_set(cells, cells, meta)
    if shape(data).num_puzzle_identifiers is not None:
        return blank
    cells[:] = 0
    cells[:, 0] = COLOUR_CODE  # a grid of one cell
    number = np.arange(count, dtype=np.int32) * (data.augmentations + 1) % max(1, puzzles.num_ids - 1)
    return dataclasses.replace(blank, puzzle_identifiers=(1 + number).astype(np.int32))


def rehearse(
    config: RunConfig, puzzles: Sizes, remat: bool | None = None, evaluation: bool = True
) -> tuple[Rehearsal, RecordedStep]:
    """Trace a run of two steps with all phases, and an evaluation; returns the recording backend and the step."""
    sync, backend, training = torch_xla.sync, Rehearsal(), config.training
    short = training.model_copy(
        update={"steps": 2, "snapshots": min(1, training.snapshots), "warmup_steps": 0}
    )
    config = config.model_copy(
        update={"training": short.model_copy(update={"curriculum": (), "init_from": None})}
    )
    runtime = RuntimeConfig(log_every=1, evals=1)
    dataset = BlankDataset(config, puzzles)
    with ExitStack() as stack:
        stack.callback(setattr, torch_xla, "sync", sync)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.enter_context(traced_as_on_tpu())
        out = Path(folder)
        trainer = Trainer(config, dataset, out, out / "checkpoints", backend, runtime, 0.0)
        step = trainer.program = RecordedStep(trainer.state, trainer.program.originals, backend)
        if remat is not None:
            step.network.remat = remat
        methods: list[tuple[object, str, str]] = [(trainer, *item) for item in PHASES.items()]
        for owner, method, phase in [*methods, (trainer.saver, "snapshot", "snapshot")]:
            setattr(owner, method, backend.during(phase, getattr(owner, method)))
        trainer.run()
        if evaluation:
            to_list: Callable[[Tensor], Any] = Tensor.tolist
            reading: dict[str, Callable[[Tensor], Any]] = {
                "cpu": lambda tensor: backend.read(tensor),  # a function, so that it becomes a method
                "tolist": lambda tensor: to_list(backend.read(tensor)),
            }
            for name, function in reading.items():
                stack.callback(setattr, Tensor, name, getattr(Tensor, name))
                setattr(Tensor, name, function)
            backend.during("evaluation", evaluate)(trainer, dataset)
    return backend, step


EVALUATION = EvaluationConfig(
    unroll=(1, 2), confident=True, restarts=(1, 2), start_noise=0.1, copies=2, train_puzzles=1000, steps=2
)
"""All policies at few steps; more steps run the same programs."""


def evaluate(trainer: Trainer, dataset: Dataset) -> None:
    """Evaluate the run under all policies."""
    backend, config, puzzles = trainer.backend, trainer.config, dataset.puzzles
    shapes = {f"raw.{name}": shape for name, shape in trainer.state.layout.shapes.items()}
    shapes |= dict.fromkeys(("buffers.h_init", "buffers.l_init"), (config.model.d_model,))
    if trainer.state.puzzle_table is not None:
        shapes[f"raw.{PUZZLE}"] = (puzzles.num_ids, config.model.d_model)
    meta = puzzles._asdict() | {"precision": config.training.precision, "run": "", "fingerprint": ""}
    meta |= {"data": record(dataset, config)}
    trained = TrainedModel(config, meta, {name: torch.zeros(shape) for name, shape in shapes.items()})
    Evaluation(trained, dataset, EVALUATION, backend).run()
