"""Per-puzzle metrics, summed over a split."""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from trm.model.losses import judge

FIELDS = ("puzzles", "exact", "accuracy", "blank", "blank_squared", "blank_puzzles", "cross_entropy", "steps")


class Score:
    """Metric sums over the puzzles of one split under one policy."""

    def __init__(self, device: torch.device, ignore: int, blank: int | None):
        self.ignore, self._blank = ignore, blank
        self.sums = torch.zeros(len(FIELDS), dtype=torch.float64, device=device)

    def add(
        self,
        logits_SBV: Tensor,
        inputs_BS: Tensor,
        labels_BS: Tensor,
        steps_B: Tensor | float,
        among_B: Tensor | None = None,
    ) -> Tensor:
        """Add puzzles answered after `steps_B` supervision steps, only those of `among_B` if given. Returns 1 for exact
        answers [B]."""
        cross_entropy_B = judge(logits_SBV, labels_BS, self.ignore).cross_entropy
        answers_BS = logits_SBV.argmax(-1).t()
        return self.add_answers(answers_BS, inputs_BS, labels_BS, steps_B, cross_entropy_B, among_B)

    def add_answers(
        self,
        answers_BS: Tensor,
        inputs_BS: Tensor,
        labels_BS: Tensor,
        steps_B: Tensor | float,
        cross_entropy_B: Tensor | float = math.nan,
        among_B: Tensor | None = None,
    ) -> Tensor:
        """Add puzzles whose answers (symbols) are known, but no logits."""
        valid_BS = labels_BS != self.ignore
        blank_BS = valid_BS if self._blank is None else valid_BS & (inputs_BS == self._blank)
        right_BS = answers_BS == labels_BS
        count, blanks = valid_BS.sum(1), blank_BS.sum(1)
        right = (right_BS & valid_BS).sum(1)
        exact, valid = (right == count).float(), (count > 0).float()
        if among_B is not None:
            valid = valid * among_B
        blank, has_blank = (right_BS & blank_BS).sum(1) / blanks.clamp(min=1), (blanks > 0) * valid
        columns = [valid, exact * valid, right / count.clamp(min=1) * valid, blank * has_blank]
        columns += [blank.square() * has_blank, has_blank, cross_entropy_B * valid, steps_B * valid]
        self.sums += torch.stack([column.double().sum() for column in columns])
        return exact

    def with_sums(self, sums: Tensor) -> Self:
        """This score with the sums of another one of its kind."""
        self.sums = sums
        return self

    def result(self, total: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Metrics over the puzzles of all workers, whose sums `total` adds (`Backend.total`); None if unknown.

        `blank_error`: standard error over puzzles.
        """
        value = dict(zip(FIELDS, total(self.sums).tolist()))
        count, blanks = max(1.0, value["puzzles"]), value["blank_puzzles"]
        blank = value["blank"] / blanks if blanks else None
        error = None
        if blank is not None and blanks > 1:
            variance = max(0.0, value["blank_squared"] / blanks - blank**2) * blanks / (blanks - 1)
            error = math.sqrt(variance / blanks)
        cross_entropy = value["cross_entropy"] / count
        return {
            "puzzles": int(value["puzzles"]),
            "correct": int(value["exact"]),
            "exact_accuracy": value["exact"] / count,
            "accuracy": value["accuracy"] / count,
            "blank_accuracy": blank,
            "blank_error": error,
            "cross_entropy": cross_entropy if math.isfinite(cross_entropy) else None,
            "mean_steps": value["steps"] / count,
        }
