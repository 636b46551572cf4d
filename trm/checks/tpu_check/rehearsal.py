"""All programs of a run, traced in the trainer's own order as a TPU host would trace them, and none of them run.

The trainer works on a backend that notes each program's StableHLO where it would be started, and gives its results no
data; what the host reads is made up. It acts as the second host of two, which starts the same programs as the first
and writes no files.
"""

from __future__ import annotations

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

from trm.data.dataset import Meta, PuzzleSet, one_example_set
from trm.devices.base import Step
from trm.devices.xla import XlaBackend
from trm.evaluation.evaluate import Evaluation
from trm.network.tpu.network import XlaNetwork
from trm.study.dataset_identity import shape
from trm.study.schema import EvaluationConfig, RunConfig, RuntimeConfig
from trm.training.dataset import Dataset
from trm.training.loop import Trainer
from trm.training.outputs import PUZZLE, TrainedModel
from trm.training.state import Puzzles

XLA = torch_xla._XLAC
PHASES = {
    "_one_step": "step",
    "_report": "report",
    "save": "checkpoint",
    "_validate": "validation",
    "_finish": "finish",
    "compare_workers": "comparison of hosts",
}
"""Methods of the trainer, and what the programs that they start are called."""
CODE_OF_COLOUR = 2


@contextmanager
def traced_as_on_tpu() -> Iterator[None]:
    """torch_xla lowers some operations differently if PJRT_DEVICE is TPU at that moment; its client stays the same."""
    before = os.environ["PJRT_DEVICE"]
    os.environ["PJRT_DEVICE"] = "TPU"
    try:
        yield
    finally:
        os.environ["PJRT_DEVICE"] = before


class Rehearsal(XlaBackend):
    """Notes programs instead of running them."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self._processes, self.on_tpu = 1, 2, True
        self.phase = "start"
        self.programs: list[tuple[str, str]] = []
        """(phase, StableHLO) in the order of their first start; equal ones once."""
        self.step_sizes = (0, 0)
        """Arguments and results of the training step."""
        self._known: set[str] = set()
        self._stepped = False
        torch_xla.sync = lambda *_, **__: self._start([])

    def gather(self, vector: Tensor) -> list[Tensor]:
        return [vector] * self._processes

    def broadcast(self, tensor: Tensor) -> None:
        pass

    def stop_agreed(self, stop: Tensor, step: int, requested: int) -> bool:
        return False

    def program(self, step: Step) -> Callable[..., None]:
        def run(batch: Any, h_cycles: int, l_cycles: int) -> None:
            torch_xla.sync()
            step(batch, h_cycles, l_cycles)
            self._lay_out(step.state)
            tensors = [*step.state.changed_tensors(), step.state.reduce]
            pending = XLA._check_tensor_need_materialization(tensors)
            changed = [tensor for tensor, new in zip(tensors, pending, strict=True) if new]
            self.step_sizes = len(XLA._get_tensors_xla_device_data_node(changed)[0]), len(changed)
            # at first the average shares the weights' memory; a replay parts such tensors before it traces
            self._start(changed, noted=self._stepped)
            self._stepped = True

        return run

    def during(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with its programs recorded under the phase."""

        def run(*arguments: Any, **options: Any) -> Any:
            before, self.phase = self.phase, phase
            try:
                return call(*arguments, **options)
            finally:
                self.phase = before

        return run

    def _read(self, tensor: Tensor) -> Tensor:
        make = torch.ones if self.phase == "validation" else torch.zeros  # scores are divided by their count
        return make(tensor.shape, dtype=tensor.dtype)

    def read(self, tensor: Tensor) -> Tensor:
        """A tensor on the host, as `Tensor.cpu` gives it: what is pending for it is a program of its own."""
        if tensor.device.type != "xla":
            return tensor
        if XLA._check_tensor_need_materialization([tensor])[0]:
            self._start([tensor])
        return self._read(tensor)

    def _start(self, outputs: list[Tensor], noted: bool = True) -> None:
        """Note the program that makes these tensors, or all that are pending, and forget it."""
        text = only_computed(XLA._get_stablehlo(outputs, str(self.device), [], False).decode())
        if noted and text and text not in self._known:
            self._known.add(text)
            self.programs.append((self.phase, text))
        XLA._clear_pending_irs(str(self.device))


