"""Per-puzzle metrics, summed over a split."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from trm.devices.base import Backend
from trm.network.losses import judge

FIELDS = ("puzzles", "exact", "accuracy", "blank", "blank_squared", "blank_puzzles", "cross_entropy", "steps")


class Score:
    """Metric sums over the puzzles of one split under one policy."""

    def __init__(self, device: torch.device, ignore: int, blank: int | None):
        self._ignore, self._blank = ignore, blank
        self.sums = torch.zeros(len(FIELDS), dtype=torch.float64, device=device)

    def add(
        self, logits_SBV: Tensor, inputs_BS: Tensor, labels_BS: Tensor, steps_B: Tensor | float
    ) -> Tensor:
        """Add puzzles answered after `steps_B` supervision steps. Returns 1 for exact answers [B]."""
        answer = judge(logits_SBV, labels_BS, self._ignore)
        self._add(answer, logits_SBV.argmax(-1).t(), inputs_BS, labels_BS, steps_B)
        return answer.exact

    def add_answers(
        self, answers_BS: Tensor, inputs_BS: Tensor, labels_BS: Tensor, steps_B: Tensor | float
    ) -> None:
        """Add puzzles by their answers (symbols); their cross entropy is unknown."""
        mask = labels_BS != self._ignore
        right = ((answers_BS == labels_BS) & mask).sum(1)
        count = mask.sum(1)
        fields = (
            torch.full_like(count, math.nan, dtype=torch.float32),
            right / count.clamp(min=1),
            (right == count).float(),
            (count > 0).float(),
        )
        self._add(fields, answers_BS, inputs_BS, labels_BS, steps_B)

    def _add(
        self,
        answer: tuple[Tensor, ...],
        answers_BS: Tensor,
        inputs_BS: Tensor,
        labels_BS: Tensor,
        steps_B: Tensor | float,
    ) -> None:
        cross_entropy, accuracy, exact, valid = answer
        blank_BS = (labels_BS != self._ignore) & (
            torch.ones_like(inputs_BS, dtype=torch.bool) if self._blank is None else inputs_BS == self._blank
        )
        blanks = blank_BS.sum(1)
        blank = ((answers_BS == labels_BS) & blank_BS).sum(1) / blanks.clamp(min=1)
        has_blank = (blanks > 0) * valid
        steps = torch.as_tensor(steps_B, device=valid.device) * torch.ones_like(valid)
        columns = (
            valid,
            exact * valid,
            accuracy * valid,
            blank * has_blank,
            blank.square() * has_blank,
            has_blank,
            cross_entropy * valid,
            steps * valid,
        )
        self.sums += torch.stack([column.double().sum() for column in columns])

    def result(self, backend: Backend) -> dict[str, Any]:
        """Metrics over the puzzles of all workers; None if unknown. `blank_error`: standard error over puzzles."""
        total = backend.total(backend.fetch(self.sums)).tolist()
        value = dict(zip(FIELDS, total))
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
