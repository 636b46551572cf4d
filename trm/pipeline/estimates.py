"""Cost and resources of each job: hosts, memory, minutes; and a sentence on what a training costs."""

import fnmatch
import json
import math
import shlex
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from trm.backends.cpu.speed import Speed
from trm.backends.cpu.speed import read as read_speeds
from trm.errors import UserError
from trm.pipeline.project import Project
from trm.provenance import processor
from trm.study.cost import Estimate, Hardware, estimate, evaluation_seconds, read_hardware
from trm.study.dataset_identity import shape
from trm.study.schema import DataConfig, ModelConfig
from trm.study.slices import parse_slice
from trm.study.tasks import spec_of
from trm.study.text import bytes_text, device_text, flops_text, seconds_text

GENERATED_PER_SECOND = 2000.0
"""Puzzles generated per second."""
PROGRAM_MB = 4000
"""Host memory of one worker before it trains: Python, torch, the libraries of its device, the data set."""


DRAWING = ("table", "fit", "plot", "html_report")
"""Rules whose jobs run beside Snakemake, on its machine."""
RESUMED = ("train", "evaluate")
"""Rules whose jobs stop at their time limit and go on in another job."""


class Job(NamedTuple):
    """A job of the pipeline: its rule, and its run, `<run>/<evaluation file>`, pool, data set, table, fit or figure."""

    rule: str
    name: str = ""


class Cost(NamedTuple):
    """Expected cost of a job."""

    seconds: float
    device_hours: float
    usd: float
    flops: float = 0.0
    """Of training."""


class Finished(NamedTuple):
    """Speed of a finished run, by its training.json."""

    speed: Speed
    """FLOPs and seconds of the training loop, over all resumes; the seconds of all devices."""
    setup: float
    """Seconds before it."""
    devices: int
    """Of all processes."""
    processor: str
    """Name of the CPU that trained it; empty for an accelerator."""


def _finished(path: Path) -> Finished | None:
    """The run of a training.json; None if it is damaged, which the next job that reads it reports."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        name = facts["device_name"] if facts["device"] == "cpu" else ""
        flops, seconds, setup = (
            float(facts[key]) for key in ("train_flops", "wall_seconds", "setup_seconds")
        )
        model, devices = facts["config"]["model"], int(facts["devices"])
        speed = Speed(model["mixer"], int(model["d_model"]), flops, seconds * devices)
        return Finished(speed, setup, devices, name) if seconds > 0 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _test_puzzles(data: DataConfig) -> int:
    return data.test_puzzles or (spec_of(data.task).published or (0, 1000))[1]


def _pool(data: DataConfig) -> int:
    """Puzzles of a pool."""
    train = data.train_puzzles or (spec_of(data.task).published or (1000, 0))[0]
    return data.pool or train + data.validation_puzzles + _test_puzzles(data)


def _puzzle_bytes(data: DataConfig) -> int:
    """Bytes of a data set's questions and answers, or of the pool that it is cut from, whichever is more."""
    rows = (data.train_puzzles or _pool(data)) * (1 + data.augmentations) + data.validation_puzzles
    return 2 * shape(data).seq_len * max(rows + _test_puzzles(data), _pool(data))


def _priced(project: Project) -> Hardware:
    """The scale's hardware at the profile's `pricing` and of the profile's slice; spot capacity of unknown price counts
    at the on-demand price. UserError: the slice is of another generation than the hardware's."""
    hardware = read_hardware(project.settings.hardware, project.study.scale.hardware)
    asked = project.settings.slice
    if asked and hardware.slices:
        if asked.generation != parse_slice(hardware.slices[0]).generation:
            raise UserError(
                f"The pod's slice is a {asked.name}, and scale {project.study.scale_name} of {project.study.path} is "
                f"planned for {project.study.scale.hardware}: set the scale's `hardware` to an entry of "
                f"{project.settings.hardware} for {asked.generation.api}"
            )
        hosts = asked.hosts * project.settings.tpu_slices
        hardware = hardware.model_copy(update={"devices": asked.chips_per_host, "hosts": hosts})
    price = hardware.usd_per_device_hour
    if project.settings.pricing == "spot" and hardware.usd_spot is not None:
        price = hardware.usd_spot
    if project.settings.pricing == "grant":
        price = 0.0
    return hardware.model_copy(update={"usd_per_device_hour": price})