def only_computed(module: str) -> str:
    """A StableHLO module without results that are arguments, and without unused arguments; empty if nothing is left.

    Asked for all pending tensors, torch_xla also passes every other tensor through.
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
    number: dict[str, str] = {}  # those of inner functions count on from the module's
    for name in re.findall(r"%arg\d+\b", "\n".join(lines[at:])):
        number.setdefault(name, f"%arg{len(number)}")
    text = re.sub(r"%arg\d+\b", lambda match: number[match.group()], "\n".join(lines))
    return re.sub(r"module @\S+", "module @program", text, count=1)


class BlankDataset(Dataset):
    """Placeholder puzzles of the shapes and in the numbers that the run's configuration asks for."""

    def __init__(self, config: RunConfig, puzzles: Puzzles):
        super().__init__(Path())
        data = config.data
        counts = {
            "train": 1000,
            "validation": data.validation_puzzles,
        }  # the training set's size changes no program
        counts["test"] = data.test_puzzles or 4096
        for name, count in counts.items():
            self._splits[name] = blank_set(config, puzzles, count)
        self.__dict__["puzzles"] = puzzles
        self.__dict__["tasks"] = [str(task) for task in range(self.split("test").groups)]

    def has(self, name: str) -> bool:
        return self.split(name).examples > 0


def blank_set(config: RunConfig, puzzles: Puzzles, count: int) -> PuzzleSet:
    """`count` placeholder puzzles of one split."""
    data, cells = config.data, np.ones((count, puzzles.seq_len), dtype=np.uint8)
    ignore = None if puzzles.ignore < 0 else puzzles.ignore
    meta = Meta(data.task, puzzles.seq_len, puzzles.vocab, puzzles.num_ids, data.augmentations)
    meta = dataclasses.replace(
        meta, box_rows=data.box_rows, box_cols=data.box_cols, ignore_label_id=ignore, identity="blank"
    )
    found = one_example_set(cells, cells, meta)
    if shape(data).num_puzzle_identifiers is not None:
        return found
    cells[:] = 0
    cells[:, 0] = CODE_OF_COLOUR  # a grid of one cell
    identifiers = 1 + np.arange(count, dtype=np.int32) * (data.augmentations + 1) % max(
        1, puzzles.num_ids - 1
    )
    return dataclasses.replace(found, puzzle_identifiers=identifiers.astype(np.int32))


def rehearse(
    config: RunConfig, puzzles: Puzzles, remat: bool | None = None, evaluation: bool = True
) -> tuple[Rehearsal, XlaNetwork]:
    """Trace a run of two steps with every phase, and an evaluation; the backend that noted it, and the network."""
    sync, backend, training = torch_xla.sync, Rehearsal(), config.training
    short = training.model_copy(
        update={"steps": 2, "snapshots": min(1, training.snapshots), "warmup_steps": 0}
    )
    config = config.model_copy(
        update={"training": short.model_copy(update={"curriculum": (), "init_from": None})}
    )
    runtime = RuntimeConfig(log_every=1, evals=1, checksum_every=1)
    dataset = BlankDataset(config, puzzles)
    with ExitStack() as stack:
        stack.callback(setattr, torch_xla, "sync", sync)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.enter_context(traced_as_on_tpu())
        out = Path(folder)
        trainer = Trainer(config, dataset, out, out / "checkpoints", backend, runtime, 0.0)
        network = trainer.step.network
        assert isinstance(network, XlaNetwork)
        if remat is not None:
            network.remat = remat
        noted: list[tuple[object, str, str]] = [(trainer, *item) for item in PHASES.items()]
        for owner, method, phase in [*noted, (trainer.saver, "snapshot", "snapshot")]:
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
    return backend, network


EVALUATION = EvaluationConfig(
    unroll=(1, 2), confident=True, restarts=(1, 2), noise=0.1, copies=2, train_puzzles=1000, steps=2
)
"""Every policy, at few steps: more of them start the same programs."""


def evaluate(trainer: Trainer, dataset: Dataset) -> None:
    """The evaluation of the run, by every policy."""
    backend, config, puzzles = trainer.backend, trainer.config, dataset.puzzles
    shapes = {f"raw.{name}": shape for name, shape in trainer.state.layout.shapes.items()}
    shapes |= dict.fromkeys(("buffers.h_init", "buffers.l_init"), (config.model.d_model,))
    if trainer.state.puzzle_table is not None:
        shapes[f"raw.{PUZZLE}"] = (puzzles.num_ids, config.model.d_model)
    meta = puzzles._asdict() | {"precision": config.training.precision, "run": "", "fingerprint": ""}
    trained = TrainedModel(config, meta, {name: torch.zeros(shape) for name, shape in shapes.items()})
    Evaluation(trained, dataset, EVALUATION, backend).run()
