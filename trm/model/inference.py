"""The network for inference: weights are cast once, then any number of supervision steps run."""

import torch
from torch import Tensor

from trm.model import definition
from trm.model.definition import Architecture
from trm.model.plain import PLAIN, Implementation


class InferenceNetwork:
    """Runs supervision steps with fixed weights.

    `weights`: parameters by name, on the device, any float dtype; `h_init`, `l_init`: start vectors [D];
    `puzzle_table` [num_ids, D] or None; `implementation`: from `trm.backends.registry`.
    """

    def __init__(
        self,
        weights: dict[str, Tensor],
        h_init: Tensor,
        l_init: Tensor,
        puzzle_table: Tensor | None,
        arch: Architecture,
        h_cycles: int,
        l_cycles: int,
        implementation: Implementation = PLAIN,
    ):
        self.arch, self.h_cycles, self.l_cycles = arch, h_cycles, l_cycles
        self._weights = {
            name: tensor if name.startswith("halt.") else tensor.to(arch.dtype)
            for name, tensor in weights.items()
        }
        self.h_init, self.l_init = h_init.to(arch.dtype), l_init.to(arch.dtype)
        self.rounds = implementation.rounds(self._weights, arch)
        self.multiple = self.rounds.multiple
        self._puzzle_table = puzzle_table if arch.puzzle_tokens else None

    def embed(self, inputs_BS: Tensor, puzzle_ids_B: Tensor | None) -> Tensor:
        """Input embeddings [L, B, D]; they do not change from step to step. No ids: zeros for the puzzle embedding."""
        table = self._puzzle_table
        vectors = None if table is None or puzzle_ids_B is None else table[puzzle_ids_B.long()]
        return definition.embed(inputs_BS, vectors, self._weights, self.arch)

    def start(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Start states z_H, z_L [L, B, D]."""
        shape = (length, batch, len(self.h_init))
        return self.h_init.expand(shape), self.l_init.expand(shape)

    def batch_rows(self, length: int, noise: bool = False) -> int:
        """Rows to evaluate at once on all devices, for sequences of `length` tokens."""
        rows = inference_batch(length, len(self.h_init), self.h_init.device, noise)
        return rows * max(1, self.multiple // 2)

    def step(self, z_H: Tensor, z_L: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One supervision step: z_H, z_L [L, B, D], answer logits [S, B, V], halt logits [B]."""
        return self.rounds.step(z_H, z_L, x, self.h_cycles, self.l_cycles)


def inference_batch(length: int, width: int, device: torch.device, noise: bool = False) -> int:
    """Rows to evaluate at once on one device: enough to keep it busy, few enough for its memory.

    `noise`: the size of the batches that noise is drawn for, since another one gives other results.
    """
    cells = 1 << (24 if device.type != "cpu" else 16 if noise else 17)
    return max(16, min(4096, cells // (length * width) // 16 * 16))
