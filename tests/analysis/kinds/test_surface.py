"""`surface`: laws of several variables; where every puzzle recurs, held-out runs are predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from benchmarks.regime import TRUTHS, study
from tests.analysis.conftest import Drawn, figure
from tests.analysis.synthetic import experiment, parameters
from trm.analysis.claims import sentences
from trm.analysis.drawing import save, styled
from trm.analysis.fits import fit_table
from trm.analysis.fits.recurring import RECURRING, averaged
from trm.analysis.kinds import draw
from trm.analysis.laws import claims_of_fit
from trm.analysis.report.grids import fit_block
from trm.analysis.report.verdicts import verdict
from trm.analysis.specs import Check, TableSpec
from trm.analysis.tables import Table, collect
from trm.io import dump
from trm.study.schema import RunConfig

FEW = 1000
"""Steps of the longest runs that are fitted."""
STUDY = [
    {"training.steps": steps, "model.d_model": width, "data.train_puzzles": puzzles}
    for steps in (60, 250, FEW)
    for width in (16, 32, 64)
    for puzzles in (30, 100, 1000)
]
HELD_OUT = {"training.steps": 4 * FEW, "model.d_model": 96, "data.train_puzzles": 1000}


def error(config: RunConfig) -> float:
    """A logistic of steps and size over a floor of 50 % at 30 puzzles, 2 % at 1,000."""
    floor = expit(-1.1 * np.log(config.data.train_puzzles / 30))
    skill = np.log(config.training.steps / 250) + 0.4 * np.log(parameters(config) / 30_000)
    return float(floor + (1 - floor) * expit(-skill))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    spec = experiment(tmp_path_factory.mktemp("regime"), "regime", [*STUDY, HELD_OUT], 2, error)
    found = collect(TableSpec.model_validate(spec))
    found.rows["train_flops"] = 1e9 * found.rows["training.steps"]
    return found


def fit_of(table: Table, spec: Any) -> dict[str, Any]:
    (wanted,) = spec.fits("regime")
    fit = fit_table(table, wanted.model_copy(update={"bootstrap": 100}))
    read: dict[str, Any] = json.loads(dump({**fit, "spec": wanted.model_dump(mode="json")}))
    return read  # as the figure reads it


@pytest.mark.parametrize("name", RECURRING)
def test_derivatives(name: str) -> None:
    form, rng = RECURRING[name], np.random.default_rng(0)
    phi, u = rng.normal(0, 0.7, (4, len(form.parameters))), np.exp(rng.normal(0, 1, (3, 25)))
    value, jacobian = form.value(phi, u)
    for k in range(phi.shape[1]):
        moved = phi + 1e-6 * np.eye(phi.shape[1])[k]
        assert (form.value(moved, u)[0] - value) / 1e-6 == pytest.approx(jacobian[..., k], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("name", RECURRING)
def test_parameters_in_the_datas_own_units(name: str) -> None:
    form, rng = RECURRING[name], np.random.default_rng(1)
    phi, x = rng.normal(0, 0.5, (2, len(form.parameters))), np.exp(rng.normal(3, 1, (3, 9)))
    scale = np.exp(np.log(x).mean(axis=1))
    own = form.log_value(form.public(phi, scale), x)
    assert own == pytest.approx(form.log_value(phi, x / scale[:, None]))


def test_a_held_out_run_is_predicted(table: Table, tmp_path: Path) -> None:
    spec = figure(kind="surface", form="recurring_data", until=1e9 * FEW)
    fit = fit_of(table, spec)
    (group,) = fit["groups"]
    assert (group["runs"], group["points"], len(group["forms"])) == (54, 27, 9)
    assert sum(form["weight"] for form in group["forms"].values()) == pytest.approx(1)
    assert sum(form["weight"] for name, form in group["forms"].items() if "floor" in name) > 0.99
    (held,) = group["places"]
    assert held["interval"][0] < held["error"] < held["interval"][1] < 0.25
    line = averaged(group["forms"], np.array([[held["flops"]], [held["parameters"]], [held["puzzles"]]]))
    assert line[0] == pytest.approx(held["predicted"])
    floors = {item["puzzles"]: item["value"] for item in group["floors"]}
    assert floors[30] == pytest.approx(0.5, abs=0.08)
    assert floors[1000] < 0.1
    with styled():
        drawing = draw(spec, [table], [fit])
        save(drawing, tmp_path / "regime.pdf")
    assert "(4 times beyond the fit), 9 forms together predict (90 % interval) error" in drawing.sentence
    assert "2 seeds, inside the interval" in drawing.sentence
    assert "Error that no compute removes: " in drawing.sentence
    block = fit_block(fit)
    assert len(block.grid.rows) == 9
    assert block.notes == ["Average: all forms, by their Akaike weights"]
    law = Check(metric="error", law="train_flops")
    assert verdict((law,), table, [fit]).state == "not tested"


def test_a_place_that_no_run_has_is_predicted(table: Table) -> None:
    place = {"label": "the paper", "puzzles": 1000, "parameters": 5_000_000, "flops": 1e14, "error": 0.5}
    spec = figure(
        kind="surface", form="recurring_data", places=[place, {**place, "label": "unknown", "error": None}]
    )
    (group,) = fit_of(table, spec)["groups"]
    assert group["runs"] == 56
    said = sentences(claims_of_fit({"spec": {"form": "recurring_data"}, "groups": [group]}))
    assert "the paper: 50.0 %, outside the interval" in said
    assert "unknown: not measured" in said


def test_too_few_points(table: Table) -> None:
    spec = figure(
        kind="surface", form="recurring_data", where={"model.d_model": 16, "data.train_puzzles": 30}
    )
    (group,) = fit_of(table, spec)["groups"]
    assert group["error"] == "3 points: too few for the forms of compute, size and data"
    assert "3 points: too few" in sentences(
        claims_of_fit({"spec": {"form": "recurring_data"}, "groups": [group]})
    )


@pytest.mark.parametrize("name", ["cloglog", "gompertz floor"])
def test_intervals_hold_in_simulated_studies(name: str) -> None:
    """Resampling the few equal runs alone would hold about half of the first."""
    results = [study(TRUTHS[name], seed, 0.45) for seed in range(4)]
    assert sum(result.covered for result in results) >= 3


FORM: dict[str, Any] = {
    "parameters": {"E": 0.02, "A": 1.0, "a": 0.5, "B": 1.0, "b": 0.3, "R*": 12.0},
    "intervals": {"R*": [8.0, 20.0], "E": [0.01, 0.03]},
}
GROUP: dict[str, Any] = {
    "forms": {"joint": FORM, "repeated_data": FORM},
    "doubts": [],
    "means": {"y": [0.5, 0.1]},
}


def words(group: dict[str, Any]) -> str:
    spec = {"form": group["chosen"], "x": "parameters", "second": "train_flops", "y": "error"}
    return sentences(claims_of_fit({"spec": spec, "groups": [group]}))


def test_supported_laws_in_words() -> None:
    joint, repeated = {**GROUP, "chosen": "joint"}, {**GROUP, "chosen": "repeated_data"}
    assert "The worth of the augmented copies of a puzzle is 12 [8, 20] fresh puzzles at most" in words(
        repeated
    )
    assert (
        "parameters with exponent −0.5. Error falls as a power law of training compute with exponent"
        in words(joint)
    )
    assert words(joint).endswith("towards a floor of 2.0 % [1.0, 3.0].")


def test_doubtful_laws_are_not_claimed() -> None:
    doubtful = {**GROUP, "doubts": ["an exponent reaches the bound of the search"]}
    no = ": an exponent reaches the bound"
    assert f"We claim no law of error against parameters and training compute{no}" in words(
        {**doubtful, "chosen": "joint"}
    )
    assert f"the effective number of puzzles{no}" in words({**doubtful, "chosen": "repeated_data"})


def test_laws_of_two_variables_are_drawn(drawn: Drawn) -> None:
    drawn("augmentation", kind="surface", form="repeated_data")
    drawn("compute", kind="surface")
