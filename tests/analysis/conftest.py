"""One small study of synthetic results, shared by all tests of the analysis."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.synthetic import experiment, overlay, parameters
from trm.analysis.drawing import save, styled
from trm.analysis.fits import fit_table
from trm.analysis.kinds import FIGURE, draw
from trm.analysis.kinds.common import Drawing
from trm.analysis.specs import TableSpec
from trm.analysis.tables import Table, collect, load, merge
from trm.analysis.tables import save as save_table
from trm.study.schema import EvaluationConfig, RunConfig

GRIDS = {
    "data_size": [{"data.train_puzzles": n} for n in (10, 30, 100, 300, 1000)],
    "augmentation": [{"data.train_puzzles": 30, "data.augmentations": n} for n in (0, 2, 5, 10, 50)],
    "model_size": [{"model.d_model": d} for d in (16, 32, 64, 96)],
    "two_decades": [{"training.steps": s} for s in (120, 250, 550, 1200, 2500, 5500, 12000)],
    "recursion": [{"model.h_cycles": t, "model.l_cycles": n} for t in (1, 2) for n in (1, 2)],
    "compute": [{"training.steps": s, "model.d_model": d} for d in (16, 32, 64) for s in (100, 400, 1600)],
    "mixer": [{"model.mixer": "mlp"}, {"model.mixer": "attention"}],
    "ema": [{"training.ema": e, "training.batch_size": b} for b in (128, 512) for e in (0.0, 0.99)],
    "inference": [{"data.train_puzzles": 100}],
    "unroll": [{"model.d_model": 16}, {"model.d_model": 64}],
    "batch_size": [
        {"training.batch_size": b, "training.steps": 600 + 600 * 128 // b} for b in (32, 64, 128, 256)
    ],
    "lr_batch": [
        {"training.lr": r, "training.batch_size": b} for r in (4e-4, 8e-4, 16e-4, 32e-4) for b in (64, 256)
    ],
}
DEPTHS = {"unroll": (1, 2, 4, 8, 16)}
EVALUATIONS = {
    "inference": (EvaluationConfig(**DEPTHS, confident=True, restarts=(2, 4), start_noise=0.3),),
    "ema": (EvaluationConfig(), EvaluationConfig(weights="raw")),
    "unroll": (EvaluationConfig(**DEPTHS),),
}

BUDGETS = (1e12, 3e12, 1e13, 3e13, 1e14)
EXTRA = ("blocks", "batch_blocks", "isoflop")


def steps_of(flops: float, width: int) -> int:
    """Training steps that spend a budget at a width."""
    run = RunConfig.model_validate(overlay({"model.d_model": width}))
    return round(flops / (6.0 * parameters(run) * 17 * 3 * run.training.batch_size))


def best_width(config: RunConfig) -> float:
    """An error that is least at a width which grows as compute to the power 0.25."""
    flops = 6.0 * parameters(config) * 17 * 3 * config.training.batch_size * config.training.steps
    best = 24.0 * (flops / 1e12) ** 0.25
    return float(0.4 * (flops / 1e12) ** -0.4 * np.exp(0.4 * np.log(config.model.d_model / best) ** 2))


def write_study(root: Path) -> None:
    """Write `specs/<experiment>.json` and `tables/<experiment>.csv`."""
    (root / "specs").mkdir()
    specs = {
        name: experiment(root, name, points, evaluations=EVALUATIONS.get(name, (EvaluationConfig(),)))
        for name, points in GRIDS.items()
    }
    equal = [
        {"model.d_model": d, "training.steps": steps_of(c, d)} for c in BUDGETS for d in (16, 32, 64, 128)
    ]
    specs["isoflop"] = experiment(root, "isoflop", equal, error=best_width)
    sizes = [{"model.d_model": d} for d in (16, 32, 64)]
    specs["blocks"] = blocks(root, "blocks", sizes, "training.batch_size", 512)
    batches = GRIDS["batch_size"][:3]
    specs["batch_blocks"] = blocks(root, "batch_blocks", batches, "training.lr", 1.5e-3)
    for name, spec in specs.items():
        (root / "specs" / f"{name}.json").write_text(json.dumps(spec))
        save_table(collect(TableSpec.model_validate(spec)), root / "tables" / f"{name}.csv")


@pytest.fixture(scope="session")
def study(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A folder with `specs/<experiment>.json` and `tables/<experiment>.csv`."""
    return once("study", write_study)


def blocks(
    root: Path, name: str, points: list[dict[str, object]], key: str, value: float
) -> dict[str, object]:
    """A grid of two blocks, the second with another value of `key` throughout, as the study labels it."""
    spec = experiment(root, name, [*points, *({key: value, **point} for point in points)])
    for point in spec["points"][len(points) :]:
        point["label"] = f"point ({key.split('.')[1]}={value})"
    return spec


@pytest.fixture(scope="session")
def tables(study: Path) -> dict[str, Table]:
    """The tables, loaded."""
    return {name: load(study / "tables" / f"{name}.csv") for name in (*GRIDS, *EXTRA)}


def figure(**spec: Any) -> Any:
    """A validated figure spec."""
    return FIGURE.validate_python(spec)


def inputs(tables: dict[str, Table], experiment: str, spec: Any) -> tuple[list[Table], list[dict[str, Any]]]:
    """Tables and fits of a figure, as the rules would hand them over; few refits."""
    given = [tables[name] for name in spec.experiments(experiment)]
    fits = []
    for wanted in spec.fits(experiment):
        quick = wanted.model_copy(update={"bootstrap": 40})
        fit = fit_table(merge([tables[name] for name in wanted.experiments]), quick)
        fits.append({**fit, "spec": wanted.model_dump(mode="json")})
    return given, fits


def saved(tables: dict[str, Table], experiment: str, out: Path, **spec: Any) -> tuple[Drawing, list[Path]]:
    """A figure of an experiment, drawn and saved as the command does it."""
    wanted = figure(**spec)
    with styled():
        drawing = draw(wanted, *inputs(tables, experiment, wanted))
        return drawing, save(drawing, out)


def compare_with_golden(path: Path, found: Any) -> None:
    """What was found is what the file holds; with GOLDEN=write in the environment, the file is written anew."""
    if os.environ.get("GOLDEN") == "write":
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    assert found == json.loads(path.read_text())


Drawn = Callable[..., Drawing]


@pytest.fixture(scope="session")
def drawn(tables: dict[str, Table]) -> Drawn:
    """Draws a figure of an experiment."""

    def make(experiment: str, **spec: Any) -> Drawing:
        wanted = figure(**spec)
        with styled():
            return draw(wanted, *inputs(tables, experiment, wanted))

    return make
