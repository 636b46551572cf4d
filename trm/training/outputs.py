"""A finished run's weights.safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trm.errors import UserError
from trm.io import write_bytes
from trm.study.schema import RunConfig

WEIGHTS = "weights.safetensors"
PUZZLE = "puzzle.weight"


class TrainedModel(NamedTuple):
    """A finished run's weights in host memory."""

    config: RunConfig
    meta: dict[str, Any]
    """seq_len, vocab, num_ids, ignore, fingerprint, precision, run."""
    tensors: dict[str, Tensor]
    """`raw.*`, `ema.*`, `snapshot<k>.*`, `buffers.h_init`, `buffers.l_init`."""

    def weights(self, kind: str, average: int = 0) -> dict[str, Tensor]:
        """The weights of a `kind`: `ema`, `raw`, or `average` (mean of the last `average` snapshots); float32.

        Raises:
            UserError: the run has fewer snapshots.
        """
        if kind == "average":
            available = sorted({int(n.split(".")[0][8:]) for n in self.tensors if n.startswith("snapshot")})
            if not 1 <= average <= len(available):
                raise UserError(
                    f"weights=average requires the last {average} snapshots and this run has {len(available)}: "
                    f"set evaluation.average to 1..{len(available)}, or increase training.snapshots"
                )
            parts = [self._named(f"snapshot{k}.") for k in available[-average:]]
            return {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}
        if kind == "ema" and not any(name.startswith("ema.") for name in self.tensors):
            kind = "raw"  # trained without an EMA
        return self._named(f"{kind}.")

    def _named(self, prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): tensor.float()
            for name, tensor in self.tensors.items()
            if name.startswith(prefix) and name != f"raw.{PUZZLE}"
        }


def pack_weights(
    raw: dict[str, Tensor],
    ema: dict[str, Tensor] | None,
    buffers: dict[str, Tensor],
    puzzle: Tensor | None,
    snapshots: dict[int, dict[str, Tensor]],
) -> dict[str, Tensor]:
    """The tensors of weights.safetensors by name."""
    tensors = {f"raw.{name}": tensor for name, tensor in raw.items()}
    if puzzle is not None:
        tensors[f"raw.{PUZZLE}"] = puzzle
    tensors |= {f"ema.{name}": tensor for name, tensor in (ema or {}).items()}
    tensors |= {f"buffers.{name}": tensor for name, tensor in buffers.items()}
    for k, snapshot in snapshots.items():
        tensors |= {f"snapshot{k}.{name}": tensor for name, tensor in snapshot.items()}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def save_weights(path: Path, tensors: dict[str, Tensor], config: RunConfig, meta: dict[str, Any]) -> None:
    """Write weights.safetensors, with the config and `meta` as JSON in its metadata."""
    from safetensors.torch import save

    metadata = {"config": config.model_dump_json(), "meta": json.dumps(meta)}
    # cloned, since safetensors refuses several views of one buffer
    write_bytes(path, save({n: t.clone() for n, t in tensors.items()}, metadata=metadata))


def load_weights(path: Path) -> TrainedModel:
    """Read a run folder's weights.safetensors, or the file itself.

    Raises:
        UserError: it is missing, damaged, or was not written by a run.
    """
    from safetensors import safe_open

    path = path / WEIGHTS if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"{path} does not exist: train the run first")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator)
    except Exception as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it or the run folder, and repeat the command to train it again"
        ) from error
    if "config" not in metadata or "meta" not in metadata:
        raise UserError(f"{path} has no run metadata: convert it with `python -m trm convert`")
    return TrainedModel(
        RunConfig.model_validate_json(metadata["config"]), json.loads(metadata["meta"]), tensors
    )
