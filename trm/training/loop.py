"""The training loop: steps, reports, validation, checkpoints, and the end of a run."""

import math
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trm.backends.base import Backend
from trm.backends.registry import load_implementation
from trm.errors import UserError
from trm.model.act import Rows
from trm.model.inference import InferenceNetwork
from trm.model.parameters import tensors
from trm.model.scores import Score
from trm.provenance import loaded_commit, now
from trm.study.fingerprint import RECIPE_VERSION
from trm.study.schema import RunConfig, RuntimeConfig
from trm.study.stages import recursion_stages, stage_at
from trm.training.checkpoints.folder import CheckpointFolder, load_newest
from trm.training.checkpoints.saving import Record, Saver, resume_identity
from trm.training.dataset import Dataset
from trm.training.feed import Feed
from trm.training.finish import divergence_message, finish_run
from trm.training.interrupt import EXIT_TERMINATED, EXIT_UNFINISHED, Signals, StopRequested
from trm.training.memory import explain_out_of_memory, out_of_memory_message
from trm.training.metrics import INDEX, Clocks
from trm.training.optim.schedule import lr_factor
from trm.training.profile import Profile
from trm.training.programs import program_of
from trm.training.report import Reporter
from trm.training.state import TrainState
from trm.training.validate import validate

COMPARE_EVERY = 1000
"""Steps between comparisons of the workers' weights, besides those at the start and before each checkpoint."""


