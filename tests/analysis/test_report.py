"""Criteria and report: flip a result and its words flip; what is missing is said; one file that needs nothing else."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pypdf import PdfReader

from tests.analysis.synthetic import experiment
from trm.analysis.paper import ABLATIONS
from trm.analysis.report import build, page
from trm.analysis.report.contrasts import Contrast, contrast, matching, primary
from trm.analysis.report.criteria import ablations, beyond, laws, reproduction, scale, stability, workers
from trm.analysis.report.document import document
from trm.analysis.specs import ReportSpec, TableSpec
from trm.analysis.stats.intervals import Mean, mean
from trm.analysis.tables import Table, collect
from trm.cli import main

BROWSER = next(
    (path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None
)


@pytest.mark.parametrize(
    ("values", "states"),
    [
        ([0.87, 0.88, 0.87], ["met", "met"]),
        ([0.851, 0.852, 0.853], ["met", "not met"]),
        ([0.70, 0.71, 0.72], ["not met", "not met"]),
        ([], ["not run", "not run"]),
    ],
)
def test_reproduction(values: list[float], states: list[str]) -> None:
    assert [item.state for item in reproduction(mean(values))] == states


def test_only_the_papers_recipe_counts_as_reproduction(tables: dict[str, Table]) -> None:
    assert matching(tables["data_size"].select(), {}).empty


def contrasts(signs: list[int]) -> list[tuple[str, float, Contrast | None]]:
    change = {1: Mean(0.1, 0.05, 0.15, 3), 0: Mean(0.1, -0.05, 0.25, 3), -1: Mean(-0.1, -0.15, -0.05, 3)}
    return [(f"effect {i}", 5.0, Contrast(change[sign], "a", "b")) for i, sign in enumerate(signs)]


@pytest.mark.parametrize(
    ("signs", "state"),
    [([1, 1, 1, 0], "met"), ([1, 1, 0, 0], "not met"), ([1, 1, -1], "not met"), ([1, 1], "not run")],
)
def test_ablations_are_confirmed_or_not(signs: list[int], state: str) -> None:
    found = ablations(contrasts(signs))
    assert found.state == state
    assert found.number.startswith(f"{signs.count(1)} of {len(signs)} measured")


def test_contrasts_compare_runs_that_differ_in_the_ablated_key_alone(tables: dict[str, Table]) -> None:
    rows = primary([tables["ema"], tables["mixer"], tables["recursion"]])
    found = {item.name: contrast(rows, item) for item in ABLATIONS}
    assert found["averaging the weights (EMA) helps"].change.sign == 1
    assert found["MLP beats attention on Sudoku"].change.value > 0
    assert found["two layers beat four with half the cycles"] is None
    assert found["more recursion helps"].better == "h_cycles = 2, l_cycles = 2"


def test_stability_workers_and_the_best_point() -> None:
    run = {"outcome": "finished", "broken": False, "workers": 1}
    assert stability({"a": run}, []).state == "met"
    assert stability({"a": {**run, "broken": True}}, []).state == "not met"
    assert stability({"a": run}, ["b: NaN"]).state == "not met"
    assert stability({}, []).state == "not run"
    assert workers({"a": run}).state == "not run"
    assert workers({"a": {**run, "workers": 8}}).state == "met"
    assert beyond(pd.DataFrame({"run": []})).state == "not run"


def test_laws_need_size_and_batch_with_intervals() -> None:
    def fit(form: str, x: str, name: str, bounds: list[float] | None) -> dict[str, Any]:
        inner = {"parameters": {name: 1.0}, "intervals": {name: bounds} if bounds else None}
        return {"spec": {"form": form, "x": x}, "groups": [{"chosen": form, "forms": {form: inner}}]}

    size = fit("power_law", "parameters", "a", [0.5, 1.5])
    batch = fit("critical_batch", "training.batch_size", "B*", [0.5, 1.5])
    assert laws([size, batch]).state == "met"
    assert laws([size]).state == "not run"
    assert laws([size, fit("critical_batch", "training.batch_size", "B*", None)]).state == "not met"
    assert laws([]).state == "not run"


def test_effects_hold_at_scale_or_not() -> None:
    item = {
        "effect": "no EMA",
        "where": "768",
        "elsewhere": "batch size 4096",
        "mean": 0.0,
        "low": -0.1,
        "high": 0.1,
    }
    assert scale([item]).state == "met"
    assert scale([item, {**item, "mean": 0.2, "low": 0.1, "high": 0.3}]).state == "not met"
    assert scale([]).state == "not run"


@pytest.fixture(scope="module")
def spec(study: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report of three experiments made by the command line, and one that never ran."""
    out = tmp_path_factory.mktemp("report")
    wanted = {
        "data_size": {"kind": "law", "x": "data.train_puzzles"},
        "ema": {"kind": "ablation", "x": "training.ema", "hue": "training.batch_size"},
        "inference": {"kind": "steps"},
    }
    fit = '{"experiments": ["data_size"], "x": "data.train_puzzles", "bootstrap": 50}'
    assert (
        main(
            [
                "fit",
                "--table",
                str(study / "tables/data_size.csv"),
                "--spec",
                fit,
                "--out",
                str(out / "f.json"),
            ]
        )
        == 0
    )
    facts = json.loads((out / "f.json").read_text())
    facts["spec"]["bootstrap"] = 1000
    (out / "f.json").write_text(json.dumps(facts))
    for name, figure in wanted.items():
        table = str(study / f"tables/{name}.csv")
        fits = ["--fit", str(out / "f.json")] if name == "data_size" else []
        args = [
            "plot",
            "--spec",
            json.dumps(figure),
            "--table",
            table,
            *fits,
            "--out",
            str(out / f"{name}.pdf"),
        ]
        assert main(args) == 0
    entries = [
        {
            "name": name,
            "question": f"What of {name}?",
            "table": str(study / f"tables/{name}.csv"),
            "fits": [str(out / "f.json")] if name == "data_size" else [],
            "figures": [str(out / f"{name}.pdf")],
            "planned_hours": 0.05,
            "rebuild": f"snakemake --profile profiles/local {name}",
        }
        for name in wanted
    ]
    lost = {
        "name": "maze",
        "question": "Mazes <too>?",
        "table": str(out / "maze.csv"),
        "figures": [str(out / "maze.pdf")],
        "planned_runs": 3,
        "failed": [{"run": "maze-1", "sentence": "loss is not finite at step 120"}],
    }
    return {"study": "synthetic", "scale": "laptop", "experiments": [*entries, lost]}


