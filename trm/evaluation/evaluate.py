"""Evaluate a trained model under all policies of an EvaluationConfig."""

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trm.backends.base import Backend
from trm.backends.registry import load_implementation
from trm.data.dataset import PuzzleSet
from trm.errors import UserError
from trm.evaluation import bins
from trm.evaluation.parts import Parts, compute
from trm.evaluation.passes import Pass
from trm.evaluation.policies import Policies
from trm.evaluation.symmetry import Views, random_views, restart_symmetries
from trm.evaluation.votes import can_vote, vote_results
from trm.io import write_bytes, write_json
from trm.model.act import Rows
from trm.model.inference import InferenceNetwork
from trm.model.parameters import architecture
from trm.model.scores import Score
from trm.provenance import loaded_commit, now, provenance
from trm.study.fingerprint import digest, evaluation_marks
from trm.study.flops import forward_flops, parameters, train_flops
from trm.study.records import sealed
from trm.study.schema import EvaluationConfig
from trm.study.tasks import no_guesses
from trm.tasks import task_of
from trm.training.dataset import Dataset
from trm.training.origin import check_run
from trm.training.outputs import PUZZLE, TrainedModel, load_weights


def inference_network(
    trained: TrainedModel, evaluation: EvaluationConfig, backend: Backend
) -> tuple[InferenceNetwork, str]:
    """The network with the evaluation's choice of weights, and the name of its precision, which is the training's."""
    precision = backend.precision(trained.meta["precision"])
    arch = architecture(trained.config.model, precision.forward)
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
        load_implementation(backend.implementation),
    )
    return net, precision.name


