"""Estimated cost of a run: parameters, steps, FLOPs, hours, memory, storage. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from trm.errors import UserError
from trm.study import flops
from trm.study.activations import WORKING_APPLICATIONS, Block
from trm.study.dataset_identity import shape
from trm.study.schema import Count, EvaluationConfig, NonNegative, Positive, RunConfig, Section
from trm.study.slices import parse_slice
from trm.study.stages import recursion_stages
from trm.study.tasks import Sizes, spec_of

MEMORY_SHARE = 0.8
"""Share of a device's memory that an estimate of a step may fill."""


class Hardware(Section):
    """One entry of config/hardware.yaml."""

    device: str
    """Name of a device, for device-hours."""
    devices: Count = 1
    """Devices per job."""
    hosts: Count = 1
    """Hosts of the whole machine (TPU pod)."""
    fixed: NonNegative = 0.0
    """Seconds of a training job outside its steps: start, compilation, data, validation, writing."""
    start: NonNegative = 5.0
    """Overhead in seconds of any other job: data, evaluation (`fixed`, if that is less), table, fit, figure, report."""
    slices: tuple[str, ...] = ()
    """TPU slices of one host and of the whole machine."""
    utilisation: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of a TPU's peak that training reaches: gives `flops_per_second`."""
    flops_per_second: Positive = 1.0
    """Achieved FLOP/s of one device; the plan prefers what set-up and finished runs of this machine measured. An entry
    has this or `utilisation`."""
    memory_gib: Positive
    """Memory of one device, GiB."""
    host_memory: bool = False
    """Whether a run uses the host's memory (the device is a CPU)."""
    usd_per_device_hour: NonNegative = 0.0
    """On-demand list price, for the plan's total only."""
    usd_spot: NonNegative | None = None
    """Spot price; it changes, so give your region's. null: unknown."""

    @model_validator(mode="after")
    def _speed(self) -> "Hardware":
        given = "flops_per_second" in self.model_fields_set
        if given == (self.utilisation is not None) or (self.utilisation and not self.slices):
            raise ValueError("give flops_per_second, or utilisation and slices")
        if self.utilisation:
            peak = parse_slice(self.slices[0]).generation.peak_flops
            object.__setattr__(self, "flops_per_second", self.utilisation * peak)
        return self


@dataclass(frozen=True)
class Estimate:
    """Expected cost of one run."""

    parameters: int
    steps: int
    flops: float
    """Training FLOPs, forward and backward."""
    seconds: float
    """Wall time of the job."""
    device_hours: float
    checkpoint_bytes: int
    memory_bytes: int
    micro_batches: int
    """Parts of a step's batch: the run's, or as many as a GPU's memory needs; 0: it does not fit in any."""
    usd: float


def read_hardware(path: str | Path, name: str) -> Hardware:
    """One entry of config/hardware.yaml. UserError: the file or the entry is missing or malformed."""
    from trm.study.reading import read_yaml, validated  # PyYAML, which estimates of memory do without

    try:
        entries: dict[str, Any] = read_yaml(
            path, "name a readable file: it holds the speeds that the plan uses"
        )
        entry = entries[name]
    except (KeyError, TypeError):
        if not isinstance(entries, dict):
            raise UserError(f"{path}: must be a mapping from names to machines") from None
        raise UserError(
            f"{path}: no entry {name!r}; the scale's `hardware` must be one of {', '.join(entries)}"
        ) from None
    return validated(Hardware, entry, f"{path}: {name}")


