"""The report: what is missing is said; one file that needs nothing else."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trm.analysis.fits.compare import MARGIN
from trm.analysis.published import matching
from trm.analysis.report import build, page, print_pdf
from trm.analysis.report.build import findings
from trm.analysis.report.contents import FigureBlock, Section
from trm.analysis.report.page import stacked
from trm.analysis.specs import ReportExperiment, ReportSpec
from trm.analysis.tables import Table
from trm.cli import main
from trm.study.records import sealed
from trm.study.schema import RunConfig

BROWSER = next(
    (path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None
)


def test_only_the_papers_recipe_counts_as_reproduction(tables: dict[str, Table]) -> None:
    rows = tables["data_size"].select()
    assert matching(rows, {}).empty
    recipe = RunConfig().model_dump(mode="json", include={"model", "data", "training"})
    for section, fields in recipe.items():
        for key, value in fields.items():
            cell = json.dumps(value, separators=(",", ":")) if isinstance(value, list) else value
            rows[f"{section}.{key}"] = "" if value in ([], None) else cell
    assert len(matching(rows, {})) == len(rows)
    assert matching(rows, {"training.ema": 0.0}).empty


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
    (out / "f.json").write_text(json.dumps(sealed(facts)))
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
    assert not re.search(r"url\((?!#)", text)
    wide = len(re.findall('class="drawn(?: wide)?"', text))
    assert wide == 4  # the first screen repeats the figure of the first finding
    narrow = text.count('class="drawn narrow"')
    assert text.count("<svg") >= wide + narrow
    assert text.count('class="small narrow"') == narrow > 0
    assert stacked("Left: seeds. Middle and right: widths.") == "Top: seeds. Below: widths."
    assert "Mazes &lt;too&gt;?" in text


def test_what_is_missing_or_failed_stands_in_red(spec: dict[str, Any]) -> None:
    report = build(ReportSpec.model_validate(spec))
    said = " ".join(report.problems)
    for words in (
        "maze: no results",
        "figure maze.pdf is missing: build it again",
        "run maze-1 failed: loss is not finite at step 120",
    ):
        assert words in said
    assert "<details open><summary>3 problems" in page(report)
    assert "<details><summary>4 problems" in page(replace(report, problems=[*report.problems, "one more"]))


def test_sections_show_cost_paper_and_provenance(spec: dict[str, Any]) -> None:
    report = build(ReportSpec.model_validate(spec))
    assert [row[0] for row in report.cost.rows][-1] == "all, each run once"
    assert report.cost.rows[0][-1] != "–"
    assert {row[2] for row in report.paper.rows} == {"not run at this scale"}
    assert not report.paper_run
    assert ("commits", "0123456789ab") in report.provenance
    section = report.sections[0]
    assert [len(grid.rows) for grid in section.grids] == [5, 5]
    assert any("(chosen)" in row[0] for row in section.fits[0].grid.rows)
    assert section.spec.rebuild.endswith("data_size")


def test_the_first_screen_has_the_question_findings_and_one_figure(spec: dict[str, Any]) -> None:
    report = build(ReportSpec.model_validate(spec))
    text = page(report)
    places = [
        text.index(part) for part in (report.spec.question, 'id="viewer"', "<figure>", "Experiments</h2>")
    ]
    assert places == sorted(places)
    assert report.hero is not None
    assert 1 <= len(report.findings) <= 3
    for finding in report.findings:
        assert text.count(f"<li><p>{html.escape(finding.text)}") <= 1
    assert report.sections[-1].answer == "Not run."


def test_a_figure_of_the_whole_study_leads(spec: dict[str, Any]) -> None:
    whole = spec["experiments"][0]["figures"][0]
    report = build(ReportSpec.model_validate({**spec, "figures": [whole]}))
    assert report.hero is not None
    assert report.hero.path == Path(whole)
    assert report.figures == []


def test_the_printed_page_leaves_out_what_it_cannot_unfold(spec: dict[str, Any]) -> None:
    report = build(ReportSpec.model_validate(spec))
    for run, paper in ((False, True), (True, True), (False, False)):
        text = html.unescape(page(replace(report, paper_run=run), paper=paper))
        assert ("The paper's numbers" in text) == (run or not paper)


def test_established_findings_come_first() -> None:
    def section(name: str, *strengths: float | None) -> Section:
        blocks = [
            FigureBlock(Path(name), answer=f"{name} {i}", strength=s, png=b"")
            for i, s in enumerate(strengths)
        ]
        return Section(ReportExperiment(name=name, table=""), figures=blocks)

    found = findings(
        [section("unsure", None), section("weak", 1.2), section("strong", None, 5.0), section("lost")]
    )
    assert [(item.text, item.established) for item in found] == [
        ("strong 1", True),
        ("weak 0", True),
        ("unsure 0", False),
    ]


def test_hypotheses_that_the_grid_cannot_test_are_marked(spec: dict[str, Any]) -> None:
    first = {
        **spec["experiments"][0],
        "hypothesis": "1,000 suffice.",
        "needs": {"data.train_puzzles": [1000]},
    }
    far = {**first, "needs": {"data.train_puzzles": [1000, 5000]}}
    for entry, words in ((first, ""), (far, "the grid has no point with data.train_puzzles = 5000")):
        report = build(ReportSpec.model_validate({**spec, "experiments": [entry]}))
        assert report.sections[0].untested == words
        assert ("not tested here" in page(report)) == bool(words)


def test_noise_models_are_stated_once(spec: dict[str, Any]) -> None:
    text = html.unescape(page(build(ReportSpec.model_validate(spec))))
    assert text.count("Student's 95 % interval over its seeds") == 1


def test_the_rule_for_laws_is_told_with_the_margin_in_use(spec: dict[str, Any]) -> None:
    text = html.unescape(page(build(ReportSpec.model_validate(spec))))
    assert f"are worse by {MARGIN} in AICc" in text


def test_no_number_is_broken_from_its_unit_or_interval(spec: dict[str, Any]) -> None:
    text = page(build(ReportSpec.model_validate(spec)))
    body = re.sub(r"<figcaption>.*?</figcaption>|<script.*?</script>|<ul.*?</ul>", "", text, flags=re.S)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", body)
    assert any("\u00a0%" in cell for cell in cells)
    assert not [cell for cell in cells if re.search(r"\d %|\[[^\]]* [^\]]*\]", cell)]


@pytest.mark.parametrize(
    ("end", "content", "words"),
    [
        (
            ".png",
            b"\x89PNG\r\n\x1a\nbroken",
            "was changed, damaged or replaced since it was written: delete it",
        ),
        (".json", b"{}", "lacks its words: delete it and build it again"),
        (".json", b"{", "is not JSON"),
    ],
)
def test_a_damaged_figure_is_named(
    spec: dict[str, Any], tmp_path: Path, end: str, content: bytes, words: str
) -> None:
    source = Path(spec["experiments"][0]["figures"][0])
    for suffix in (".pdf", ".png", ".json"):
        shutil.copy(source.with_suffix(suffix), tmp_path / f"broken{suffix}")
    (tmp_path / f"broken{end}").write_bytes(content)
    entry = {**spec["experiments"][0], "figures": [str(tmp_path / "broken.pdf")]}
    report = build(ReportSpec.model_validate({**spec, "experiments": [entry]}))
    (problem,) = report.problems
    assert f"broken{end}" in problem
    assert words in problem
    assert problem in html.unescape(page(report))


def test_damaged_tables_and_fits_are_named(spec: dict[str, Any], tmp_path: Path) -> None:
    entry = dict(spec["experiments"][0])
    for end in ("", ".json", ".curves.csv"):
        shutil.copy(entry["table"] + end, tmp_path / f"t.csv{end}")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    (tmp_path / "f.json").write_text("{}")
    entry |= {"table": str(tmp_path / "t.csv"), "fits": [str(tmp_path / "f.json")]}
    said = " ".join(build(ReportSpec.model_validate({**spec, "experiments": [entry]})).problems)
    assert (
        "t.csv was changed, damaged or replaced since it was written: delete it and repeat the command"
        in said
    )
    assert (
        "f.json is damaged or of another version (no groups, spec): delete it and repeat the command" in said
    )


def test_without_a_browser_there_is_no_pdf_and_a_sentence(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older PDF must not pass for the new report's."""
    monkeypatch.setattr(sys.modules[print_pdf.__module__], "BROWSERS", ())
    (tmp_path / "r.pdf").write_text("old")
    args = [
        "report",
        "--spec",
        json.dumps(spec),
        "--out",
        str(tmp_path / "r.html"),
        "--pdf",
        str(tmp_path / "r.pdf"),
    ]
    assert main(args) == 0
    assert "no PDF: install Chromium or Chrome" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_prints_the_page(spec: dict[str, Any], tmp_path: Path) -> None:
    text = page(build(ReportSpec.model_validate(spec)), paper=True)
    assert "<script" not in text
    assert "<details>" not in text
    print_pdf(text, tmp_path / "r.pdf")
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")


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
        "--force-prefers-reduced-motion",  # else the puzzle plays
        "--dump-dom",
    ]
    command = [str(BROWSER), *flags, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "supervision step 1 of 8" in shown
    assert shown.count('<td class="') >= 12
    assert shown.count("<option") >= 4
