"""The report: every sentence of a small one; what is missing is said; one file that needs nothing else.

After a change of words that is meant: GOLDEN=write python -m pytest tests/analysis/test_report.py
"""

import html
import json
import re
import shutil
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests import shell
from tests.analysis.conftest import compare_with_golden, figure, inputs
from tests.browser import FLAGS, PATH
from trm.analysis.drawing import save, styled
from trm.analysis.fits.compare import MARGIN
from trm.analysis.kinds import draw
from trm.analysis.notebook import Picture
from trm.analysis.report import build, page
from trm.analysis.report.contents import Report
from trm.analysis.specs import ReportSpec
from trm.analysis.tables import Table
from trm.io import dump
from trm.study.records import sealed

EXPERIMENTS: dict[str, dict[str, Any]] = {
    "data_size": {
        "question": "How does the error fall with the number of unique training puzzles?",
        "hypothesis": "A power law.",
        "expects": [{"metric": "cross_entropy", "law": "data.train_puzzles"}],
        "figures": [{"kind": "law", "x": "data.train_puzzles", "y": "cross_entropy"}],
    },
    "inference": {
        "question": "Does a small model solve unseen puzzles, and how much of that is recursion?",
        "hypothesis": "From less than 5 % at the first supervision step to more than 80 % at the eighth.",
        "expects": [{"where": {"eval_steps": 1}, "below": 0.05}, {"where": {"eval_steps": 8}, "above": 0.8}],
        "figures": [{"kind": "steps"}, {"kind": "unroll"}],
    },
    "isoflop": {
        "question": "Where is training compute best spent, in width or in steps?",
        "hypothesis": "The best width grows as a power of compute between a tenth and a half.",
        "expects": [{"metric": "cross_entropy", "exponent": "model.d_model", "between": [0.1, 0.5]}],
        "figures": [{"kind": "isoflop"}],
    },
    "two_decades": {
        "question": "How does the error fall with training compute?",
        "hypothesis": "A power law.",
        "expects": [{"metric": "error", "law": "train_flops"}],
        "figures": [{"kind": "law", "x": "train_flops", "target": 0.8}],
    },
    "recursion": {
        "question": "What do more latent updates buy?",
        "hypothesis": "Accuracy rises with n and with T.",
        "expects": [{"where": {"model.l_cycles": 2}, "than": {"model.l_cycles": 1}}],
        "figures": [{"kind": "ablation", "x": "model.l_cycles"}],
    },
    "unroll": {
        "question": "What do more supervision steps buy at test time?",
        "hypothesis": "More than 10 points for every width.",
        "expects": [{"where": {"model.d_model": 64, "eval_steps": 8}, "than": {"model.d_model": 64, "eval_steps": 1}}],
        "figures": [{"kind": "unroll"}],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def spec(study: Path, tables: dict[str, Table], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report like the laptop's, with an experiment that never ran."""
    out = tmp_path_factory.mktemp("report")
    entries = []
    for name, fields in EXPERIMENTS.items():
        files: dict[str, list[str]] = {"fits": [], "figures": []}
        for wanted in (figure(**item) for item in fields["figures"]):
            given, fits = inputs(tables, name, wanted)
            path = out / f"{name}-{wanted.kind}.pdf"
            with styled():
                drawing = draw(wanted, given, fits)
                save(drawing, path)
            assert repr(Picture(drawing)) == drawing.sentence  # as a notebook says it
            files["figures"].append(str(path))
            for number, fit in enumerate(fits):
                (out / f"{name}-{number}.json").write_text(dump(sealed(fit)))
                files["fits"].append(str(out / f"{name}-{number}.json"))
        entry = {"table": f"{study}/tables/{name}.csv", "planned_hours": 0.05, "name": name}
        entries.append({**fields, **files, **entry, "rebuild": f"snakemake --profile profiles/local {name}"})
    lost = {"name": "maze", "question": "Mazes <too>?", "table": f"{out}/maze.csv", "planned_runs": 3}
    lost |= {"figures": [f"{out}/maze.pdf"]}
    lost |= {"failed": [{"run": "maze-1", "sentence": "loss is not finite at step 120"}]}
    report = {"study": "synthetic", "scale": "laptop", "intro": "The task is 4x4 Sudoku."}
    return report | {"experiments": [*entries, lost]}


@pytest.fixture(scope="module")
def report(spec: dict[str, Any]) -> Report:
    return built(spec)


def built(spec: dict[str, Any], **changes: Any) -> Report:
    """The report of a spec, of which some fields are changed."""
    return build(ReportSpec.model_validate(spec | changes))


def copied(spec: dict[str, Any], folder: Path) -> Path:
    """A copy of the first figure's files, to be changed."""
    path = Path(spec["experiments"][0]["figures"][0])
    for suffix in (".pdf", ".png", ".json"):
        shutil.copy(path.with_suffix(suffix), folder)
    return folder / path.name


def test_every_sentence_of_the_report_is_as_read(report: Report) -> None:
    """Of figures by themselves: test_sentences.py."""
    keys = ("scope", "findings", "limits")
    sections = {section.spec.name: [section.answer, section.verdict] for section in report.sections}
    said = {**{key: getattr(report, key) for key in keys}, "sections": sections}
    compare_with_golden(Path(__file__).with_name("report_words.json"), json.loads(dump(said)))


def test_the_report_needs_nothing_but_itself(report: Report) -> None:
    text = page(report)
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    wide = len(re.findall('class="drawn(?: wide)?"', text))
    assert wide == 8  # the first screen repeats the figure of the first finding, without its words
    narrow = text.count('class="drawn narrow"')
    assert text.count("data:image/svg+xml;base64,") == wide + narrow
    assert narrow > 0
    assert "Mazes &lt;too&gt;?" in text


def test_a_script_in_a_figure_or_a_text_never_runs(spec: dict[str, Any], tmp_path: Path) -> None:
    """A figure that somebody else wrote, with all its checksums right: it is a picture, and no other script may run."""
    entry, path = spec["experiments"][0], copied(spec, tmp_path)
    facts = json.loads(path.with_suffix(".json").read_text())
    for key in ("svg", "narrow"):
        facts[key] = f"<script>alert('{key}')</script>{facts[key]}"
    facts["caption"] = "<script>alert('caption')</script>"
    path.with_suffix(".json").write_text(json.dumps(sealed(facts)))
    text = page(built(spec, experiments=[entry | {"figures": [str(path)]}]))
    assert "alert('svg')" not in text
    assert "<script>alert" not in text
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    allowed = re.findall("sha256-([^&]*)&#39;", policy)
    scripts = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) > 1
    for script in scripts:
        assert b64encode(sha256(script.encode()).digest()).decode() in allowed
    assert policy.startswith("default-src &#39;none&#39;")


def test_what_is_missing_or_failed_stands_in_red(report: Report) -> None:
    said = " ".join(report.problems)
    failed = "run maze-1 failed: loss is not finite at step 120"
    for words in ("maze: no results", "figure maze.pdf is missing: build it again", failed):
        assert words in said
    assert "<details open><summary>3 problems" in page(report)
    assert "<details><summary>4 problems" in page(replace(report, problems=[*report.problems, "one more"]))


def test_sections_show_cost_and_provenance(report: Report) -> None:
    assert [row[0] for row in report.cost.rows][-1] == "all, each run once"
    assert report.cost.rows[0][-1] != "–"
    assert ("commits", "0123456789ab") in report.provenance
    section = report.sections[0]
    assert [len(grid.rows) for grid in section.grids] == [5, 5]
    assert section.spec.rebuild.endswith("data_size")


def test_the_first_screen_has_scope_findings_one_figure_and_limits(report: Report) -> None:
    text = page(report)
    parts = ('class="findings"', "<figure>", 'id="viewer"', "What this does not show")
    places = [text.index(part) for part in (*parts, "Experiments</h2>", "Cost</h2>")]
    assert places == sorted(places)
    assert report.hero is not None
    assert 1 <= len(report.findings) <= 3
    for finding in report.findings:
        assert len(re.sub(r" \[[^]]*\]", "", finding.text).split()) <= 20  # a number and its interval are one
    assert report.sections[-1].answer == "Not run."


def test_a_figure_of_the_whole_study_leads(spec: dict[str, Any]) -> None:
    whole = spec["experiments"][0]["figures"][0]
    report = built(spec, figures=[whole])
    assert report.hero is not None
    assert report.hero.path == Path(whole)
    assert report.figures == []


def test_noise_models_and_the_rule_for_laws_are_stated_once(report: Report) -> None:
    text = html.unescape(page(report))
    assert text.count("Student's 95 % interval over its seeds") == 1
    assert f"are worse by {MARGIN} in AICc" in text


def test_no_number_is_broken_from_its_unit_or_interval(report: Report) -> None:
    folded = r"<figcaption>.*?</figcaption>|<script.*?</script>|<ul.*?</ul>"
    cells = re.findall(r"<td[^>]*>(.*?)</td>", re.sub(folded, "", page(report), flags=re.S))
    assert any("\u00a0%" in cell for cell in cells)
    assert not [cell for cell in cells if re.search(r"\d %|\[[^\]]* [^\]]*\]", cell)]


DAMAGED = [
    (".png", b"\x89PNG\r\n\x1a\nbroken", "was changed, damaged or replaced since it was written: delete it"),
    (".json", b"{}", "is damaged or of another version (no name, sha256)"),
    (".json", b"{", "is not JSON"),
]


@pytest.mark.parametrize(("end", "content", "words"), DAMAGED)
def test_a_damaged_figure_is_named(
    spec: dict[str, Any], tmp_path: Path, end: str, content: bytes, words: str
) -> None:
    entry, broken = spec["experiments"][0], copied(spec, tmp_path)
    broken.with_suffix(end).write_bytes(content)
    report = built(spec, experiments=[entry | {"figures": [str(broken)]}])
    (problem,) = report.problems
    assert broken.with_suffix(end).name in problem
    assert words in problem
    assert problem in html.unescape(page(report))


def test_damaged_tables_and_fits_are_named(spec: dict[str, Any], tmp_path: Path) -> None:
    entry, table, fit = spec["experiments"][0], tmp_path / "t.csv", tmp_path / "f.json"
    for end in (".json", ".curves.csv"):
        shutil.copy(entry["table"] + end, f"{table}{end}")
    table.write_text("a,b\n1,2\n")
    fit.write_text("{}")
    said = " ".join(built(spec, experiments=[entry | {"table": str(table), "fits": [str(fit)]}]).problems)
    remedy = "delete it and repeat the command"
    assert f"t.csv was changed, damaged or replaced since it was written: {remedy}" in said
    assert f"f.json is damaged or of another version (no groups, spec): {remedy}" in said


@pytest.mark.skipif(PATH is None, reason="no Chromium here")
def test_a_browser_shows_the_page_and_its_viewer(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(report))
    # with motion the puzzle plays
    flags = (*FLAGS, "--virtual-time-budget=2000", "--force-prefers-reduced-motion", "--dump-dom")
    shown = shell.run(
        PATH, *flags, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri(), check=True
    ).stdout
    assert "supervision step 1 of 8" in shown
    assert shown.count('<td class="') >= 12
    assert shown.count("<option") >= 4
