"""A finished run's weights.safetensors."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trm.errors import UserError
from trm.io import sha256_file, write_bytes
from trm.study.records import TRAINING, WEIGHTS, check_name, read_training, weights_metadata
from trm.study.schema import RunConfig
from trm.study.text import count

PUZZLE = "puzzle.weight"


class TrainedModel(NamedTuple):
    """A finished run's weights in host memory."""

    config: RunConfig
    meta: dict[str, Any]
    """seq_len, vocab, num_ids, ignore, fingerprint, precision, run, data (`trm.training.origin.record`)."""
    tensors: dict[str, Tensor]
    """`raw.*`, `ema.*`, `snapshot<k>.*`, `buffers.h_init`, `buffers.l_init`."""
    sha256: str = ""
    """Of the file; empty: not from a file."""

    def weights(self, kind: str, average: int = 0) -> dict[str, Tensor]:
        """The weights of a `kind`: `ema`, `raw`, or `average` (mean of the last `average` snapshots); float32.

        Raises:
            UserError: the run has fewer snapshots, or the file does not hold this kind.
        """
        if kind == "average":
            available = sorted({int(n.split(".")[0][8:]) for n in self.tensors if n.startswith("snapshot")})
            if not 1 <= average <= len(available):
                give = f"give 1 to {len(available)}, or increase" if available else "train it with"
                raise UserError(
                    f"evaluation.average is {average}, but the run has {count(len(available), 'snapshot')}: "
                    f"{give} training.snapshots"
                )
            parts = [self._named(f"snapshot{k}.") for k in available[-average:]]
            return {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}
        if kind == "ema" and not any(name.startswith("ema.") for name in self.tensors):
            kind = "raw"  # trained without an EMA
        if not (found := self._named(f"{kind}.")):  # as `convert to-model` writes it
            raise UserError(
                f"the model holds averaged weights alone, no {kind} ones: choose ema, or name its run"
            )
        return found

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
    """Write weights.safetensors, with the config and `meta` as JSON in its metadata.

    One entry: safetensors writes several in random order, and equal weights would be different files.
    """
    from safetensors.torch import save

    metadata = {"config": json.dumps(config.model_dump(mode="json") | {"meta": meta}, sort_keys=True)}
    # cloned, since safetensors refuses several views of one buffer
    write_bytes(path, save({n: t.clone() for n, t in tensors.items()}, metadata=metadata))


def load_weights(path: Path) -> TrainedModel:
    """Read a run folder's weights.safetensors, or the file itself. In a folder of a finished run they must be its own.

    Raises:
        UserError: the file is missing, damaged, not written by a run, or belongs to another run.
    """
    from safetensors.torch import load_file

    folder, path = (path, path / WEIGHTS) if path.is_dir() else (None, path)
    document = weights_metadata(path)
    meta = document["meta"]
    remedy = (
        f"delete {path.parent} and repeat the command, which trains the run again, or put its own file back"
    )
    if folder:
        check_name(path, folder.resolve().name, meta["run"], remedy)
        if (folder / TRAINING).exists():
            training = read_training(folder, (WEIGHTS,))
            if meta["fingerprint"] != training["fingerprint"]:
                raise UserError(f"{path} belongs to {meta['run']}, not to {training['run']}: {remedy}")
            meta.setdefault("data", training.get("dataset", {}))  # runs of earlier versions
    try:
        config, tensors = RunConfig.model_validate_json(json.dumps(document["config"])), load_file(path)
    except Exception as error:
        raise UserError(f"{path} is damaged ({error}): {remedy}") from error
    broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise UserError(f"{path} is damaged ({broken[0]} holds NaN or infinity): {remedy}")
    return TrainedModel(config, meta, tensors, sha256_file(path))
