"""Resources of each training job (hosts, memory, minutes), and a sentence on its cost."""

from __future__ import annotations

import fnmatch
import json
import shlex
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from trm.checks.tpu_check.check import step_seconds
from trm.pipeline.project import Project
from trm.provenance import processor
from trm.study.cost import (
    Estimate,
    Hardware,
    device_text,
    estimate,
    evaluation_seconds,
    flops_text,
    read_hardware,
    seconds_text,
)
from trm.study.fingerprint import canonical_json
from trm.study.points import Run
from trm.study.slices import parse_slice
from trm.study.tasks import spec_of

CHECKED = Path("results/tpu-check")
"""Where `tpu-check` keeps its numbers."""
SMALL_SECONDS = 900.0
"""A run of at most this is evaluated by the process that trains it."""
TAKE_OVER = 1.0
"""Seconds of the job that takes such an evaluation over."""
MOST_MEASURED = 200
"""Finished runs that the estimates are corrected by."""
GENERATED_PER_SECOND, HARD_PER_SECOND = 2000.0, 50.0
"""Puzzles generated in a second, without and with a least rating (docs/data.md)."""


@dataclass(frozen=True)
class Measured:
    """Finished runs of this machine against their estimates."""

    runs: int = 0
    factor: float = 1.0
    """Actual seconds of training jobs for each estimated one."""


_processor = cache(processor)


def _priced(project: Project) -> Hardware:
    """The scale's hardware at the price that the profile's `pricing` means. Spot capacity without a known price counts
    at the on-demand price, which it never exceeds."""
    hardware = read_hardware(project.settings.hardware, project.study.scale.hardware)
    price = hardware.usd_per_device_hour
    if project.settings.pricing == "spot" and hardware.usd_spot is not None:
        price = hardware.usd_spot
    if project.settings.pricing == "grant":
        price = 0.0
    return hardware.model_copy(update={"usd_per_device_hour": price})


