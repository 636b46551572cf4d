"""The kept results can be drawn again from the repository alone."""

import json
import re
import shutil
from pathlib import Path

import pytest

from trm.analysis.drawing import save, words_of
from trm.analysis.kinds import FIGURE, fit_and_draw
from trm.analysis.stats import share
from trm.analysis.tables import load
from trm.errors import UserError
from trm.io import dump, write_text
from trm.results.quotes import misplaced, quoted, typed
from trm.results.redraw import redraw, texts
from trm.study.reading import parse

KEPT = Path(__file__).parents[2] / "docs" / "results"
NUMBER = re.compile(r"\d+\.?\d*(?:e[-+]\d+)?")


def is_same(kept: str, drawn: str) -> bool:
    """Equal, but for the last digits of numbers: processors add up in another order."""
    old, new = ([float(number) for number in NUMBER.findall(text)] for text in (kept, drawn))
    return NUMBER.sub("", kept) == NUMBER.sub("", drawn) and new == pytest.approx(old, rel=1e-9, abs=1e-12)


def test_every_kept_result_is_drawn(tmp_path, monkeypatch):
    """Every figure is drawn, and the first of each kind becomes files."""
    kinds = [
        (fields["kind"], name)
        for path in KEPT.rglob("figures.json")
        for name, fields in json.loads(path.read_text()).items()
    ]
    pictures = set(dict(reversed(kinds)).values())

    def write(drawing, target):
        if target.stem in pictures:
            save(drawing, target)
        else:
            write_text(target.with_suffix(".json"), dump(words_of(drawing)))

    monkeypatch.setattr("trm.results.redraw.save", write)
    drawn = redraw(KEPT, tmp_path)
    assert {path.stem for path in drawn} == {name for _, name in kinds}
    assert {path.stem for path in tmp_path.glob("*.pdf")} == pictures
    for name in pictures:
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    sentence = json.loads((tmp_path / "sudoku9_unroll_laptop.json").read_text())["sentence"]
    assert " points higher with " in sentence
    facts = {path.stem: json.loads(path.with_suffix(".json").read_text()) for path in drawn}
    stale = [str(path) for path, text in texts(KEPT, facts).items() if not is_same(path.read_text(), text)]
    assert not stale, "write them anew: python -m trm.results.redraw docs/results --out figures --write"


@pytest.mark.parametrize(
    "page", ["README.md", "CHANGELOG.md", "docs/results.md", "docs/limitations.md", "docs/results/*/note.md"]
)
def test_what_a_fit_gives_is_quoted_and_never_typed(page):
    """docs/predictions.md alone keeps outcomes as they were on their day."""
    for path in KEPT.parents[1].glob(page):
        prose = re.sub("```.*?```", "", path.read_text(), flags=re.DOTALL)
        assert typed(prose) == [], f"{path}: quote these intervals from their table"


def test_a_note_states_no_result_of_its_own():
    for path in KEPT.rglob("note.md"):
        for paragraph in re.sub("<!--= .*?<!--.-->", "", path.read_text(), flags=re.DOTALL).split("\n\n"):
            stated = re.search(r"\d %|\d\s+points", paragraph)
            elsewhere = "docs/predictions.md" in paragraph or "lab/2026-11.md" in paragraph
            assert not stated or elsewhere, f"{path}: quote {stated[0]} from the table"


def test_a_quote_is_a_mean_or_a_difference_with_its_interval():
    cells = "supervision_laptop exact_accuracy model.halt_max_steps=8 eval_steps"
    text = f"<!--= {cells}=16 bare -->?<!--.--> and\n<!--= {cells}=16 less\neval_steps=1 -->?<!--.-->"
    shown = re.sub("<!--.*?-->", "", quoted(text, KEPT), flags=re.DOTALL)
    assert shown == "86.6 % and\n+86.6 [84.3, 89.0] points"  # of the same training depth
    table, where = load(KEPT / "baseline_laptop" / "table.csv"), {"model.halt_max_steps": 4, "eval_steps": 32}
    low, high = share(table.by_seed(where, "exact_accuracy"), 1000).bounds  # as figures and reports have it
    text = "<!--= baseline_laptop exact_accuracy model.halt_max_steps=4 eval_steps=32 -->?<!--.-->"
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" in quoted(text, KEPT)
    wrong = {"baseline_laptop colour": "has no column colour", f"{cells}=33": "no row of supervision"}
    for place, words in wrong.items():
        with pytest.raises(UserError, match=words):
            quoted(f"<!--= {place} -->?<!--.-->", KEPT)


WIDTH = "isoflop_laptop finding figure=isoflop_laptop kind=optimum metric=model.d_model"


