"""Measure a trained model under every policy that an EvaluationConfig asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from trm.data.dataset import PuzzleSet
from trm.devices.base import Backend
from trm.errors import UserError
from trm.evaluation import bins
from trm.evaluation.policies import confident, fixed, restarts
from trm.evaluation.votes import can_vote, vote_results
from trm.io import write_bytes, write_json
from trm.network.inference import InferenceNetwork
from trm.network.parameters import architecture
from trm.network.scores import Score
from trm.provenance import now, provenance
from trm.study.flops import forward_flops, parameters, train_flops
from trm.study.schema import EvaluationConfig
from trm.tasks import task_of
from trm.training.dataset import Dataset
from trm.training.outputs import PUZZLE, TrainedModel, load_weights
from trm.training.self_check import trust_or_replace
from trm.training.step import Originals


def inference_network(
    trained: TrainedModel, evaluation: EvaluationConfig, backend: Backend
) -> tuple[InferenceNetwork, str]:
    """The network with the weights that the evaluation asks for, in the precision of the training; and its name."""
    precision = backend.precision(trained.meta["precision"])
    arch = architecture(trained.config.model, precision.forward)
    cells, symbols = trained.meta["seq_len"], trained.meta["vocab"]
    trust_or_replace(backend, trained.config.model, cells, symbols, precision.forward)
    weights = trained.weights(evaluation.weights, evaluation.average)
    puzzle = trained.tensors.get(f"raw.{PUZZLE}")
    net = InferenceNetwork(
        {name: backend.place(tensor) for name, tensor in weights.items()},
        backend.place(trained.tensors["buffers.h_init"]),
        backend.place(trained.tensors["buffers.l_init"]),
        None if puzzle is None else backend.place(puzzle),
        arch,
        trained.config.model.h_cycles,
        trained.config.model.l_cycles,
        backend.network,
    )
    return net, precision.name


class Evaluation:
    """One evaluation of one run on one data set."""

    def __init__(
        self, trained: TrainedModel, dataset: Dataset, evaluation: EvaluationConfig, backend: Backend
    ):
        self.trained, self.dataset, self.evaluation, self.backend = trained, dataset, evaluation, backend
        found = dataset.puzzles._asdict()
        for name in ("seq_len", "vocab"):
            if found[name] != trained.meta[name]:
                raise UserError(
                    f"{dataset.folder} has {name} {found[name]}, and the run was trained with {trained.meta[name]}: "
                    "give the data set of the run"
                )
        self.net, self.precision = inference_network(trained, evaluation, backend)
        model = trained.config.model
        self.depths = tuple(sorted(set(evaluation.unroll))) or (model.halt_max_steps,)
        self.steps = evaluation.steps or model.halt_max_steps
        self.step_flops = forward_flops(model, found["seq_len"], found["vocab"])
        self.blank = dataset.blank
        self.results: list[dict[str, Any]] = []
        self.predictions: dict[str, np.ndarray] = {}

    def _score(self) -> Score:
        return Score(self.backend.device, self.dataset.puzzles.ignore, self.blank)

    def _own(self, data: Originals) -> Originals:
        """This worker's share of a split."""
        return Originals(*(tensor[self.backend.worker :: self.backend.world] for tensor in data))

    def _bins(self, split: str, right: torch.Tensor) -> dict[str, list[dict[str, Any]]]:
        """Puzzles and correct ones by difficulty; `right`: of this worker's share."""
        own, found = right.cpu().numpy(), {}
        puzzles = self._measured(split)
        for name, (numbers, limits) in bins.binned(puzzles, self.blank).items():
            counts = bins.counts(own, numbers[self.backend.worker :: self.backend.world], len(limits))
            total = self.backend.total(torch.from_numpy(counts))
            found[name] = bins.rows(total.numpy(), limits)
        return found

    def _measured(self, split: str) -> PuzzleSet:
        """The puzzles of a split that are measured."""
        count = self.evaluation.test_puzzles if split == "test" else self.evaluation.train_puzzles
        puzzles = self.dataset.split(split)
        return puzzles if count is None else puzzles.first(count)

    def _add(
        self,
        split: str,
        policy: str,
        steps: int,
        count: int,
        score: Score,
        seconds: float,
        right: torch.Tensor | None = None,
    ) -> None:
        result = score.result(self.backend)
        if right is not None and (found := self._bins(split, right)):
            result["bins"] = found
        flops = self.step_flops * result["mean_steps"] * count
        self.results.append(
            {"split": split, "policy": policy, "steps": steps, "restarts": count}
            | result
            | {"flops_per_puzzle": flops, "seconds": round(seconds, 3)}
        )

    def _fixed(self, split: str, data: Originals) -> dict[str, Any]:
        run = fixed(self.net, data, self.depths, self._score, self.backend.synchronize)
        for depth, timed in run.depths.items():
            self._add(split, "fixed", depth, 1, timed.score, timed.seconds, run.right[depth])
        last = max(self.depths)
        steps = torch.arange(1, last + 1, device=run.first_positive.device)
        counts = (run.first_positive[:, None] == steps).sum(0)
        total = torch.cat((counts, torch.tensor([len(run.first_positive)], device=counts.device)))
        *shares, puzzles = self.backend.total(self.backend.fetch(total)).tolist()
        if self.backend.world == 1:
            self.predictions[f"{split}_answers"] = run.answers.cpu().numpy()
            self.predictions[f"{split}_halt_logits"] = run.halt_logits.cpu().numpy()
            self.predictions[f"{split}_first_positive"] = run.first_positive.cpu().numpy()
        return {"steps": list(range(1, last + 1)), "share": [count / max(1, puzzles) for count in shares]}

    def _traces(self, data: Originals) -> list[dict[str, Any]]:
        """Answers after each step of the first test puzzles; symbols as in the data set's files."""
        count = min(self.evaluation.traces, len(data.inputs))
        if not count:
            return []
        inputs = data.inputs[:count]
        questions, solutions = inputs.tolist(), data.labels[:count].tolist()
        with torch.no_grad():
            x = self.net.embed(inputs, data.puzzle[:count])
            z_H, z_L = self.net.start(count, len(x))
            answers, halts = [], []
            for _ in range(self.steps):
                z_H, z_L, logits, halt = self.net.step(z_H, z_L, x)
                self.backend.synchronize()
                answers.append(logits.argmax(-1).t().tolist())
                halts.append(halt.tolist())
        return [
            {
                "question": questions[i],
                "answer": solutions[i],
                "steps": [step[i] for step in answers],
                "halt": [step[i] for step in halts],
            }
            for i in range(count)
        ]

    def run(self) -> dict[str, Any]:
        """All measurements, as evaluation-<hash8>.json holds them."""
        begun, evaluation, config = now(), self.evaluation, self.trained.config
        test = self.dataset.originals("test", self.backend, evaluation.test_puzzles)
        own = self._own(test)
        halting = self._fixed("test", own)
        if evaluation.confident:
            for depth in self.depths:
                timed, _ = confident(self.net, own, depth, self._score(), self.backend.synchronize)
                self._add("test", "confident", depth, 1, timed.score, timed.seconds)
        if evaluation.restarts:
            depth = self.steps
            how = (evaluation.restarts, evaluation.noise, self._score, self.backend.synchronize)
            found = restarts(self.net, own, depth, *how)
            for policy, scores in (
                ("restarts", found.best),
                ("majority", found.majority),
                ("oracle", found.oracle),
            ):
                for count, score in scores.items():
                    self._add("test", policy, depth, count, score, found.seconds[count])
        tasks: list[dict[str, Any]] = []
        if can_vote(self.dataset):
            own_tasks = (evaluation.copies, evaluation.test_puzzles)
            votes, tasks = vote_results(
                self.net, self.dataset, *own_tasks, self.steps, self.step_flops, self.backend
            )
            self.results += votes
        if evaluation.train_puzzles:
            self._fixed(
                "train", self._own(self.dataset.originals("train", self.backend, evaluation.train_puzzles))
            )
        meta, measured = self.trained.meta, self._measured("test")
        return {
            "format": 1,
            "run": meta["run"],
            "fingerprint": meta["fingerprint"],
            "seed": config.seed,
            "dataset": self.dataset.summary,
            "evaluation": evaluation.model_dump(mode="json"),
            "config": config.model_dump(mode="json"),
            "precision": self.precision,
            "parameters": parameters(config.model, meta["seq_len"], meta["vocab"]),
            "train_flops": train_flops(config.model, config.training, meta["seq_len"], meta["vocab"]),
            "results": self.results,
            "halting": halting,
            "tasks": tasks,
            "guess": task_of(config.data.task).guesses(config.data, measured.inputs, measured.labels),
            "traces": self._traces(test),
            "backend": self.backend.name,
            "network": self.backend.network,
            "device_name": self.backend.device_name(),
            "workers": self.backend.world,
            "provenance": provenance(begun),
        }


def evaluate_run(
    run: Path,
    dataset: Path,
    evaluation: EvaluationConfig,
    out: Path,
    predictions: Path | None,
    backend: Backend,
) -> dict[str, Any] | None:
    """Measure the run in folder `run` and write `out` (and the answers, if asked for); returns what `out` holds, in the
    first worker.

    Raises:
        UserError: where files are missing or do not fit together.
    """
    measured = Evaluation(load_weights(run), Dataset(dataset), evaluation, backend)
    document = measured.run()
    if backend.rank:
        return None
    if predictions:
        if backend.world > 1:
            raise UserError("--predictions needs a single worker")
        import io

        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **measured.predictions)
        write_bytes(predictions, buffer.getvalue())
    write_json(out, document)
    return document