def estimate(config: RunConfig, hardware: Hardware) -> Estimate:
    """Expected cost of a run on one job's devices: its FLOPs over their speed."""
    model, training, data = config.model, config.training, shape(config.data)
    total = flops.train_flops(model, training, data.seq_len, data.vocab_size)
    seconds = hardware.fixed + total / (hardware.devices * hardware.flops_per_second)
    hours = seconds * hardware.devices / 3600
    parameters = flops.parameters(model, data.seq_len, data.vocab_size)
    kernels = bool(hardware.slices) and training.precision in ("auto", "bfloat16")
    sizes = Sizes(data.seq_len, data.vocab_size, data.num_puzzle_identifiers or 0, 0)
    parts: int | None = training.micro_batches
    if not (hardware.host_memory or hardware.slices):
        limit = int(hardware.memory_gib * 2**30)
        parts = fitting_micro_batches(config, sizes, 2, hardware.devices, limit, training.micro_batches)
    rows = -(-training.batch_size // hardware.devices)
    carry = 2 * training.batch_size * flops.tokens(model, data.seq_len) * model.d_model * 2
    return Estimate(
        parameters=parameters,
        steps=training.steps,
        flops=total,
        seconds=seconds,
        device_hours=hours,
        checkpoint_bytes=16 * parameters + carry,
        memory_bytes=memory_bytes(config, sizes, -(-rows // (parts or rows)), kernels=kernels),
        micro_batches=parts or 0,
        usd=hours * hardware.usd_per_device_hour,
    )


def evaluation_seconds(
    config: RunConfig, evaluation: EvaluationConfig, hardware: Hardware, test_puzzles: int
) -> float:
    """Expected seconds of arithmetic of one evaluation on one job's devices. `test_puzzles`: of the test split."""
    model, data = config.model, shape(config.data)
    test = min(test_puzzles, evaluation.test_puzzles or test_puzzles)
    train = min(evaluation.train_puzzles, config.data.train_puzzles or evaluation.train_puzzles)
    deepest, steps = (
        max(evaluation.unroll, default=model.halt_max_steps),
        evaluation.steps or model.halt_max_steps,
    )
    row_steps = (test + train) * deepest + evaluation.confident * test * deepest
    row_steps += max(evaluation.restarts, default=0) * test * steps
    if spec_of(config.data.task).votes:
        copies = config.data.augmentations if evaluation.copies is None else evaluation.copies
        row_steps += (1 + copies) * test * steps
    row = flops.forward_flops(model, data.seq_len, data.vocab_size)
    return row_steps * row / (hardware.devices * hardware.flops_per_second)


def fitting_micro_batches(
    config: RunConfig, sizes: Sizes, itemsize: int, world: int, limit: int, least: int
) -> int | None:
    """The smallest number of micro-batches from `least` whose estimate fits into `limit` bytes; None: there is none.
    `itemsize`: bytes of a value in the forward dtype. `world`: devices that share the batch."""
    rows, room = config.training.batch_size // world, MEMORY_SHARE * limit
    counts = (count for count in range(least, rows + 1) if rows % count == 0)
    return next((n for n in counts if memory_bytes(config, sizes, rows // n, itemsize) <= room), None)


def memory_bytes(config: RunConfig, sizes: Sizes, rows: int, itemsize: int = 2, kernels: bool = False) -> int:
    """Bytes of a training step on one device: the state in float32, and what the last round keeps for backward
    (`trm.study.activations`).

    Args:
        rows: of a micro-batch on this device.
        itemsize: bytes of a value in the forward dtype.
        kernels: whether the TPU kernels run, where they support the model.
    """
    model = config.model
    size = flops.parameters(model, sizes.seq_len, sizes.vocab)
    # weights, gradients, moments, average; puzzle table
    state = 4 * (5 * size + sizes.num_ids * model.d_model)
    length, width = flops.tokens(model, sizes.seq_len), model.d_model
    token_inner = None if model.mixer == "attention" else flops.inner_width(model, length)
    block = Block(length, width, flops.inner_width(model, width), token_inner, model.heads)
    stages = recursion_stages(model, config.training)
    applications = model.layers * max(stage.recursion.l_cycles + 1 for stage in stages)
    if kernels and block.has_kernels():
        return state + (applications + WORKING_APPLICATIONS) * block.kernel_bytes(rows)
    return state + applications * block.bytes(rows, itemsize)