def test_a_quote_in_prose_is_a_link_to_its_evidence():
    text = f'Width grows as [?][=width], [?][=side].\n\n[=width]: a.md "{WIDTH}"\n[=side]: a.md "{WIDTH} verdict"\n'
    shown = quoted(text, KEPT)
    assert shown.startswith("Width grows as [0.52 [0.39, 0.65]][=width], [supported][=side].")
    assert quoted(shown, KEPT) == shown  # the interval's brackets lie within the link's
    assert quoted(f"| <!--= {WIDTH} bare -->?<!--.--> |", KEPT) == f"| <!--= {WIDTH} bare -->0.52<!--.--> |"
    assert quoted("    [1][=code]\n", KEPT) == "    [1][=code]\n"
    assert "measured after 32 test steps." in quoted(f"| <!--= {WIDTH} text -->?<!--.--> |", KEPT)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1][=a]", "quote [=a] is not defined"),
        ('[=a]: b.md "baseline_laptop finding"', "quote [=a] is defined, but not used"),
        ("| <!--= isoflop_laptop finding kind=power -->?<!--.--> |", "findings have kind=power, not one"),
        ("| <!--= isoflop_laptop finding kind=power colour=1 -->?<!--.--> |", "colour"),
        (f"| <!--= {WIDTH} twice -->?<!--.--> |", "'twice' is none of bare, verdict, text"),
        ("| <!--= nowhere finding kind=power -->?<!--.--> |", "does not exist"),
    ],
)
def test_a_quote_that_finds_nothing_is_refused(text, words):
    with pytest.raises(UserError, match=re.escape(words)):
        quoted(text, KEPT)


def test_typed_intervals_and_comments_that_begin_a_line_are_found():
    text = f"It is [0.5 [0.4, 0.6]][=a] and 0.7 [0.6, −0.8].\n<!--= {WIDTH} -->0.52 [0.47, 0.57]<!--.-->\n"
    assert typed(text) == ["[0.6, −0.8]"]
    assert [line[:9] for line in misplaced(text)] == ["<!--= iso"]


def test_a_page_shows_the_established_findings_of_a_figure_first_and_at_most_eight(tmp_path):
    kept = tmp_path / "docs/results"
    shutil.copytree(KEPT / "baseline_laptop", kept / "baseline_laptop")
    (tmp_path / "README.md").touch()
    made = [
        {"verdict": verdict, "text": f"{verdict} {number}.", "value": number}
        for number in range(5)
        for verdict in ("undecided", "supported")
    ]

    def written(findings):
        names = json.loads((kept / "baseline_laptop/figures.json").read_text())
        drawn = {name: {"title": "", "answer": "", "findings": []} for name in names}
        drawn["baseline_laptop"]["findings"] = findings
        found = texts(kept, drawn)
        return (found[kept / "baseline_laptop" / name] for name in ("README.md", "findings.csv"))

    page, table = written(made)
    shown = re.findall(r"^\| (undecided|supported) \| \1 (\d)\. \|$", page, re.MULTILINE)
    assert shown == [
        *(("supported", str(at)) for at in range(5)),
        *(("undecided", str(at)) for at in range(3)),
    ]
    assert "At most 8 findings a figure are shown; `findings.csv` has all." in page
    assert len(table.splitlines()) == 1 + len(made)
    assert "At most" not in next(written(made[:8]))


def test_a_panel_shows_the_best_choice_over_what_its_curves_have_in_common():
    panel = {"experiment": "depth9", "show": "best", "best": "effective_depth"}
    equal = parse(FIGURE, {"kind": "scaling_laws", "panels": [panel | {"equal": "model.halt_max_steps"}]}, "")
    assert equal.fits()[0].second == "model.halt_max_steps"
    assert parse(FIGURE, {"kind": "scaling_laws", "panels": [panel]}, "").fits()[0].second == "train_flops"
    axis = fit_and_draw(equal, "depth9", [load(KEPT / "depth9_laptop/table.csv")]).canvas.axes[0]
    assert axis.get_xlabel() == "Supervision steps Nsup"
    assert any(text.get_text().startswith("depth9: −") for text in axis.texts)


def test_kept_files_are_small():
    sizes = [path.stat().st_size for path in KEPT.rglob("*") if path.is_file()]
    runs = sum(len(json.loads(path.read_text())["runs"]) for path in KEPT.rglob("table.csv.json"))
    assert sum(sizes) < 2_850 * runs


def test_what_cannot_be_drawn(tmp_path):
    with pytest.raises(UserError, match=r"holds no figures\.json"):
        redraw(tmp_path, tmp_path / "out")
    folder = tmp_path / "kept"
    folder.mkdir()
    for source in (KEPT / "views_laptop").glob("table*"):
        (folder / source.name).write_bytes(source.read_bytes())
    (folder / "figures.json").write_text('{"wrong": {"kind": "curves", "metrix": "x"}}')
    with pytest.raises(UserError, match="metrix"):
        redraw(tmp_path, tmp_path / "out")