def seconds_of_run(path: Path) -> float | None:
    """Seconds of the training job that wrote a training.json; None if it ran on another machine's processor."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["device"] == "cpu" and facts["device_name"] != _processor()[0]:
            return None
        return float(facts["wall_seconds"]) + float(facts["setup_seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the job that reads it next says what is wrong with it


PROGRAM_MB = 4000
"""Host memory of one worker before it trains: Python, torch, the libraries of its device, the data set."""


class Estimates:
    """Estimates of every run of a study, made when they are asked for.

    Args:
        project: the study.
        compiled: take step times that `tpu-check` compiled. Without, estimates are the same on every machine.
        measured: correct the estimates by the finished runs of this machine.
    """

    def __init__(self, project: Project, compiled: bool = True, measured: bool = True):
        self._project = project
        self._use_compiled, self._use_measured = compiled, measured and compiled
        self.hardware = _priced(project)
        self._known: dict[str, Estimate] = {}

    @property
    def pod_hosts(self) -> int:
        """Hosts of the whole pod."""
        return self._project.settings.pod_hosts or self.hardware.hosts

    def of(self, run: str) -> Estimate:
        """Estimate of one run, without its evaluations."""
        if run not in self._known:
            cost, factor = self._planned(run), self.measured.factor
            self._known[run] = replace(
                cost,
                seconds=cost.seconds * factor,
                device_hours=cost.device_hours * factor,
                usd=cost.usd * factor,
            )
        return self._known[run]

    def _planned(self, run: str) -> Estimate:
        hardware = self._hardware_of(run)
        return estimate(self._project.runs[run].config, hardware, self._compiled(run, hardware, 0))

    @cached_property
    def measured(self) -> Measured:
        """How finished runs compare with their estimates."""
        if not self._use_measured or self._project.place.prefix:
            return Measured()
        planned = actual = 0.0
        runs = 0
        for run in sorted(self._project.done)[:MOST_MEASURED]:
            seconds = seconds_of_run(Path(self._project.catalogue.run_files(run)[0]))
            if seconds:
                planned, actual, runs = planned + self._planned(run).seconds, actual + seconds, runs + 1
        return Measured(runs, actual / planned) if runs else Measured()

    def evaluation(self, name: str) -> float:
        """Seconds of an evaluation `<run>/<file>`. Of a small run that is still to train, the training process makes
        it, and its own job only takes it over."""
        run = name.split("/")[0]
        config, hardware = self._project.runs[run].config, self._hardware_of(run)
        test = config.data.test_puzzles or (spec_of(config.data.task).published or (0, 1000))[1]
        arithmetic = evaluation_seconds(config, self._project.study.evaluations[name], hardware, test)
        small = self.of(run).seconds <= SMALL_SECONDS and not self._project.place.prefix
        start = TAKE_OVER if small and run not in self._project.done else hardware.start
        return (start + arithmetic) * self.measured.factor

    def data(self, name: str, run: Run) -> float:
        """Seconds of a job that makes a pool of puzzles or a data set, as a run uses it."""
        data, seconds = run.config.data, self.hardware.start
        if name.startswith("results/sources/") and data.source == "generate":
            puzzles = data.pool or (data.train_puzzles or 0) + data.validation_puzzles + (
                data.test_puzzles or 0
            )
            seconds += puzzles / (HARD_PER_SECOND if data.min_rating else GENERATED_PER_SECOND)
        return seconds

    def _compiled(self, run: str, hardware: Hardware, place: int) -> float | None:
        """Seconds of the run's step on a slice of the hardware (0: one host, 1: all), if `tpu-check` compiled it."""
        config = self._project.runs[run].config
        if (
            not self._use_compiled
            or len(hardware.slices) <= place
            or hardware.devices != self.hardware.devices
        ):
            return None
        return step_seconds(config, parse_slice(hardware.slices[place]), CHECKED)

    def _faster_on_all(self, run: str) -> bool:
        """Whether more runs an hour are done one after another on all hosts than side by side on one each: a step's
        compiled estimates on both, and as many runs as are still to train."""
        alone, together = (self._compiled(run, self.hardware, place) for place in (0, 1))
        if alone is None or together is None:
            return False
        todo = sum(name not in self._project.done for name in self._project.runs)
        return alone / max(1, min(todo, self.hardware.hosts)) > together

    def _hardware_of(self, run: str) -> Hardware:
        """What a run computes on: the scale's machine, unless its placement says otherwise."""
        placement, hardware = self._project.runs[run].config.placement, self.hardware
        if placement.backend == "cpu" and not hardware.host_memory:
            cpu = read_hardware(self._project.settings.hardware, "cpu").model_dump()
            hardware = Hardware(**cpu | {"jobs": hardware.jobs, "hosts": hardware.hosts})
        if (workers := self._sharing(run)) > 1:
            hardware = hardware.model_copy(update={"devices": hardware.devices * workers})
        return hardware

    def hosts(self, run: str) -> int:
        """Pod hosts of a job: one, so that as many runs as possible train at once; all of them where that gives more
        runs an hour by compiled estimates, where the batch does not fit one host's memory, or where the config's
        `whole_pod` pattern names the run."""
        if workers := self._workers(run):  # the placement says so
            return self.pod_hosts if workers > 1 and self.hardware.hosts > 1 else 1
        pattern = self._project.settings.whole_pod
        needed = self.of(run).memory_bytes / 2**30
        whole = needed > self.hardware.memory_gib or fnmatch.fnmatch(run, pattern)
        whole = whole or self._faster_on_all(run)
        return self.pod_hosts if whole else 1

    def launcher(self, run: str) -> str:
        """What is put before the command: `tpurun`, which starts it on every host of the job, or the interpreter of
        another backend where the config's `xla_python` names one."""
        if self.hosts(run) > 1:
            return "tpurun"
        python = self._project.settings.xla_python
        if python and self._project.runs[run].config.placement.backend == "xla":
            return f"env PATH={shlex.quote(str(Path(python).absolute().parent))}:$PATH"
        return ""

    def _workers(self, run: str) -> int:
        return self._project.runs[run].config.placement.workers

    def workers(self, run: str) -> int:
        """Processes of a job on one machine that share each batch: as many as the run's placement says, else at most
        the config's `workers`. No result depends on the latter."""
        return 1 if self.hosts(run) > 1 else self._sharing(run)

    def _sharing(self, run: str) -> int:
        config = self._project.runs[run].config
        if config.placement.workers or config.placement.backend == "cpu":
            return max(1, config.placement.workers)
        rows = config.training.batch_size // config.training.micro_batches
        return max(count for count in range(1, self._project.settings.workers + 1) if rows % count == 0)

    def threads(self, run: str) -> int:
        """Cores of a job: those of each of its workers on this machine."""
        return self._project.study.scale.threads * self.workers(run)

    def log_every(self, run: str) -> list[str]:
        """The option of experiments that ask for finer curves."""
        every = self._project.study.log_every.get(run)
        return ["--log-every", str(every)] if every else []

    @cached_property
    def _evaluations(self) -> dict[str, list[str]]:
        """Run -> its plain evaluations as JSON: those by other weights and policies may belong to an experiment
        that nobody asked for, and take longer than a process to start."""
        found: dict[str, list[str]] = {}
        for name, evaluation in self._project.study.evaluations.items():
            if (
                evaluation.weights != "ema"
                or evaluation.unroll
                or evaluation.confident
                or evaluation.restarts
            ):
                continue
            text = canonical_json(evaluation.model_dump(exclude_defaults=True))
            found.setdefault(name.split("/")[0], []).append(text)
        return found

    def evaluations(self, run: str) -> list[str]:
        """The option by which the training process of a small run also evaluates it: starting another process costs
        more than the evaluation."""
        placement = self._project.runs[run].config.placement
        elsewhere = placement.backend != "any" or self.workers(run) > 1 or self._project.place.prefix
        if elsewhere or self.of(run).seconds > SMALL_SECONDS:
            return []
        texts = self._evaluations.get(run, [])
        return ["--evaluations", f"[{','.join(texts)}]"] if texts else []

    @property
    def max_minutes(self) -> int:
        """Longest time limit of a job (`max_runtime`), 0 for none. Longer runs are resumed in further jobs."""
        return self._project.settings.max_runtime

    def minutes(self, run: str) -> int:
        """Time limit of a job: twice the estimate and a quarter of an hour, at most `max_minutes`."""
        wanted = int(self.of(run).seconds / 30) + 15
        return min(wanted, self.max_minutes) if self.max_minutes else wanted

    def memory_mb(self, run: str) -> int:
        """Host memory of a job, MB: the program, the checkpoint (once as tensors, once as the file's bytes), and on
        processors all that training keeps."""
        cost, workers = self.of(run), self.workers(run)
        kept = cost.memory_bytes if self._hardware_of(run).host_memory else 2 * cost.checkpoint_bytes
        return PROGRAM_MB * workers + int(kept / 1e6)

    @property
    def gpus_per_worker(self) -> int:
        """GPUs of each worker (`gpus`)."""
        return self._project.settings.gpus

    def gpus(self, run: str) -> int:
        """GPUs of a training job."""
        if self._project.runs[run].config.placement.backend == "cpu":
            return 0
        return self.gpus_per_worker * self.workers(run)

    def sentence(self, run: str) -> str:
        """What a training job costs, for its message."""
        cost = self.of(run)
        price = f", ${cost.usd:.2f}" if cost.usd else ""
        return (
            f"{cost.parameters:,} parameters, {cost.steps:,} steps, {flops_text(cost.flops)}, "
            f"about {seconds_text(cost.seconds)} ({device_text(cost.device_hours)} of a {self.hardware.device}{price}"
            f"{'; step time compiled' if cost.compiled else ''})"
        )
