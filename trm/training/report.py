"""Reports during training: history rows, console lines, TensorBoard, Weights & Biases, warnings."""

import math
import os
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trm.backends.base import Backend, Precision
from trm.backends.cpu.device import peak_resident_bytes
from trm.study.fingerprint import run_fingerprint
from trm.study.flops import parameters, step_flops
from trm.study.horizon import average_remark
from trm.study.schema import RunConfig, RuntimeConfig
from trm.study.stages import recursion_stages, stage_at
from trm.study.tasks import Sizes
from trm.study.text import count
from trm.training.checkpoints.folder import CheckpointFolder
from trm.training.checkpoints.saving import Record
from trm.training.history import TensorBoard, WeightsAndBiases, progress_line, to_csv
from trm.training.metrics import Clocks, named_means

TRANSFER_SHARE = 0.1  # share of a step's time for host-to-device copies above which to warn


class Reporter:
    """Builds a history row per report; the first process prints it and writes it to `folder` and the loggers.

    Called by all workers at the same steps, since a row has values from each of them. `name`: the run's name.
    """

    def __init__(
        self,
        config: RunConfig,
        runtime: RuntimeConfig,
        backend: Backend,
        puzzles: Sizes,
        record: Record,
        clocks: Clocks,
        folder: CheckpointFolder,
        name: str,
    ):
        self._config, self._runtime, self._backend, self._puzzles = config, runtime, backend, puzzles
        self._record, self._clocks, self._folder, self._name = record, clocks, folder, name
        self._stages = recursion_stages(config.model, config.training)
        self._writers: list[Any] = []
        self._warned = False
        self._resumed_at = record.done
        self.weight_norm = math.nan
        """Norm of all weights at the last report."""
        self.begin()

    def begin(self) -> None:
        """Start the clocks; called just before the first step."""
        self._started = time.monotonic()
        self._restart()

    def _restart(self) -> None:
        self._at, self._step, self._before = time.monotonic(), self._record.done, replace(self._clocks)

    def open(self, precision: Precision) -> None:
        """In the first process, open the loggers and print the first line: model, device, precision and its reason."""
        if self._backend.rank:
            return
        root, runtime = self._folder.root, self._runtime
        if runtime.tensorboard:
            self._writers.append(TensorBoard(root / "tensorboard", self._record.done))
        if runtime.wandb != "off":
            config, fingerprint = self._config.model_dump(mode="json"), run_fingerprint(self._config)
            self._writers.append(WeightsAndBiases(runtime.wandb, root, self._name, fingerprint, config))
        model, training, backend = self._config.model, self._config.training, self._backend
        size = parameters(model, self._puzzles.seq_len, self._puzzles.vocab)
        print(
            f"TRM {model.mixer} d={model.d_model} T={model.h_cycles} n={model.l_cycles}, {size:,} parameters, on "
            f"{backend.name} ({backend.device_name()}; {count(torch.get_num_threads(), 'thread')}, "
            f"{count(backend.world, 'worker')}); {precision.name}: {precision.reason}; "
            f"{training.steps} steps of {training.batch_size} rows",
            flush=True,
        )
        if remark := average_remark([training]):
            print(remark, flush=True)
        if self._record.done:
            print(f"resumed from {self._folder.folder(self._record.done)}", flush=True)

    def flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def report(
        self,
        sums: list[float],
        parts: int,
        lr: float,
        norms: dict[str, float],
        scores: dict[str, float | None],
        seconds: float,
    ) -> None:
        """Report metric sums over all workers' micro-batches (`parts`), learning rate, norms and, after a validation,
        its `scores`.

        `seconds`: training time so far, over all resumes.
        """
        record, training, backend = self._record, self._config.training, self._backend
        self.weight_norm = norms["train/weight_norm"]
        row: dict[str, Any] = {
            "step": record.done,
            "rows": record.done * training.batch_size,
            "seconds": round(seconds, 3),
            **named_means(sums, parts, training.batch_size),
            "train/lr": lr,
            **norms,
            **scores,
            **self._performance(),
            **self._memory(),
            **backend.counters(),
        }
        record.rows.append(row)
        if backend.rank == 0:
            done = max(1, record.done - self._resumed_at)
            left = (time.monotonic() - self._started) / done * (training.steps - record.done)
            print(progress_line(record.rows, training.steps, left), flush=True)
            # for watching alone: a resume reads the history of the checkpoint
            self._folder.write_extra("history.csv", to_csv(record.rows), durable=False)
            for writer in self._writers:
                writer.write(row)
        self._restart()

    def _performance(self) -> dict[str, float]:
        """Throughput and mean seconds of a step's parts since the last report."""
        config, puzzles, backend, clocks = self._config, self._puzzles, self._backend, self._clocks
        done, steps = self._record.done, self._record.done - self._step
        rate = steps * config.training.batch_size / max(1e-9, time.monotonic() - self._at)
        stage = stage_at(self._stages, done)
        flops = step_flops(config.model, puzzles.seq_len, puzzles.vocab, *stage.recursion.cycles)
        step, feed, transfer = (
            (getattr(clocks, name) - getattr(self._before, name)) / max(1, steps)
            for name in ("step", "feed", "transfer")
        )
        if backend.own_memory and transfer > TRANSFER_SHARE * step and not self._warned:
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
            "perf/compilations": backend.compilations(),
            "perf/compile_seconds": round(backend.compile_seconds(), 3),
        }

    def _memory(self) -> dict[str, float | None]:
        """Peak memory of each process and its device (None: unknown), and the TPU chips' current use if known."""
        backend = self._backend
        used = backend.use()
        now = (-1, -1) if used is None else (_encoded(used.hbm_bytes), _encoded(used.duty_cycle, 100))
        if file := os.environ.get("TPU_STATUS_FILE"):
            words = f"at step {self._record.done}", str(used or "")
            with suppress(OSError):
                Path(file).write_text(", ".join(filter(None, words)))
        local = torch.tensor([peak_resident_bytes(), backend.peak_device_memory() or 0, *now])
        row: dict[str, float | None] = {"perf/peak_memory_bytes": backend.peak_memory()}
        for rank, vector in enumerate(backend.gather(local)):
            host, device, hbm, duty = vector.tolist()
            row[f"perf/peak_host_bytes/{rank}"] = host
            row[f"perf/peak_device_bytes/{rank}"] = device or None
            if hbm >= 0:
                row[f"perf/hbm_bytes/{rank}"] = hbm
            if duty >= 0:
                row[f"perf/duty_cycle_percent/{rank}"] = duty / 100
        return row


def _encoded(value: float | None, factor: int = 1) -> int:
    """A value as an integer for the exchange between workers; -1: not measured."""
    return -1 if value is None else round(value * factor)
