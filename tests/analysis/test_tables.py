"""Result files -> tidy tables."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.analysis.conftest import figure
from tests.analysis.synthetic import experiment, measured
from trm.analysis.axes import is_value, text_of
from trm.analysis.drawing import finish
from trm.analysis.kinds.common import Drawing, canvas
from trm.analysis.specs import TableSpec
from trm.analysis.tables import Table, collect, load, merge, save
from trm.analysis.tables.collect import _finished_rows, first_reach
from trm.errors import UserError
from trm.results.archive import KEPT_IF_DRAWN, keep
from trm.study.schema import EvaluationConfig


def small(root: Path, **options: object) -> TableSpec:
    points = [{"data.train_puzzles": 100}, {"data.train_puzzles": 300}]
    return TableSpec.model_validate(experiment(root, "data_size", points, seeds=2, **options))


def file_of(spec: TableSpec, end: str) -> Path:
    """A file of the first run."""
    run = spec.points[0].runs[0]
    return Path(run.directory) / (run.evaluations[0] if end == "evaluation" else end)


def test_one_primary_row_a_run_with_derived_columns(tables: dict[str, Table]) -> None:
    rows = tables["recursion"].select()
    assert len(rows) == rows["run"].nunique() == 12
    one = rows[(rows["model.h_cycles"] == 2) & (rows["model.l_cycles"] == 1)].iloc[0]
    assert one["effective_depth"] == 2 * (1 + 1) * 2
    assert one["error"] == pytest.approx(1 - one["correct"] / one["puzzles"])
    assert one["train_test_gap"] == pytest.approx(100 * (one["train_exact_accuracy"] - one["exact_accuracy"]))
    assert one["policy"] == "fixed"
    assert one["eval_steps"] == one["model.halt_max_steps"]


def test_what_is_compared_does_not_move_the_ruler(tmp_path: Path) -> None:
    """Runs trained with 4 and with 16 supervision steps are measured after one number; without one, each at its own."""
    points = [{"model.halt_max_steps": 4}, {"model.halt_max_steps": 16}]
    unrolled = EvaluationConfig(unroll=(1, 4, 16, 32))
    entry = experiment(tmp_path, "supervision", points, seeds=2, evaluations=[unrolled])
    for wanted, steps in ((None, 32), (4, 4)):
        table = collect(TableSpec.model_validate({**entry, "test_steps": wanted}))
        rows = table.select()
        assert (set(rows["eval_steps"]), len(rows), table.info["test_steps"]) == ({steps}, 4, steps)
        assert set(rows["model.halt_max_steps"]) == {4, 16}
    with pytest.raises(UserError, match="test_steps: 64 is not measured by every evaluation"):
        collect(TableSpec.model_validate({**entry, "test_steps": 64}))
    own = collect(TableSpec.model_validate(experiment(tmp_path, "own", points, seeds=2)))
    assert own.info["test_steps"] is None
    assert (own.select()["eval_steps"] == own.select()["model.halt_max_steps"]).all()


def test_epochs_count_puzzles_that_halted_not_rows_offered(tables: dict[str, Table]) -> None:
    """Each step offers a row again until it halts; 1,200 steps of 64 rows are 15 passes over 1,000 puzzles, not 77."""
    history = pd.DataFrame({"step": [600, 1200], "rows": [38400, 76800], "train/steps": [6.0, 4.0]})
    assert _finished_rows(history) == pytest.approx(38400 / 6 + 38400 / 4)
    assert _finished_rows(history.assign(**{"train/finished": [10.0, 15.0]})) == 600 * 10 + 600 * 15
    row = tables["data_size"].select().iloc[0]
    assert 0 < row["epochs"] < row["training_rows"] / row["data.train_puzzles"]


def test_copies_of_a_maze_beyond_the_symmetries_of_the_square_are_not_distinct(tmp_path: Path) -> None:
    points = [{"data.task": "maze", "data.augmentations": copies} for copies in (0, 7, 50)]
    rows = collect(TableSpec.model_validate(experiment(tmp_path, "mazes", points, seeds=1))).select()
    assert (rows["distinct_rows"] / rows["data.train_puzzles"]).tolist() == [1, 8, 8]


def test_selection_follows_what_is_asked_for(tables: dict[str, Table]) -> None:
    assert set(tables["ema"].select(columns=["evaluation.weights"])["evaluation.weights"]) == {"ema", "raw"}
    fixed = tables["ema"].select({"policy": "fixed"}, ["evaluation.weights"])
    assert set(fixed["evaluation.weights"]) == {"ema", "raw"}
    assert len(tables["ema"].select({"training.ema": 0.99, "training.batch_size": 512})) == 3
    restarts = tables["inference"].select({"policy": "restarts"})
    assert sorted(restarts["restarts"].unique()) == [2, 4]
    assert len(tables["inference"].select(columns=["flops_per_puzzle"])) == 3 * 5
    with pytest.raises(UserError, match=r"no column model\.colour"):
        tables["ema"].select({"model.colour": 1})


HELD = [
    ([0.1 + 0.2, 0.3001], 0.3, [0]), (["64", "x"], 64, [0]), (["", None, "a"], None, [0, 1]), ([(), "a"], None, [0]),
    ([1.0, float("nan")], None, [1]), ([True, False], True, [0]), (["[1,2]", "[1, 2]"], [1, 2], [0]),
]  # fmt: skip


@pytest.mark.parametrize(("cells", "wanted", "held"), HELD)
def test_a_value_is_found_among_cells_and_in_a_column(cells: list, wanted: object, held: list[int]) -> None:
    assert [at for at, cell in enumerate(cells) if is_value(text_of(cell), wanted)] == held
    table = measured([({"note": text_of(cell)}, {0: 0.5}) for cell in cells])
    assert list(table.select({"note": wanted})["point"]) == held


def test_saved_tables_are_read_back_and_written_the_same(tmp_path: Path) -> None:
    table = collect(small(tmp_path))
    save(table, tmp_path / "a.csv")
    again, columns = load(tmp_path / "a.csv"), ["error", "label", "primary"]
    pd.testing.assert_frame_equal(table.rows[columns], again.rows[columns], check_dtype=False)
    save(again, tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert json.loads((tmp_path / "a.csv.json").read_text())["fingerprint"] == again.info["fingerprint"]


def test_missing_files_stop_the_table_or_are_listed(tmp_path: Path) -> None:
    spec = small(tmp_path)
    lost, late = spec.points[0].runs[0], spec.points[1].runs[1]
    shutil.rmtree(lost.directory)
    (Path(late.directory) / late.evaluations[0]).unlink()
    with pytest.raises(UserError, match="does not exist.*--allow-missing"):
        collect(spec)
    table = collect(spec, allow_missing=True)
    assert {item["run"] for item in table.info["missing"]} == {lost.run, late.run}
    assert table.rows["run"].nunique() == 2
    for point in spec.points:
        for run in point.runs:
            shutil.rmtree(run.directory, ignore_errors=True)
    with pytest.raises(UserError, match="no finished run"):
        collect(spec, allow_missing=True)


def test_a_run_that_two_experiments_share_counts_once(tables: dict[str, Table]) -> None:
    both = merge([tables["data_size"], tables["augmentation"]])
    shared = set(tables["data_size"].rows["run"]) & set(tables["augmentation"].rows["run"])
    assert len(shared) == 3
    assert len(both.select()) == 15 + 15 - 3


def test_infinite_losses_are_seen_in_a_history_of_many_columns(tmp_path: Path) -> None:
    spec = small(tmp_path)
    history = pd.read_csv(path := file_of(spec, "history.csv"))
    history = history.reindex(columns=[*history, *(f"train/halt_share/{k}" for k in range(1, 129))])
    history.loc[len(history) - 1, "train/loss"] = float("nan")
    history.to_csv(path, index=False)
    broken = [key for key, run in collect(spec).info["runs"].items() if run["broken"]]
    assert broken == [spec.points[0].runs[0].run]


def test_where_a_curve_first_reaches_a_target() -> None:
    history = pd.DataFrame({"step": [10, 20, 30, 40], "eval/exact_accuracy": [0.2, None, 0.6, 0.9]})
    assert first_reach(history, 0.4, "step") == pytest.approx(20.0)
    assert first_reach(history, 0.1, "step") == 10.0
    assert first_reach(history, 0.95, "step") is None
    assert first_reach(history[["step"]], 0.4, "step") is None


NO_POLICY = '{"evaluation": {}, "config": {}, "results": [{"split": "test"}]}'


@pytest.mark.parametrize(
    ("end", "text", "words"),
    [
        ("evaluation", "{}", "no config, evaluation, results"),
        ("evaluation", '{"evaluation": {}, "config": {}, "results": []}', "not complete"),
        ("evaluation", NO_POLICY, "not complete"),
        ("history.csv", "", "No columns"),
        ("history.csv", "step,rows\n1,2\n", "no rising steps"),
        ("history.csv", "step,rows,seconds\n1,2,x\n", "no rising steps"),
        ("history.csv", "step,rows,seconds\n2,2,1\n1,2,1\n", "no rising steps"),
        ("history.csv", "step,rows,seconds\n", "no rising steps"),
        ("training.json", "[]", "no entries"),
        ("training.json", "{}", "belongs to something else"),
        ("training.json", "{", "is not JSON"),
    ],
)
def test_damaged_files_are_named_with_the_remedy(tmp_path: Path, end: str, text: str, words: str) -> None:
    spec = small(tmp_path)
    path = file_of(spec, end)
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        collect(spec)
    for said in (str(path.parent), words, "delete"):
        assert said in str(raised.value)
    table = collect(spec, allow_missing=True)
    assert [item["why"] for item in table.info["missing"]] == [str(raised.value)]
    assert table.rows["run"].nunique() == 3


def test_formulas_are_neutralised_and_read_back(tmp_path: Path) -> None:
    names = ["=HYPERLINK(1)", "+1+1", "-2", "@SUM(1)", "'quoted", "plain"]
    table = collect(small(tmp_path))
    table.rows = table.rows.iloc[: len(names)]
    table.rows = table.rows.assign(label=names[: len(table.rows)])
    save(table, tmp_path / "t.csv")
    cells = pd.read_csv(tmp_path / "t.csv")["label"]
    assert not cells.str.startswith(("=", "+", "-", "@")).any()
    assert load(tmp_path / "t.csv").rows["label"].tolist() == table.rows["label"].tolist()


@pytest.mark.parametrize(
    ("figure", "histories"),
    [
        ({"kind": "curves"}, True),
        ({"kind": "ablation", "x": "data.train_puzzles"}, False),
        ({"kind": "ablation", "x": "data.train_puzzles", "y": "loss_variance"}, False),
    ],
)
def test_kept_tables_hold_what_their_figures_read(
    study: Path, tables: dict[str, Table], tmp_path: Path, figure: dict[str, str], histories: bool
) -> None:
    path, specs = str(study / "tables/data_size.csv"), {"data_size": {"data_size_laptop": figure}}
    (folder,) = keep({"data_size": path}, specs, str(tmp_path), "laptop")
    assert folder.name == "data_size_laptop"
    assert json.loads((folder / "figures.json").read_text()) == specs["data_size"]
    kept, whole = load(folder / "table.csv"), tables["data_size"]
    unread = [name for name in whole.rows if name.startswith(KEPT_IF_DRAWN) and name != figure.get("y")]
    assert "loss_variance" in whole.rows
    assert not set(unread) & set(kept.rows)
    read = whole.rows.drop(columns=unread)
    pd.testing.assert_frame_equal(kept.rows[list(read)], read, rtol=1e-9, check_dtype=False)
    assert "model.d_model" not in (folder / "table.csv").read_text()  # held once, in the sidecar
    assert (folder / "table.csv.json").read_text().count('"outcome"') == 1
    losses = kept.rows["cross_entropy"]
    assert losses.equals(losses.map(lambda loss: float(f"{loss:.10g}")))
    assert bool(len(kept.curves)) == bool(kept.info["guess"]) == histories
    shown = ["eval/exact_accuracy"] * histories
    assert list(kept.curves) == ["run", "step", "rows", "flops", *shown]
    assert kept.curves[shown].notna().all(axis=None)
    assert whole.info["halting"] != kept.info["halting"] == {}
    assert kept.info["runs"] == whole.info["runs"]
    whole = load(Path(path))
    next(iter(whole.info["runs"].values()))["dirty"] = True
    save(whole, tmp_path / "dirty.csv")
    changed = {"data_size": str(tmp_path / "dirty.csv")}, specs, str(tmp_path / "again"), "laptop"
    with pytest.raises(UserError, match=r"1 of \d+ runs are of code with local changes"):
        keep(*changed)
    assert keep(*changed, dirty=True)
    with pytest.raises(UserError, match=r"nowhere\.csv"):
        keep({"ema": str(tmp_path / "nowhere.csv")}, {"ema": {}}, str(tmp_path), "laptop")


def read_at(name: str, ruler: int, sizes: tuple[int, ...]) -> Table:
    """Runs that were all measured after 8 and 64 steps, and are read at `ruler`."""
    points = [
        ({"data.train_puzzles": n, "eval_steps": at, "run": f"{n}"}, {0: 0.1 + at / 100})
        for n in sizes
        for at in (8, 64)
    ]
    table = measured(points, experiment=name)
    table.rows["point"] = table.rows["point"] // 2
    table.rows["primary"] = table.rows["main"] = table.rows["eval_steps"] == ruler
    table.info |= {"experiment": name, "test_steps": ruler}
    return table


@pytest.mark.parametrize(("rulers", "steps"), [((8, 64), 64), ((64, 8), 64), ((8, 8), 8)])
def test_experiments_that_are_read_together_have_one_ruler(rulers: tuple[int, int], steps: int) -> None:
    first, second = (
        read_at(name, ruler, sizes) for name, ruler, sizes in zip("ab", rulers, ((1, 2), (2, 4)))
    )
    both = merge([first, second])
    rows = both.select()
    assert (both.info["test_steps"], set(rows["eval_steps"]), len(rows)) == (steps, {steps}, 3)
    assert set(rows["exact_accuracy"]) == {0.1 + steps / 100}


def test_experiments_without_a_common_ruler_say_so() -> None:
    first, second = (read_at(name, ruler, (n,)) for name, ruler, n in (("a", 8, 1), ("b", 64, 2)))
    for table, ruler in ((first, 8), (second, 64)):
        table.rows = table.rows[table.rows["eval_steps"] == ruler].assign(**{"model.halt_max_steps": ruler})
    both = merge([first, second])
    assert both.info["test_steps"] is None
    drawing = Drawing(canvas(4.6, 2.0)[0], both.select(), "title", "Caption.")
    assert (
        "as many supervision steps as each had in training"
        in finish(drawing, figure(kind="halting"), [first, second]).caption
    )
