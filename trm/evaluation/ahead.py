"""Evaluation of a small run by the process that trained it.

The results are saved beside the checkpoints. The evaluation job reuses them, since loading torch and the compiled
passes again would take longer than the evaluation.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trm.io import sha256_file, write_json
from trm.study.fingerprint import evaluation_fingerprint
from trm.study.records import WEIGHTS
from trm.study.schema import EvaluationConfig

if TYPE_CHECKING:
    from trm.backends.base import Backend

log = logging.getLogger("trm")


def _kept(checkpoints: Path, evaluation: EvaluationConfig) -> Path:
    return checkpoints / "evaluated" / f"{evaluation_fingerprint(evaluation)[:8]}.json"


def _depends_on(run: Path, dataset: Path, evaluation: EvaluationConfig) -> dict[str, Any]:
    """What must be unchanged for a saved evaluation to be reused."""
    return {
        "weights": sha256_file(run / WEIGHTS),
        "dataset": dataset.name,
        "evaluation": evaluation.model_dump(mode="json"),
    }


def evaluate_ahead(
    run: Path, dataset: Path, evaluations: Sequence[EvaluationConfig], checkpoints: Path, backend: Backend
) -> None:
    """Evaluate a run that has just finished and save the results in its checkpoint folder.

    A failure is only logged, since the evaluation job tries again.
    """
    from trm.evaluation.evaluate import Evaluation
    from trm.training.dataset import Dataset
    from trm.training.outputs import load_weights

    try:
        trained, data = load_weights(run), Dataset(dataset)
        for evaluation in evaluations:
            document = Evaluation(trained, data, evaluation, backend).run()
            kept = _kept(checkpoints, evaluation)
            write_json(kept, _depends_on(run, dataset, evaluation) | {"document": document})
    except Exception as error:
        log.warning("the evaluation job will evaluate again: %s", error)
        log.debug("traceback", exc_info=True)


def take_over(
    run: Path, dataset: Path, evaluation: EvaluationConfig, checkpoints: Path, out: Path
) -> dict[str, Any] | None:
    """Write the saved evaluation of these weights and settings to `out` and return it; None: there is none.

    It is used only once, so that --forcerun evaluate evaluates again.
    """
    kept = _kept(checkpoints, evaluation)
    try:
        saved = json.loads(kept.read_text(encoding="utf-8"))
        wanted = _depends_on(run, dataset, evaluation)
        if {key: saved[key] for key in wanted} != wanted:
            return None
        document: dict[str, Any] = saved["document"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    write_json(out, document)
    kept.unlink()
    return document