class Trainer:
    """Trains one run to its end, resuming from its newest checkpoint.

    `started`: time.monotonic() when the process started; `initial`: weights to start from, by name.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        out: Path,
        checkpoints: Path | CheckpointFolder,
        backend: Backend,
        runtime: RuntimeConfig,
        started: float,
        initial: dict[str, Tensor] | None = None,
    ):
        self.config, self.dataset, self.out = config, dataset, out
        self.backend, self.runtime = backend, runtime
        self.started, self.started_at = started, now()
        loaded_commit()  # files may be edited while this runs
        folder = CheckpointFolder(checkpoints) if isinstance(checkpoints, Path) else checkpoints
        loaded = load_newest(folder)
        requested = config.training.precision
        if requested == "auto" and loaded:
            requested = loaded.meta["identity"]["precision"]  # a resumed run keeps its precision
        self.precision = backend.precision(requested)
        identity = resume_identity(config, RECIPE_VERSION, dataset.summary, self.precision.name)
        self.saver = Saver(folder, backend, identity)
        self.record = Record()
        sizes = dataset.puzzles
        with explain_out_of_memory(self._out_of_memory):
            self.state = TrainState(config, sizes, self.precision, backend)
            if loaded:
                self.saver.resume(loaded, self.state, self.record)
            else:
                self.state.initialise(backend)
                if initial:
                    self.state.load_weights(initial, backend)
            self.program = program_of(self.state, dataset.originals("train", backend), backend)
        self.signals = Signals()
        self.program.before_update = self._before_update
        self.resumed_at = self.record.done
        """Steps done before this process."""
        self.clocks = Clocks()
        self.feed = Feed(config, dataset, backend, self.clocks)
        self.stages = recursion_stages(config.model, config.training)
        self.profile = Profile(runtime.profile_steps, folder.root / f"profile-{backend.rank}.json", backend)
        self.validation = dataset.originals("validation", backend) if dataset.has("validation") else None
        self.setup_seconds = 0.0
        self.loop_started = time.monotonic()
        self.reporter = Reporter(config, runtime, backend, sizes, self.record, self.clocks, folder, out.name)

    # -- the run

    def run(self) -> int:
        """Train to the end. Returns 0, or the exit code of the signal or time limit that stopped it after a checkpoint.

        Raises:
            UserError: the loss is NaN or inf, memory or disk is full, workers differ or are lost.
        """
        record, steps = self.record, self.config.training.steps
        with self.signals, explain_out_of_memory(self._out_of_memory):
            try:
                self.reporter.open(self.precision)
                self.compare_workers()
                self.setup_seconds = time.monotonic() - self.started
                self.loop_started = self.saver.saved_at = time.monotonic()
                self.reporter.begin()
                while record.pending or record.done < steps:
                    self._one_step()
                    if self.backend.stop_agreed(self.state.stop, record.done, self.signals.stop):
                        return self._stopped()
            except StopRequested:
                return self._stopped()
            self._finish()
            return 0

    def _before_update(self) -> None:
        self.signals.commit()
        self.backend.request_stop(self.state.stop, self.signals.stop)

    def _one_step(self) -> None:
        """Sample, step, take a snapshot, validate, report, save. Resumed after a step, all that is due after it."""
        record, training, runtime = self.record, self.config.training, self.runtime
        if not record.pending:
            self._sample_and_step(record.done + 1)
        step, last = record.done, record.done == training.steps
        for k in range(1, training.snapshots + 1):
            if step == snapshot_step(k, training.snapshots, training.steps) and k not in record.snapshots:
                self.saver.snapshot(k, self.state, record)
        scores, improved = {}, False
        if self.validation and is_evaluation_step(step, training.steps, runtime.evals):
            scores = self._validate(self.validation)
            improved = self._keep_best(scores["eval/exact_accuracy"])
        if scores or last or step % runtime.log_every == 0:
            self._report(scores)
        record.pending = False
        if step % COMPARE_EVERY == 0:
            self.compare_workers()
        if last or self.signals.report_requested():
            self._write_backend_report()
        if improved or last or self._checkpoint_due():
            self.save()

    def _sample_and_step(self, step: int) -> None:
        self._check_time()
        self.profile.before(step)
        started = time.monotonic()
        with self.signals.abandonable(self.backend.processes == 1):
            batch = self.feed.batch(step)
            self.program(batch, stage_at(self.stages, step).recursion)
        self.clocks.step += time.monotonic() - started
        self.record.done, self.record.pending = step, True
        self.profile.after(step)

    def _keep_best(self, accuracy: float) -> bool:
        """Whether the validation accuracy of this step is the best so far, which the record then names."""
        record = self.record
        improved = record.best is None or accuracy > record.best["eval/exact_accuracy"]
        if improved:
            record.best = {"step": record.done, "eval/exact_accuracy": accuracy}
        return improved

    def _check_time(self) -> None:
        """Request a stop at the time limit, but not before the first step of this process."""
        limit = self.runtime.stop_after_minutes
        if limit is None or self.record.done == self.resumed_at:
            return
        if time.monotonic() - self.started >= 60 * limit:
            self.signals.stop = self.signals.stop or EXIT_UNFINISHED

    def _checkpoint_due(self) -> bool:
        """Whether a checkpoint is due, by the first worker's clock."""
        due = time.monotonic() - self.saver.saved_at >= 60 * self.runtime.checkpoint_minutes
        if self.backend.processes == 1:
            return due
        if self.record.done % 10:
            return False
        agreed = torch.tensor([due], dtype=torch.uint8)
        self.backend.broadcast(agreed)
        return bool(agreed)

    def save(self) -> None:
        """Write a checkpoint; raises UserError if the weights are not finite, or not those of the other workers."""
        self.compare_workers()
        sums, _, norms = self._fetch()
        self._check_finite(sums, norms["train/weight_norm"])
        self.reporter.flush()
        self.saver.save(self.state, self.record, self.wall_seconds_now())

    def _stopped(self) -> int:
        if self.record.done:
            self.save()
        if self.backend.rank == 0:
            done = self.record.done
            kept = f"; it resumes from {self.saver.folder.folder(done)}" if done else ""
            print(f"stopped at step {done} of {self.config.training.steps}{kept}", flush=True)
        self.reporter.close()
        # another worker's signal stops this one without a code of its own
        return self.signals.stop or (
            EXIT_TERMINATED if self.runtime.stop_after_minutes is None else EXIT_UNFINISHED
        )

    def wall_seconds_now(self) -> float:
        """Seconds of the training loop so far, over all resumes."""
        return self.record.wall_seconds + time.monotonic() - self.loop_started

    # -- reports

    def _fetch(self) -> tuple[list[float], float, dict[str, float]]:
        """Metric sums, learning rate, and the norms of all weights and of each one by column name, in one transfer."""
        training, state, started = self.config.training, self.state, time.monotonic()
        lr = lr_factor(state.step, training.warmup_steps, training.steps, training.lr_min_ratio) * training.lr
        whole, weights = tensors(state.params), dict(state.layout.views(state.params))
        if state.puzzle_table is not None:
            weights["puzzle.weight"] = state.puzzle_table
        norms = [torch.linalg.vector_norm(w, dtype=torch.float32) for w in (*whole, *weights.values())]
        fetched = self.backend.fetch(torch.cat((state.meter.sums, lr[None], torch.stack(norms)))).tolist()
        self.clocks.step += time.monotonic() - started  # the fetch waits for the device
        sums, (rate, *found) = fetched[: state.meter.size], fetched[state.meter.size :]
        total = {"train/weight_norm": math.hypot(*found[: len(whole)])}
        named = zip((f"train/weight_norm/{name}" for name in weights), found[len(whole) :], strict=True)
        return sums, rate, total | dict(named)

    def _report(self, scores: dict[str, float | None]) -> None:
        sums, lr, norms = self._fetch()
        self._check_finite(sums, norms["train/weight_norm"])
        parts = self.state.micro * self.backend.world
        self.reporter.report(sums, parts, lr, norms, scores, self.wall_seconds_now())
        self.state.meter.sums.zero_()

    def _write_backend_report(self) -> None:
        """Write the backend's diagnostics, if it has any, beside the checkpoints."""
        if report := self.backend.report():
            self.saver.folder.write_extra(f"xla-metrics-{self.backend.rank}.txt", report.encode())

    def _check_finite(self, sums: list[float], weight_norm: float) -> None:
        """Raise a UserError if the loss or gradient was NaN or inf since the last report, or a weight is."""
        step = int(sums[INDEX["bad_step"]])
        if not step and math.isfinite(weight_norm):
            return
        what = "a weight" if not step else "the loss" if sums[INDEX["bad_loss"]] else "the gradient norm"
        at, last = step or self.record.done, max(self.saver.folder.steps(), default=None)
        norm = self.reporter.weight_norm
        raise UserError(divergence_message(self.config.training, self.precision.name, norm, what, at, last))

    def _out_of_memory(self) -> str:
        return out_of_memory_message(
            self.config,
            self.dataset.puzzles,
            self.precision.forward,
            self.backend,
            self.state.micro if hasattr(self, "state") else self.config.training.micro_batches,
        )

    # -- validation, workers, the end

    def _validate(self, puzzles: Rows) -> dict[str, Any]:
        """Metrics of the EMA weights on the validation puzzles, which are split among the workers."""
        state, model, backend = self.state, self.config.model, self.backend
        state.share_average(backend)
        weights = state.layout.views(state.averaged()), state.h_init, state.l_init, state.puzzle_table
        cycles = model.h_cycles, model.l_cycles
        net = InferenceNetwork(*weights, state.arch, *cycles, load_implementation(backend.implementation))
        inputs, labels, ids = (tensor[backend.worker :: backend.world] for tensor in puzzles)
        score = Score(backend.device, self.dataset.puzzles.ignore, self.dataset.blank)
        with self.signals.abandonable(backend.processes == 1):
            validate(net, inputs, labels, ids, model.halt_max_steps, self.dataset.puzzles.ignore, score)
        result = score.result(backend.total)
        metrics = ("exact_accuracy", "accuracy", "blank_accuracy", "cross_entropy")
        return {f"eval/{name}": result[name] for name in metrics}

    def compare_workers(self) -> None:
        """Check that all workers hold the same weights.

        Raises:
            UserError: names the first worker that differs, and the step.
        """
        if self.backend.processes == 1:
            return
        state = self.state
        state.share_average(self.backend)
        buffers = [state.params, state.ema, state.puzzle_table]
        held = [tensor for buffer in buffers if buffer is not None for tensor in tensors(buffer)]
        words = [self.backend.fetch(tensor).contiguous().view(torch.uint8) for tensor in held]
        checksums = self.backend.gather(torch.tensor([zlib.crc32(word.numpy().tobytes()) for word in words]))
        for rank, other in enumerate(checksums):
            if not torch.equal(other, checksums[0]):
                raise UserError(
                    f"worker {rank} does not hold the same weights as worker 0 at step {self.record.done}. Its memory "
                    "or its link is faulty: leave that machine out and start again from the last checkpoint"
                )

    def _finish(self) -> None:
        """Write weights.safetensors, history.csv and, last, training.json, each atomically."""
        self.reporter.close()
        seconds = (self.wall_seconds_now(), self.setup_seconds)
        finish_run(self.out, self.state, self.record, self.backend, self.dataset, *seconds, self.started_at)
        self.backend.gather(torch.zeros(1))


def snapshot_step(k: int, count: int, steps: int) -> int:
    """Step of snapshot `k` of `count`: evenly spaced over the second half, the last one at the last step."""
    return steps - (count - k) * (steps // 2) // count


def is_evaluation_step(step: int, steps: int, evals: int) -> bool:
    """Whether validation is due: `evals` times, evenly spaced, the last one at the last step."""
    return step * evals // steps > (step - 1) * evals // steps
