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


def add_dense_gradient(gradient: Tensor, ids_B: Tensor, grads_BD: Tensor) -> None:
    """Add the gradients of each id to `gradient` [num_ids, D + 1], whose last column counts the rows of each id; [1, D]
    where all rows have the same id."""
    if len(gradient) == 1:
        gradient.add_(grads_BD.sum(0))
        return
    one_hot = (torch.arange(len(gradient), device=ids_B.device)[:, None] == ids_B).to(grads_BD.dtype)
    gradient.add_(one_hot @ functional.pad(grads_BD, (0, 1), value=1.0))


def _stepped(rows: Tensor, grads: Tensor, lr: Tensor | float, weight_decay: float) -> Tensor:
    return rows * (1 - lr * weight_decay) - lr * torch.sign(grads)


def update_dense(table: Tensor, gradient: Tensor, lr: Tensor | float, weight_decay: float) -> None:
    """Update the touched rows, p = p * (1 - lr * wd) - lr * sign(g), in place; `gradient`: from `add_dense_gradient`.
    A table of one row is touched by every batch."""
    if len(table) == 1:
        table.mul_(1 - lr * weight_decay).sub_(torch.sign(gradient).mul_(lr))
        return
    touched = gradient[:, -1:] > 0
    table.copy_(torch.where(touched, _stepped(table, gradient[:, :-1], lr, weight_decay), table))


def update_rows(
    table: Tensor, ids_B: Tensor, grads_BD: Tensor, lr: Tensor | float, weight_decay: float
) -> None:
    """Update the rows that the global batch touched, p = p * (1 - lr * wd) - lr * sign(g), in place, of a table too
    large for a dense gradient. `ids_B`, `grads_BD`: of each row of the batch."""
    same_BB = (ids_B[:, None] == ids_B).to(grads_BD.dtype)
    ids = ids_B.long()
    table[ids] = _stepped(table[ids], same_BB @ grads_BD, lr, weight_decay)