def test_the_report_needs_nothing_but_itself(spec: dict[str, Any]) -> None:
    text = page(build(ReportSpec.model_validate(spec)))
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert "@import" not in text
    assert "url(" not in text
    assert text.count("data:image/png;base64,") == 3
    assert "Mazes &lt;too&gt;?" in text


def test_what_is_missing_or_failed_stands_in_red(spec: dict[str, Any]) -> None:
    report = build(ReportSpec.model_validate(spec))
    said = " ".join(report.problems)
    for words in (
        "maze: no results",
        "figure maze.pdf is missing",
        "run maze-1 failed: loss is not finite at step 120",
    ):
        assert words in said
    text = html.unescape(page(report))
    assert '<details class="problem" open>' in text
    assert next(item for item in report.criteria if "NaN" in item.name).state == "not met"


def test_answers_and_criteria_come_from_the_results(tmp_path: Path, spec: dict[str, Any]) -> None:
    """The same study with EMA made harmful instead of helpful: contrast, sentence and criterion flip."""

    def harmful(config: Any) -> float:
        return 0.2 if config.training.ema == 0 else 0.4

    points = [{"training.ema": value} for value in (0.0, 0.99)]
    flipped = collect(TableSpec.model_validate(experiment(tmp_path, "ema", points, error=harmful)))
    straight = collect(
        TableSpec.model_validate(experiment(tmp_path, "ema", points, error=lambda c: 0.6 - harmful(c)))
    )
    ablation = ABLATIONS[0]
    assert contrast(primary([flipped]), ablation).change.sign == -1
    assert contrast(primary([straight]), ablation).change.sign == 1
    answers = {section.name: section.answer for section in build(ReportSpec.model_validate(spec)).sections}
    assert "below" in answers["ema"]
    assert answers["maze"] == "Not run."


def test_sections_show_cost_paper_and_provenance(spec: dict[str, Any]) -> None:
    report = build(ReportSpec.model_validate(spec))
    assert [row["experiment"] for row in report.cost][-1] == "all, each run once"
    assert report.cost[0]["ratio"] != "–"
    assert {row["here"] for row in report.paper} == {"not run at this scale"}
    assert ("commits", "0123456789ab") in report.provenance
    section = report.sections[0]
    assert len(section.points) == 5
    assert any("(shown)" in row["form"] for row in section.fits[0].rows)
    assert section.rebuild.endswith("data_size")


def test_the_pdf_holds_criteria_sections_and_figures(spec: dict[str, Any]) -> None:
    report = build(ReportSpec.model_validate(spec))
    first = document(report)
    assert first == document(report)
    reader = PdfReader(__import__("io").BytesIO(first))
    text = " ".join(page.extract_text() for page in reader.pages)
    for words in (
        "Criteria",
        "not run",
        "What of data_size?",
        "Error against unique training puzzles",
        "maze-1 failed",
    ):
        assert words in text
    assert [item.title for item in reader.outline][:2] == ["Criteria", "Experiments"]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_shows_the_page_and_its_viewer(spec: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(build(ReportSpec.model_validate(spec))))
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--virtual-time-budget=2000",
        "--dump-dom",
    ]
    command = [str(BROWSER), *flags, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "supervision step 1 of 8" in shown
    assert shown.count('<td class="') >= 12
    assert shown.count("<option") >= 4