class Evaluation:
    """One evaluation of one run on one data set."""

    def __init__(
        self, trained: TrainedModel, dataset: Dataset, evaluation: EvaluationConfig, backend: Backend
    ):
        self.trained, self.dataset, self.evaluation, self.backend = trained, dataset, evaluation, backend
        self.own = check_run(trained, dataset)
        sizes = dataset.puzzles
        self.net, self.precision = inference_network(trained, evaluation, backend)
        model = trained.config.model
        if sentence := no_guesses(trained.config, evaluation):
            raise UserError(sentence)
        self.depths = tuple(sorted(set(evaluation.unroll))) or (model.halt_max_steps,)
        self.steps = evaluation.steps or model.halt_max_steps
        self.views = self._views(max(self.depths))
        self.step_flops = forward_flops(model, sizes.seq_len, sizes.vocab)
        self.blank = dataset.blank
        batches = partial(compute, fetch=backend.fetch_all)
        turn = backend.worker, backend.world
        self.policies = Policies(self.net, self._score, backend.synchronize, batches, turn)
        self.results: list[dict[str, Any]] = []
        self.predictions: dict[str, np.ndarray] = {}

    @property
    def identity(self) -> str:
        """Digest of all that the results of a batch depend on."""
        backend, evaluation = self.backend, self.evaluation.model_dump(mode="json")
        device = [backend.name, backend.implementation, backend.device_name(), self.precision]
        return digest([self.trained.sha256, self.dataset.summary, evaluation, device])

    def _score(self) -> Score:
        return Score(self.backend.device, self.dataset.puzzles.ignore, self.blank)

    def _views(self, steps: int) -> Views | None:
        evaluation = self.evaluation
        how = (evaluation.view_puzzle_every, evaluation.view_guesses)
        return random_views(self.trained.config.data, evaluation.view_steps, steps, *how)

    def _progress(self, what: str) -> str:
        """The name of this work for its progress, which one worker prints."""
        return "" if self.backend.rank else f"evaluating {what}"

    def _share(self, data: Rows) -> Rows:
        """This worker's share of a split. Raises UserError if one would have none."""
        count, workers = len(data.inputs), self.backend.world
        if count < workers:
            raise UserError(
                f"{count} puzzles of {self.dataset.folder} for {workers} workers: give more puzzles"
            )
        return Rows(*(tensor[self.backend.worker :: self.backend.world] for tensor in data))

    def _bins(self, split: str, right: torch.Tensor) -> dict[str, list[dict[str, Any]]]:
        """Accuracy by difficulty; `right`: results of this worker's share."""
        local, result = right.numpy(), {}
        for name, (numbers, limits) in bins.binned(self._selected(split), self.blank).items():
            counts = bins.counts(local, numbers[self.backend.worker :: self.backend.world], len(limits))
            total = self.backend.total(torch.from_numpy(counts))
            result[name] = bins.rows(total.numpy(), limits)
        return result

    def _selected(self, split: str) -> PuzzleSet:
        """The puzzles of a split that are evaluated."""
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
        seconds: float | None,
        right: torch.Tensor | None = None,
    ) -> None:
        result = score.result(self.backend.total)
        if right is not None and (by_difficulty := self._bins(split, right)):
            result["bins"] = by_difficulty
        flops = self.step_flops * result["mean_steps"] * count
        self.results.append(
            {"split": split, "policy": policy, "steps": steps, "restarts": count}
            | result
            | {"flops_per_puzzle": flops, "seconds": seconds and round(seconds, 3)}
        )

    def _fixed(self, split: str, data: Rows, stopping: bool = False) -> dict[str, Any]:
        name = self._progress(f"{split} puzzles, {max(self.depths)} steps")
        run = self.policies.fixed(data, self.depths, self.views, name, stopping)
        for depth, score in run.scores.items():
            self._add(split, "fixed", depth, 1, score, run.seconds[depth], run.right[depth])
        for depth, score in run.confident.items():
            self._add(split, "confident", depth, 1, score, None)
        last = max(self.depths)
        steps = torch.arange(1, last + 1)
        firsts = torch.stack((run.first_positive, run.first_right))
        counts = (firsts[:, :, None] == steps).sum(1).flatten()
        total = torch.cat((counts, torch.tensor([firsts.shape[1]])))
        *numbers, puzzles = self.backend.total(total).tolist()
        shares = [number / max(1, puzzles) for number in numbers]
        if self.backend.world == 1:
            kept = ("answers", "halt_logits", "first_positive")
            self.predictions |= {f"{split}_{name}": getattr(run, name).numpy() for name in kept}
        return {"steps": list(range(1, last + 1)), "share": shares[:last], "solved": shares[last:]}

    def _traces(self, data: Rows) -> list[dict[str, Any]]:
        """Answers after each step on the first test puzzles; symbols as in the data set files."""
        count = min(self.evaluation.traces, len(data.inputs))
        if not count:
            return []
        inputs = data.inputs[:count]
        questions, solutions = inputs.tolist(), data.labels[:count].tolist()
        with torch.no_grad():
            states = Pass(self.net, inputs, data.puzzle[:count], views=self._views(self.steps))
            answers, halts = [], []
            for _ in range(self.steps):
                logits, halt = states.step()
                self.backend.synchronize()
                answers.append(states.answers(logits).tolist())
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
        """Run all policies; returns the content of evaluation-<hash8>.json."""
        started_at, evaluation, config = now(), self.evaluation, self.trained.config
        loaded_commit()  # files may be edited while this runs
        test = self.dataset.originals("test", self.backend, evaluation.test_puzzles)
        share = self._share(test)
        halting = self._fixed("test", share, evaluation.confident)
        if evaluation.restarts:
            noise = evaluation.start_noise, evaluation.step_noise
            symmetries = restart_symmetries(config.data, max(evaluation.restarts), any(noise))
            name = self._progress(f"test puzzles, {max(evaluation.restarts)} starts of {self.steps} steps")
            how = (evaluation.restarts, noise, symmetries, self._views(self.steps), name)
            result = self.policies.restarts(test if any(noise) else share, self.steps, *how)
            policies = {"restarts": result.best, "majority": result.majority, "oracle": result.oracle}
            for policy, scores in policies.items():
                for count, score in scores.items():
                    self._add("test", policy, self.steps, count, score, result.seconds[count])
                    if policy == "restarts":
                        solved = self.backend.total(self.backend.fetch(result.solved[count]))
                        self.results[-1]["solved_counts"] = [int(number) for number in solved.tolist()]
        tasks: list[dict[str, Any]] = []
        if can_vote(self.dataset):
            selection = (evaluation.copies, evaluation.test_puzzles)
            votes, tasks = vote_results(
                self.net, self.dataset, *selection, self.steps, self.step_flops, self.backend
            )
            self.results += votes
        if evaluation.train_puzzles and self.own:
            train = self.dataset.originals("train", self.backend, evaluation.train_puzzles)
            self._fixed("train", self._share(train))
        meta, selected = self.trained.meta, self._selected("test")
        return {
            "format": 1,
            "run": meta["run"],
            "fingerprint": meta["fingerprint"],
            "seed": config.seed,
            "weights_sha256": self.trained.sha256,
            "dataset": self.dataset.summary,
            "evaluation": evaluation.model_dump(mode="json"),
            **evaluation_marks(config.data),
            "config": config.model_dump(mode="json"),
            "precision": self.precision,
            "parameters": parameters(config.model, meta["seq_len"], meta["vocab"]),
            "train_flops": train_flops(config.model, config.training, meta["seq_len"], meta["vocab"]),
            "results": self.results,
            "halting": halting,
            "tasks": tasks,
            "guess": task_of(config.data.task).guesses(config.data, selected.inputs, selected.labels),
            "traces": self._traces(test),
            "backend": self.backend.name,
            "implementation": self.backend.implementation,
            "device_name": self.backend.device_name(),
            "workers": self.backend.world,
            "provenance": provenance(started_at),
        }


def evaluate_run(
    run: Path,
    dataset: Path,
    evaluation: EvaluationConfig,
    out: Path,
    predictions: Path | None,
    backend: Backend,
    parts: Parts | None = None,
) -> dict[str, Any] | None:
    """Evaluate the run in folder `run`; the first worker writes and returns the content of `out`.

    Args:
        predictions: also write the answers to this file.
        parts: where a single worker keeps the results of batches until the whole is written.

    Raises:
        UserError: files are missing or do not match.
        StopRequested: `parts` reached the time limit, or a signal came.
    """
    if predictions and backend.world > 1:
        raise UserError("--predictions requires a single worker")
    runner = Evaluation(load_weights(run), Dataset(dataset), evaluation, backend)
    if parts and backend.world == 1:
        parts.open(runner.identity, backend.fetch_all)
        runner.policies.run = parts.compute
        with parts.signals:
            document = runner.run()
    else:
        document = runner.run()
    if backend.rank:
        return None
    if predictions:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **runner.predictions)
        write_bytes(predictions, buffer.getvalue())
    write_json(out, sealed(document))
    if parts:
        parts.remove()
    return document
