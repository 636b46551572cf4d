"""What a run tells while it trains: a history row, the console line, TensorBoard, Weights & Biases, and warnings."""

from __future__ import annotations

import math
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

from trm.devices.cpu import peak_resident_bytes
from trm.study.flops import parameters, step_flops
from trm.training.history import TensorBoard, WeightsAndBiases, progress_line, si, to_csv
from trm.training.metrics import named_means

if TYPE_CHECKING:
    from trm.training.loop import Trainer

TRANSFER_SHARE = 0.1  # of a step's time that moving its batch to the device may take


class Reporter:
    """Makes the history row of a report; in the first process it also prints and writes it.

    Called by all workers at the same steps: the row holds numbers of each of them.
    """

    def __init__(self, trainer: Trainer):
        self._trainer = trainer
        self._writers: list[Any] = []
        self._warned = False
        self._resumed_at = self._step = trainer.record.done
        self.weight_norm = math.nan
        """Norm of all weights at the last report."""
        self.restart()

    def restart(self) -> None:
        """Begin to measure: called when the first step is about to begin."""
        self._at, self._step = time.monotonic(), self._trainer.record.done
        self._stepping, self._feeding, self._moving = self._clocks()

    def _clocks(self) -> tuple[float, float, float]:
        """Seconds so far in steps, in making batches, and in moving them to the device."""
        trainer = self._trainer
        return trainer.step_seconds, trainer.feed.host_seconds, trainer.feed.transfer_seconds

    def open(self) -> None:
        """Open what the runtime settings ask for, in the first process."""
        trainer = self._trainer
        if trainer.backend.rank:
            return
        root, runtime = trainer.saver.folder.root, trainer.runtime
        if runtime.tensorboard:
            self._writers.append(TensorBoard(root / "tensorboard", trainer.record.done))
        if runtime.wandb != "off":
            config = trainer.config.model_dump(mode="json")
            name, fingerprint = trainer.out.name, trainer.fingerprint
            self._writers.append(WeightsAndBiases(runtime.wandb, root, name, fingerprint, config))

    def flush(self) -> None:
        """Have everything written so far in the files."""
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        """Flush and close."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def announce(self) -> None:
        """The first line: what is trained, where, in which precision and why."""
        trainer = self._trainer
        if trainer.backend.rank:
            return
        model, training, backend = trainer.config.model, trainer.config.training, trainer.backend
        size = parameters(model, trainer.dataset.puzzles.seq_len, trainer.dataset.puzzles.vocab)
        print(
            f"TRM {model.mixer} d={model.d_model} T={model.h_cycles} n={model.l_cycles}, {si(size)} parameters, on "
            f"{backend.name} ({backend.device_name()}; {trainer.threads} threads, {backend.world} workers); "
            f"{trainer.precision.name}: {trainer.precision.reason}; {training.steps} steps of "
            f"{training.batch_size} rows",
            flush=True,
        )
        if trainer.record.done:
            print(f"resumed from {trainer.saver.folder.folder(trainer.record.done)}", flush=True)

    def report(
        self, sums: list[float], lr: float, norms: dict[str, float], scores: dict[str, float], seconds: float
    ) -> None:
        """One row from the fetched metric sums, learning rate and norms; `scores` of the validation, if there was one.

        `seconds`: training time so far, over all resumes.
        """
        trainer, record, training = self._trainer, self._trainer.record, self._trainer.config.training
        self.weight_norm = norms["train/weight_norm"]
        row: dict[str, Any] = {
            "step": record.done,
            "rows": record.done * training.batch_size,
            "seconds": round(seconds, 3),
            **named_means(sums, training.micro_batches * trainer.backend.world, training.batch_size),
            "train/lr": lr,
            **norms,
            **scores,
            **self._performance(),
            **self._memory(),
            **trainer.backend.counters(),
        }
        record.rows.append(row)
        if trainer.backend.rank == 0:
            done = max(1, record.done - self._resumed_at)
            left = (time.monotonic() - trainer.loop_started) / done * (training.steps - record.done)
            print(progress_line(row, training.steps, left), flush=True)
            trainer.saver.folder.write_extra("history.csv", to_csv(record.rows))
            for writer in self._writers:
                writer.write(row)
        self.restart()

    def _performance(self) -> dict[str, float]:
        """Rates since the last report and mean seconds of a step's parts."""
        trainer, config, puzzles = self._trainer, self._trainer.config, self._trainer.dataset.puzzles
        done, steps = trainer.record.done, trainer.record.done - self._step
        rate = steps * config.training.batch_size / max(1e-9, time.monotonic() - self._at)
        stage = next(stage for stage in trainer.stages if done <= stage.last_step)
        flops = step_flops(config.model, puzzles.seq_len, puzzles.vocab, stage.h_cycles, stage.l_cycles)
        before = (self._stepping, self._feeding, self._moving)
        step, feed, transfer = (
            (now - then) / max(1, steps) for now, then in zip(self._clocks(), before, strict=True)
        )
        if trainer.backend.own_memory and transfer > TRANSFER_SHARE * step and not self._warned:
            self._warned = True
            warnings.warn(
                f"moving batches to the device takes {1e3 * transfer:.3g} ms of a step's {1e3 * step:.3g} ms, "
                f"more than {100 * TRANSFER_SHARE:.0f} %: use larger batches, or fewer processes on this host",
                RuntimeWarning,
                stacklevel=2,
            )
        return {
            "perf/rows_per_second": round(rate, 3),
            "perf/flops_per_second": round(rate * flops, 1),
            "perf/step_seconds": round(step, 7),
            "perf/feed_seconds": round(feed, 7),
            "perf/transfer_seconds": round(transfer, 7),
            "perf/compilations": trainer.backend.compilations(),
            "perf/compile_seconds": round(trainer.backend.compile_seconds(), 3),
        }

    def _memory(self) -> dict[str, int | None]:
        """Peak bytes of each process and its device so far; None where the device does not tell."""
        backend = self._trainer.backend
        own = torch.tensor([peak_resident_bytes(), backend.peak_device_memory() or 0])
        row: dict[str, int | None] = {"perf/peak_memory_bytes": backend.peak_memory()}
        for rank, (host, device) in enumerate(vector.tolist() for vector in backend.gather(own)):
            row[f"perf/peak_host_bytes/{rank}"] = host
            row[f"perf/peak_device_bytes/{rank}"] = device or None
        return row
