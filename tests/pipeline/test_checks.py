"""What is refused before anything runs: settings, figures that nothing can draw, sizes that no pool can give."""

import re
import sys
from copy import deepcopy

import pytest
import yaml

from tests.pipeline.conftest import STUDY
from tests.shell import ROOT
from trm.cli import main
from trm.errors import UserError
from trm.launch.jobs import Jobs
from trm.pipeline.project import open_project, too_many
from trm.study.experiment import RULES
from trm.study.schema import DataConfig


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks a changed copy of the small study."""
    monkeypatch.chdir(ROOT)

    def run(change=lambda study: None, **config):
        study = deepcopy(STUDY)
        change(study)
        path = tmp_path / "experiments.yaml"
        path.write_text(yaml.safe_dump(study))
        project = open_project({"study": str(path), **config})
        project.check_figures()
        project.check_sizes()
        return project

    return run


def batch(**fields):
    """Changes the experiment `batch`."""
    return lambda study: study["experiments"]["batch"].update(fields)


def figure(**spec):
    return batch(figures=[spec])


def tried(**where):
    """A figure of evaluations with two restarts."""
    return batch(evaluation={"restarts": [2]}, figures=[{"kind": "curves", "where": where}])


ARC = {"data": {"task": "arc", "source": "generate", "arc_side": 6}}
MAZE = {"data": {"task": "maze", "source": "generate", "maze_size": 9, "min_path": 9}}
THREE = ("model.d_model", "training.steps", "data.train_puzzles")
PAIR = {"model.d_model": [16, 24], "data.train_puzzles": [10, 15]}
GUESSES = {"view_steps": 2, "view_guesses": 2}


def axes(*names, **spec):
    """A figure over a grid of three values of each of these keys."""
    values = {"model.d_model": [16, 24, 32], "training.steps": [4, 6, 8], "data.train_puzzles": [10, 15, 20]}
    return batch(grid={"product": {name: values[name] for name in names}}, figures=[spec])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (figure(kind="curves", metric="eval/exact_acuracy"),
         "figure batch: unknown metric 'eval/exact_acuracy'; did you mean 'eval/exact_accuracy'?"),
        (figure(kind="agreement", metrics=["train/los"]),
         "unknown metric 'train/los'; did you mean 'train/loss'?"),
        (figure(kind="ablation", x="training.batch_size", baseline=5),
         "figure batch: no point has the baseline 5; training.batch_size is 4, 8"),
        (figure(kind="ablation", x="label", baseline="batch_size=16"),
         "no point has the baseline 'batch_size=16'; did you mean 'batch_size="),
        (batch(seeds=[True]), "experiments.batch.seeds.0: must be a whole number, not True"),
        (figure(kind="heatmap", x="training.lr", y="training.optimizer", optimum=True),
         "figure batch: training.optimizer is not a number: no law or optimum can be fitted over it"),
        (figure(kind="law", x="data.train_puzzles"),
         "figure batch: every point has data.train_puzzles=20: add values of data.train_puzzles to the grid"),
        (batch(grid={"product": {"model.d_model": [16, 32]}}, figures=[{"kind": "batch"}]),
         "figure batch: every point has training.batch_size=8: add values of training.batch_size to the grid"),
        (figure(kind="heatmap", x="training.batch_size", y="training.lr"), "every point has training.lr=0.0001"),
        (figure(kind="ablation", x="model.mixer"), "every point has model.mixer=mlp: add values of model.mixer"),
        (figure(kind="isoflop", best="model.layers"), "every point has model.layers="),
        (figure(kind="isoflop", best="training.batch_size", equal="model.d_model"), "every point has model.d_model="),
        (figure(kind="isoflop", equal="model.d_modle"), "'model.d_modle'; did you mean 'model.d_model'?"),
        (axes(*THREE, kind="law", x="data.train_puzzles"),
         "figure batch: model.d_model and training.steps differ at equal data.train_puzzles, and one law would average "
         "these runs: set `hue` to one of them, and a value of every other by `where`"),
        (axes(*THREE, kind="law", x="data.train_puzzles", hue="model.d_model"),
         "training.steps differs at equal data.train_puzzles and model.d_model, and one law would average these runs: "
         "give a value by `where`"),
        (batch(grid=[{"product": PAIR}, {"product": PAIR, "set": {"training.lr": 1e-5}}],
               figures=[{"kind": "law", "x": "data.train_puzzles", "hue": "model.d_model"}]),
         "training.lr differs at equal data.train_puzzles and model.d_model"),
        (axes("model.d_model", "training.steps", kind="isoflop"),
         "figure batch: a parabola needs 4 values of model.d_model at one value of train_flops, and the grid has 2 at "
         "most: add some, or draw another kind of figure"),
        (axes("model.d_model", "training.steps", kind="isoflop", equal="training.steps"),
         "4 values of model.d_model at one value of training.steps, and the grid has 3 at most"),
        (figure(kind="curves", where={"training.batch_size": 16}),
         "figure batch: where: no point has training.batch_size=16; training.batch_size is 4, 8"),
        (figure(kind="curves", where={"label": "batch_sise=4"}),
         "no point has label=batch_sise=4; did you mean 'batch_size=4'?; label is batch_size=4, batch_size=8"),
        (figure(kind="curves", where={"eval_steps": 64}), "no point has eval_steps=64; eval_steps is 2"),
        (figure(kind="curves", where={"policy": "fixd"}),
         "no point has policy=fixd; did you mean 'fixed'?; policy is fixed"),
        (figure(kind="curves", where={"split": "validation"}), "no point has split=validation; split is test, train"),
        (figure(kind="curves", where={"series": "lr"}), "no point has series=lr; series is empty"),
        (tried(restarts=4), "no point has restarts=4; restarts is 1, 2"),
        (tried(restarts=2), "no result has split=test, policy=fixed and restarts=2: name the policy"),
        (tried(restarts=2, policy="fixed"), "no point has policy=fixed and restarts=2 together: remove one of them"),
        (axes("model.d_model", kind="curves", where={"label": "d_model=16", "model.d_model": 24}),
         "where: no point has label=d_model=16 and model.d_model=24 together: remove one of them"),
        (figure(kind="bins", by="rating"),
         "figure batch: the test puzzles of sudoku with these settings do not differ in rating: write `by: clues`"),
        (batch(set=ARC, figures=[{"kind": "bins"}]), "puzzles of arc with these settings do not differ in clues: rem"),
        (figure(kind="votes"), "a figure of kind votes needs data.task=arc: remove it"),
        (figure(kind="restarts"), "a figure of kind restarts needs evaluation.restarts: set it"),
        (batch(figures=[{"kind": "unroll"}]), "a figure of kind unroll needs evaluation.unroll: set it"),
        (figure(kind="law", x="label"), "label is not a number"),
        (figure(kind="law", x="training.batch_size", fit="aut"),
         "experiment batch: figures (law): fit: must be 'auto', 'constant', 'power_law', 'power_law_floor', "
         "'exponential' or 'sigmoid', not 'aut'"),
        (figure(kind="curves", name="Data_size"), "batch and data_size both have a figure named data_size"),
        (figure(kind="steps", name="my-steps"),
         "experiment batch: figures (my-steps): name: 'my-steps': names consist of letters, digits and _"),
        (batch(expects=[{"law": "parameter"}]),
         "experiment batch: expects: law: unknown column 'parameter'; did you mean 'parameters'?"),
        (batch(set={"data.train_puzzles": 3000}),
         "experiment batch, point batch_size=4: sudoku of this size and kind, up to symmetry, has 2,236 puzzles, "
         "not 3,024"),
        (batch(set={"training.snapshots": 2}, evaluation={"weights": "average", "average": 3}),
         "point batch_size=4: evaluation.average=3 must be at least 1 and at most training.snapshots=2"),
        (batch(set=ARC, evaluation={"restarts": [2]}),
         "point batch_size=4: arc has no symmetries for restarts and views: give evaluation.start_noise or step_noise, "
         "or no evaluation.restarts, and no evaluation.view_steps"),
        (batch(set=ARC, evaluation={"view_steps": 2}),
         "point batch_size=4: arc has no symmetries for restarts and views"),
        (batch(set=MAZE, evaluation=GUESSES),
         "point batch_size=4: maze has no blank cells that a view can show filled"),
        (batch(evaluation=GUESSES),
         "point batch_size=4: evaluation.view_guesses=2 changes nothing: the first guess comes after step 18"),
        (batch(set={"data.pool": 30}), "for testing): raise it, or lower the numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_or_cut_is_refused(check, change, said):
    check()
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        check(change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        axes("model.d_model", "data.train_puzzles", kind="law", x="data.train_puzzles"),
        axes(*THREE, kind="law", x="parameters"),
        axes(THREE[0], kind="curves", where={THREE[0]: 24, "eval_steps": 2, "seed": 1, "policy": "fixed"}),
        axes(*THREE, kind="law", x="data.train_puzzles", hue="model.d_model", where={"training.steps": 4}),
        tried(policy="oracle", restarts=2),
        batch(set=MAZE, figures=[{"kind": "bins", "by": "rating"}]),
    ],
)
def test_figures_of_several_axes_and_of_known_values_pass(check, change):
    check(change)


def test_sizes_of_known_pools():
    from trm.tasks.sudoku.classes import classes_4x4
    from trm.tasks.sudoku.spec import CLASSES_4X4

    found = {clues: len(classes_4x4(clues, clues)[0]) for clues in CLASSES_4X4}
    assert found == CLASSES_4X4
    maze = DataConfig(task="maze", augmentations=7)
    assert "1,000 puzzles for training and validation, not 1,000 + 2,048" in too_many(maze)
    assert not too_many(maze.model_copy(update={"train_puzzles": 900, "validation_puzzles": 100}))
    assert "422,786 test puzzles" in too_many(DataConfig(test_puzzles=10**6))


TEXT = "--config set: Snakemake reads the numbers of a mapping as text: write set='training.steps=3'"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"experimets": "batch"}, "--config experimets: unknown key; did you mean 'experiments'?"),
        ({"budget_hours": "x"}, "--config budget_hours: must be a number, not 'x'"),
        *(({"budget_hours": value}, "budget_hours: must be above 0") for value in ("-1", "0")),
        *(({"budget_hours": v}, "budget_hours: input should be a finite number") for v in ("nan", "inf")),
        *(({"set": value}, TEXT) for value in ({"training.steps": "3"}, {"training": {"steps": "3"}})),
        ({"experiments": "bach"}, "has no experiment 'bach'"),
    ],
)
def test_settings_are_checked(check, config, said):
    with pytest.raises(UserError, match=re.escape(said)):
        check(**config)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("data_sise", "has no experiment 'data_sise'; did you mean 'data_size'?"),
        ("results/plots/data_sise.pdf", "has no figure 'data_sise'; did you mean 'data_size'?"),
        ("results/datasets/NAME/test/labels.npy", "has no data set 'NAME'"),
        ("gs://bucket/results/runs/NAME/training.json", "has no run or evaluation 'NAME'"),
    ],
)
def test_what_the_study_cannot_make_is_refused(target, said, monkeypatch):
    monkeypatch.chdir(ROOT)
    project = open_project({})
    known = (*project.runs, *project.study.evaluations)
    project.check_targets(
        ["data_size", "results/report.html", "README.md", *map("results/runs/{}".format, known)]
    )
    with pytest.raises(UserError, match=re.escape(said)):
        project.check_targets([target])


def test_a_value_that_snakemake_cuts_is_refused(check, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["snakemake", "--config", "sudoku_csv='/x/a #1.csv'"])
    with pytest.raises(
        UserError, match="--config sudoku_csv: Snakemake reads only '/x/a', as a comment begins"
    ):
        check(sudoku_csv="/x/a")


def test_a_panel_of_no_experiment_is_refused_unless_it_is_inherited(check):
    def misspelt(study):
        study["figures"][0]["panels"][0]["experiment"] = "data_sise"

    with pytest.raises(UserError, match="no experiment 'data_sise'; did you mean 'data_size'"):
        check(misspelt)
    config = {"experiments": "isoflop", "sudoku_csv": f"gs://bucket/file#sha256={64 * '0'}"}
    project = open_project({"study": "config/workstation.yaml", **config})
    assert project.selection.figures["scaling_laws"].experiments == ("isoflop",)


def test_each_panel_of_the_main_figure_is_a_target_of_its_own():
    selection = open_project({"experiments": "report", "study": "config/laptop.yaml"}).selection
    panels = {stem: selection.figures[stem] for stem in selection.figures if stem.startswith("scaling_laws_")}
    assert [figure.experiments for figure in panels.values()] == [("isoflop",)] * 2 + [
        ("supervision_compute",),
        ("restarts",),
    ]
    assert [*panels] == [f"scaling_laws_{letter}" for letter in "abcd"]
    assert not {*panels} & {figure.stem for figure in selection.shown}  # the report shows the whole
    assert not [one for figure in panels.values() for one in figure.spec.alone()]


def test_an_experiment_that_needs_a_file_says_which(monkeypatch, capsys, caplog):
    monkeypatch.chdir(ROOT)
    sentence = "real_sudoku is not run: needs --config sudoku_csv=PATH"
    with pytest.raises(UserError, match=sentence):
        open_project({"experiments": "real_sudoku"})
    project = open_project({"experiments": "*"})
    assert "real_sudoku" not in project.selection.experiments
    with pytest.raises(SystemExit):
        Jobs(project).target("real_sudoku")
    assert sentence in caplog.text
    main(["study", "show", "arc"])
    assert "not run: needs --config arc_files=PATH" in capsys.readouterr().out


def test_names_of_rules_are_known_and_each_rule_with_a_command_has_its_own_limits():
    files = [ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk")]
    text = "".join(path.read_text() for path in files)
    _, *rules = re.split(r"^ *rule (?=\w+:)", text, flags=re.MULTILINE)
    names = {rule.partition(":")[0]: rule for rule in rules}
    assert names.keys() <= RULES
    commands = {name for name, rule in names.items() if "shell:" in rule}
    assert commands == {name for name, rule in names.items() if f'**study.resources("{name}"),' in rule}
    jobs = Jobs(open_project({"study": "config/laptop.yaml"}))
    limits = [{"runtime", "mem_mb"} <= jobs.resources(name).keys() for name in commands]
    assert limits == [True] * 9
