"""Validation of a run's config against backend and data, and its initial weights."""

from pathlib import Path

from torch import Tensor

from trm.backends.base import Backend
from trm.errors import UserError
from trm.io import write_bytes
from trm.study.flops import parameter_shapes
from trm.study.schema import RunConfig
from trm.training.dataset import Dataset
from trm.training.origin import check_config, check_unseen
from trm.training.outputs import load_weights


def check_placement(config: RunConfig, backend: Backend) -> None:
    """Check the backend against the run's placement.

    Raises:
        UserError: they do not match.
    """
    wanted = config.placement
    if wanted.backend not in ("any", backend.name):
        raise UserError(f"placement.backend is {wanted.backend}, but the job runs on {backend.name}")
    if wanted.workers not in (0, backend.processes):
        raise UserError(
            f"placement.workers is {wanted.workers}, but the job has {backend.processes}: start it with "
            f"trm train --workers {wanted.workers} (on a TPU pod: tpurun trm train)"
        )
    if wanted.average == "first" and backend.name == "xla":
        raise UserError(
            "placement.average=first is not possible on XLA, where all devices share one moving average: set it to "
            "every"
        )
    if (config.training.start_noise or config.training.step_noise) and backend.name != "cpu":
        raise UserError(
            f"training.start_noise and training.step_noise are drawn on the host, not on {backend.name}: train this "
            "run on a CPU"
        )
    if wanted.network == "plain":
        backend.implementation = "plain"


def prepare(
    config: RunConfig, dataset: Path, out: Path, init_from: str | None, backend: Backend
) -> tuple[Dataset, dict[str, Tensor] | None]:
    """The data set and, with `training.init_from`, the initial weights.

    Raises:
        UserError: the batch is not divisible, the folder is not writable, or data set or weights do not fit the config.
    """
    batch, parts = config.training.batch_size, config.training.micro_batches * backend.world
    if batch % parts:
        raise UserError(
            f"training.batch_size={batch} is not divisible by {backend.world} workers times "
            f"training.micro_batches={config.training.micro_batches}"
        )
    if backend.rank == 0:
        probe = out / ".writable"
        write_bytes(probe, b"")
        probe.unlink()
        for leftover in out.glob(".*.tmp"):  # from a process that was killed
            leftover.unlink()
    data = Dataset(dataset)
    check_config(data, config)
    return data, _initial_weights(config, data, out, init_from)


def _initial_weights(
    config: RunConfig, data: Dataset, out: Path, init_from: str | None
) -> dict[str, Tensor] | None:
    name = config.training.init_from
    if name is None:
        if init_from:
            raise UserError("--init-from is given, but training.init_from is null: name the run there")
        return None
    folder = Path(init_from) if init_from else out.parent / name
    trained = load_weights(folder)
    if trained.meta["run"] != name:
        raise UserError(f"{folder} holds run {trained.meta['run']}, but training.init_from is {name}")
    for split in ("validation", "test"):
        check_unseen(trained, data, split)
    weights = trained.weights("ema")
    shapes = parameter_shapes(config.model, data.puzzles.seq_len, data.puzzles.vocab)
    for parameter, shape in shapes.items():
        given = tuple(weights[parameter].shape) if parameter in weights else None
        if given != shape:
            raise UserError(
                f"training.init_from={name}: its {parameter} has shape {given}, but this model requires {shape}"
            )
    return weights
