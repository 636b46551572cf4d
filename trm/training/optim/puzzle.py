"""Sign descent for the puzzle table, on the rows that a step touches, exact over the global batch.

The gradients of equal ids are summed before taking the sign. To keep shapes static, distinct ids are never listed: a
small table gets a dense gradient through a one-hot product; for a large one, every batch row gets the sum over all rows
with its id, so that rows with equal ids write the same value.
"""

import torch
from torch import Tensor
from torch.nn import functional


def is_dense(num_ids: int, batch: int) -> bool:
    """Whether the table is small enough for a dense gradient."""
    return num_ids <= batch


def dense_gradient(ids_B: Tensor, grads_BD: Tensor, num_ids: int) -> Tensor:
    """Summed gradients [num_ids, D + 1]; the last column counts the batch rows of each id."""
    counted = functional.pad(grads_BD, (0, 1), value=1.0)
    if num_ids == 1:
        return counted.sum(0, keepdim=True)
    one_hot = (torch.arange(num_ids, device=ids_B.device)[:, None] == ids_B).to(grads_BD.dtype)
    return one_hot @ counted


def _stepped(rows: Tensor, grads: Tensor, lr: Tensor | float, weight_decay: float) -> Tensor:
    return rows * (1 - lr * weight_decay) - lr * torch.sign(grads)


def update_dense(table: Tensor, gradient: Tensor, lr: Tensor | float, weight_decay: float) -> None:
    """Update the touched rows, p = p * (1 - lr * wd) - lr * sign(g), in place; `gradient`: from `dense_gradient`."""
    touched = gradient[:, -1:] > 0
    table.copy_(torch.where(touched, _stepped(table, gradient[:, :-1], lr, weight_decay), table))


def update_rows(
    table: Tensor, ids_B: Tensor, grads_BD: Tensor, lr: Tensor | float, weight_decay: float
) -> None:
    """Same as `update_dense` for a large table, from the global batch's ids and per-row gradients."""
    same_BB = (ids_B[:, None] == ids_B).to(grads_BD.dtype)
    ids = ids_B.long()
    table[ids] = _stepped(table[ids], same_BB @ grads_BD, lr, weight_decay)