class Estimates:
    """Cost estimates of every run of a study, computed on demand.

    `project`: the study. `measured`: use the speed of this machine's finished runs; without, estimates do not change as
    runs finish. `set_up`: use the speed that set-up measured; without both, they are the same on every machine.
    """

    def __init__(self, project: Project, measured: bool = True, set_up: bool = True):
        self._project, self._use_measured, self._set_up = project, measured, set_up
        self._stated = _priced(project)
        self._known: dict[tuple[str, int], Estimate] = {}
        self._left: dict[Job, Cost] = {}

    @property
    def pod_hosts(self) -> int:
        """Hosts of one slice: a job gets one or all of them."""
        settings = self._project.settings
        known = settings.slice.hosts if settings.slice else self.hardware.hosts
        return settings.pod_hosts or known

    @property
    def pod_usd(self) -> float:
        """Price of all slices for an hour, whatever they do; 0: the machine is no pod."""
        machine = self.hardware
        return machine.hosts * machine.devices * machine.usd_per_device_hour if machine.slices else 0.0

    @cached_property
    def finished(self) -> list[Finished]:
        """Every finished run on this disk; in a bucket each would cost a request."""
        done = () if self._project.files.prefix else sorted(self._project.done)
        files = (self._project.catalogue.run_files(run)[0] for run in done)
        return [run for file in files if (run := _finished(Path(file)))]

    @cached_property
    def measured(self) -> list[Finished]:
        """Finished runs on devices like the plan's, which uses their speed."""
        name = processor()[0] if self._stated.host_memory else ""
        return [run for run in self.finished if run.processor == name] if self._use_measured else []

    @cached_property
    def speeds(self) -> list[Speed]:
        """Measured on devices like the plan's: by finished runs, and by set-up on CPU cores of this machine."""
        cores = self._set_up and self._stated.host_memory and self._stated.hosts == 1
        return [run.speed for run in self.measured] + (read_speeds() if cores else [])

    @cached_property
    def hardware(self) -> Hardware:
        """The scale's machine at the profile's prices, with the mean measured speed where there is one."""
        return self._at_speed(self._stated, [run.speed for run in self.measured] or self.speeds)

    def _at_speed(self, hardware: Hardware, speeds: list[Speed]) -> Hardware:
        if not speeds:
            return hardware
        mean = sum(speed.flops for speed in speeds) / sum(speed.seconds for speed in speeds)
        return hardware.model_copy(update={"flops_per_second": mean})

    def _speeds_like(self, model: ModelConfig) -> list[Speed]:
        """Those of the model's mixer and the nearest width: the speed of small models depends on both."""
        same_mixer = [speed for speed in self.speeds if speed.mixer == model.mixer]
        widths = [speed.d_model for speed in same_mixer]
        nearest = min(widths, key=lambda width: abs(math.log(width / model.d_model)), default=0)
        return [speed for speed in same_mixer if speed.d_model == nearest]

    def of(self, run: str) -> Estimate:
        """Estimate of one run on the hosts that it gets, without its evaluations."""
        placed = self._project.runs[run].config.placement.workers
        return self._on(run, 1 if placed else self.hosts(run))

    def _on(self, run: str, hosts: int) -> Estimate:
        """Estimate of one run on so many hosts of a pod."""
        if (run, hosts) not in self._known:
            hardware, config = self._hardware_of(run), self._project.runs[run].config
            wide = hardware.model_copy(update={"devices": hardware.devices * hosts})
            self._known[run, hosts] = estimate(config, wide if hosts > 1 else hardware)
        return self._known[run, hosts]

    def cost(self, job: Job) -> Cost:
        """Cost of any job of the pipeline. Devices are paid for where the job keeps them from others: data occupy a
        host of a pod, but no GPU, and drawing costs only a machine that computes on its own processors."""
        if job.rule == "train":
            run = self.of(job.name)
            return Cost(run.seconds, run.device_hours, run.usd, run.flops)
        machine, seconds = self.hardware, self._seconds(job)
        own = machine.host_memory and machine.hosts == 1
        held = own or job.rule == "evaluate" or (machine.slices and job.rule not in DRAWING)
        hours = seconds * machine.devices / 3600 if held else 0.0
        return Cost(seconds, hours, hours * machine.usd_per_device_hour)

    def left(self, job: Job) -> Cost:
        """Cost of what is left of a job: a training goes on from its newest checkpoint. Looked for once."""
        if job not in self._left:
            self._left[job] = self._left_of(job)
        return self._left[job]

    def _left_of(self, job: Job) -> Cost:
        cost = self.cost(job)
        done = self._project.files.checkpoint(job.name) if job.rule == "train" else 0
        if not done:
            return cost
        share = max(0.0, 1 - done / self._project.runs[job.name].config.training.steps)
        fixed = self._hardware_of(job.name).fixed
        part = (fixed + (cost.seconds - fixed) * share) / cost.seconds
        return Cost(cost.seconds * part, cost.device_hours * part, cost.usd * part, cost.flops * share)

    def _seconds(self, job: Job) -> float:
        seconds, catalogue = self.hardware.start, self._project.catalogue
        if job.rule == "evaluate":
            seconds = min(seconds, self.hardware.fixed) + self._evaluation_seconds(job.name)
        if job.rule == "source":
            data = catalogue.find(catalogue.sources, job.name, "pool of puzzles").config.data
            seconds += _pool(data) / GENERATED_PER_SECOND if data.source == "generate" else 0.0
        return seconds

    def _evaluation_seconds(self, name: str) -> float:
        """Arithmetic of an evaluation `<run>/<file>`: on the scale's machine, wherever the run was trained."""
        config, evaluation = (
            self._project.runs[name.split("/")[0]].config,
            self._project.study.evaluations[name],
        )
        hardware = self._at_speed(self.hardware, self._speeds_like(config.model))
        return evaluation_seconds(config, evaluation, hardware, _test_puzzles(config.data))

    def hosts_of(self, job: Job) -> int:
        """Hosts of a pod that any job takes."""
        if job.rule == "train":
            return self.hosts(job.name)
        return self.pod_hosts if job.rule == "preflight" else 1

    def _hardware_of(self, run: str) -> Hardware:
        """The machine of a run: the scale's, unless its placement says otherwise."""
        config = self._project.runs[run].config
        placement, hardware = config.placement, self._at_speed(self.hardware, self._speeds_like(config.model))
        if placement.backend == "cpu" and not hardware.host_memory:
            cpu = read_hardware(self._project.settings.hardware, "cpu").model_dump()
            hardware = Hardware(**cpu | {"hosts": hardware.hosts})
        if (workers := self._sharing(run)) > 1:
            hardware = hardware.model_copy(update={"devices": hardware.devices * workers})
        return hardware

    def hosts(self, run: str) -> int:
        """Pod hosts of a job: one, so that as many runs as possible train at once.

        All hosts if the batch does not fit one host's memory, or if the config's `whole_pod` pattern matches the run.
        """
        if workers := self._project.runs[run].config.placement.workers:  # the placement says so
            return self.pod_hosts if workers > 1 and self.hardware.hosts > 1 else 1
        if self.pod_hosts == 1:
            return 1
        pattern = self._project.settings.whole_pod
        needed = self._on(run, 1).memory_bytes / 2**30
        whole = needed > self.hardware.memory_gib or fnmatch.fnmatch(run, pattern)
        return self.pod_hosts if whole else 1

    def launcher(self, run: str) -> str:
        """Prefix of the command: `tpurun` or `srun`, which start it on every host of the job, or a PATH with the
        config's `xla_python` first."""
        if self.hosts(run) > 1:
            return "tpurun"
        if (nodes := self.nodes(run)) > 1:
            share = f" --gres=gpu:{self.gpus(run) // nodes}" if self.gpus(run) else ""
            return f"srun --nodes={nodes} --ntasks={nodes} --cpus-per-task={self.threads(run)}{share}"
        python = self._project.settings.xla_python
        if python and self._project.runs[run].config.placement.backend == "xla":
            return f"env PATH={shlex.quote(str(Path(python).absolute().parent))}:$PATH"
        return ""

    def workers(self, run: str) -> int:
        """Processes of a job on one machine that share each batch: the run's placement, else at most the config's
        `workers`, on which no result depends."""
        return 1 if self.hosts(run) > 1 else self._sharing(run)

    def _sharing(self, run: str) -> int:
        config = self._project.runs[run].config
        if config.placement.workers or config.placement.backend == "cpu":
            return max(1, config.placement.workers)
        rows = config.training.batch_size // config.training.micro_batches
        return max(count for count in range(1, self._project.settings.workers + 1) if rows % count == 0)

    def nodes(self, run: str) -> int:
        workers = self.workers(run)
        return max(n for n in range(1, self._project.settings.nodes + 1) if workers % n == 0)

    def threads(self, run: str) -> int:
        """Cores of a job on each node: those of its workers there."""
        return self._project.study.scale.threads * self.workers(run) // self.nodes(run)

    def minutes(self, rule: str, name: str = "") -> int:
        """Time limit of a job: twice the estimate and a quarter of an hour, at most `max_runtime`, after which training
        and evaluation are resumed in a further job. UserError: another job would not end before it."""
        seconds, most = self.cost(Job(rule, name)).seconds, self._project.settings.max_runtime
        if most and rule not in RESUMED and seconds > 60 * most:
            raise UserError(
                f"{rule} {name} takes about {seconds_text(seconds)}, but max_runtime is {most} minutes, and such a job "
                "cannot be resumed: raise max_runtime, or make it smaller"
            )
        wanted = int(seconds / 30) + 15
        return min(wanted, most) if most else wanted

    def stall(self, run: str) -> int:
        """Minutes without a newer published checkpoint after which a job hangs: three are due, and half an hour for
        compilation and a slow upload."""
        return 30 + math.ceil(3 * self._project.study.runtime[run].checkpoint_minutes)

    def memory_mb(self, rule: str, name: str = "") -> int:
        """Host memory of a job on each node, MB: the program, and what it holds: training its checkpoint (once as
        tensors, once as the file's bytes) and on processors all that it keeps; evaluation the weights and the puzzles;
        data the puzzles with their copies, while they are cut and written."""
        if rule == "train":
            cost, workers = self.of(name), self.workers(name) // self.nodes(name)
            kept = cost.memory_bytes if self._hardware_of(name).host_memory else 2 * cost.checkpoint_bytes
            return PROGRAM_MB * workers + int(kept / 1e6)
        kept, catalogue = 0, self._project.catalogue
        if rule == "evaluate":
            run = name.split("/")[0]
            kept = self.of(run).checkpoint_bytes + _puzzle_bytes(self._project.runs[run].config.data)
        if rule in ("source", "dataset"):
            known = catalogue.sources if rule == "source" else catalogue.datasets
            kept = 2 * _puzzle_bytes(catalogue.find(known, name, rule).config.data)
        return PROGRAM_MB + int(kept / 1e6)

    def gpus(self, run: str) -> int:
        """GPUs of a training job. UserError: not even one row at a time fits into their memory."""
        if not self.of(run).micro_batches:
            needed = self.of(run).memory_bytes / 2**30
            raise UserError(
                f"{run} needs about {needed:,.0f} GiB of GPU memory, and no number of micro-batches is estimated to "
                f"fit into {self.hardware.memory_gib:g} GiB: use a smaller model"
            )
        if self._project.runs[run].config.placement.backend == "cpu":
            return 0
        return self._project.settings.gpus * self.workers(run)

    def sentence(self, run: str) -> str:
        """What a training job costs, for its message."""
        cost = self.of(run)
        price = f", ${cost.usd:.2f}" if cost.usd else ""
        return (
            f"{cost.parameters:,} parameters, {cost.steps:,} steps, {flops_text(cost.flops)}, "
            f"{bytes_text(cost.memory_bytes)} of memory, about {seconds_text(cost.seconds)} "
            f"({device_text(cost.device_hours)} of a {self.hardware.device}{price})"
        )
