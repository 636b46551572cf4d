"""From the study's file to points and runs; and the sentences for what is wrong in it."""

import re

import pytest

from trm.errors import UserError
from trm.study.dataset_identity import shape
from trm.study.flops import train_flops
from trm.study.grid import load_study
from trm.study.reading import parse_yaml


def test_points_seeds_and_shared_runs(study, study_file):
    study["experiments"]["again"] = {"question": "Same?", "grid": {"product": {"model.d_model": [64, 128]}}}
    loaded = load_study(study_file(study), "small")
    width, again = (loaded.experiment(name).points for name in ("width", "again"))
    assert [point.label for point in width] == ["d_model=32", "d_model=64"]
    assert [len(point.runs) for point in width] == [2, 2]
    assert width[1].runs == again[0].runs
    assert len(loaded.runs) == 4 + 2 + 4


def test_product_times_zip_times_points(points):
    grid = {
        "set": {"training.steps": 10},
        "product": {"model.d_model": [32, 64]},
        "zip": {"model.h_cycles": [1, 2], "model.l_cycles": [2, 1]},
        "points": [{"label": "AdamW", "training.optimizer": "adamw"}, {"training.optimizer": "lion"}],
    }
    found = points(grid, "width")
    assert len(found) == 2 * 2 * 2
    config = found[0].runs[0].config
    assert (config.model.h_cycles, config.model.l_cycles, config.training.steps) == (1, 2, 10)
    labels = [f"d_model=32, h_cycles=1, l_cycles=2, {name}" for name in ("AdamW", "optimizer=lion")]
    assert [point.label for point in found[:2]] == labels


def test_rows_and_epochs_become_steps_and_equal_points_collapse(points):
    epochs = {"set": {"training.epochs": 0.768 * 10}, "points": [{"data.train_puzzles": 1000}]}
    rows, steps = {"product": {"training.rows": [7680]}}, {"points": [{"training.steps": 10}]}
    (point,) = points([rows, epochs, steps])
    assert point.runs[0].config.training.steps == 10


@pytest.mark.parametrize(
    ("rule", "axis", "expected"),
    [
        ({"batch_size": [256, 1]}, {"training.batch_size": [256, 1024]}, [4e-3, 1.6e-2]),
        ({"batch_size": [256, 0.5]}, {"training.batch_size": [256, 512]}, [4e-3, 0.00565685424949]),
        ({"d_model": [32, -1]}, {"model.d_model": [16, 32, 128]}, [8e-3, 4e-3, 1e-3]),
        ({"layers": [1, -0.8]}, {"model.layers": [1, 2, 4]}, [4e-3, 2.3e-3, 1.3e-3]),
        ({"halt_max_steps": [16, -0.5]}, {"model.halt_max_steps": [2, 16]}, [1.1e-2, 4e-3]),
        ({"l_cycles": [2, -1], "d_model": [64, -1]}, {"model.l_cycles": [1, 2]}, [8e-3, 4e-3]),
    ],
)
def test_a_rule_of_the_learning_rate_is_multiplied_in(points, rule, axis, expected):
    found = points({"set": {"training.lr_rule": rule, "training.lr": 4e-3}, "product": axis}, scale=None)
    assert [point.runs[0].config.training.lr for point in found] == expected


def test_equal_flops_are_steps_by_width_and_the_rule_follows_both(points):
    budget, widths = 2e13, [16, 32, 128]
    rule = {"training.lr": 4e-3, "training.lr_rule": {"d_model": [32, -1], "steps": [100, -0.5]}}
    grid = {"set": rule, "product": {"training.flops": [budget], "model.d_model": widths}}
    for point, width in zip(points(grid), widths, strict=True):
        config = point.runs[0].config
        sizes = shape(config.data)
        used = train_flops(config.model, config.training, sizes.seq_len, sizes.vocab_size)
        assert budget * (1 - 1 / config.training.steps) < used <= budget
        expected = 4e-3 * (width / 32) ** -1 * (config.training.steps / 100) ** -0.5
        assert config.training.lr == pytest.approx(expected, rel=0.06)


def test_a_learning_rate_replaces_the_rule_below_it(study, points):
    study["base"]["training"] = {"lr_rule": {"d_model": [1, -1]}}
    found = points({"product": {"training.lr": [1e-3, 2e-3]}})
    assert [point.runs[0].config.training.lr for point in found] == [1e-3, 2e-3]


def test_a_grid_for_one_scale_is_left_out_at_another(study, study_file):
    study["scales"]["pod"] = {"seeds": [7]}
    study["experiments"]["width"]["grid"] = [
        {"product": {"model.d_model": [32]}},
        {"scale": "pod", "product": {"model.d_model": [64]}},
    ]
    study["experiments"]["rows"]["grid"] = {"scale": "small", "points": [{"training.steps": 5}]}
    here, there = (load_study(study_file(study), scale) for scale in ("small", "pod"))
    assert len(here.experiment("width").points) == 1
    assert here.experiment("width").left_out == ("at scale pod only for: d_model=64",)
    assert [run.config.seed for point in there.experiment("width").points for run in point.runs] == [7, 7]
    assert there.experiment("rows").skip == "at scale small only for: steps=5"
    assert there.selected("study") == ["width"]


def test_extends_shares_words_and_figures_and_never_a_grid(study, study_file):
    study["phases"] = ["laws"]
    words = {"phase": "laws", "hypothesis": "It does.", "expects": [{"law": "model.d_model"}]}
    study["experiments"]["width"] |= words | {"figures": [{"kind": "curves"}], "seeds": [5]}
    study_file(study)
    own = {"name": "small", "extends": "experiments.yaml", "scales": {"laptop": {}}}
    own["experiments"] = {"width": {"grid": {"product": {"training.steps": [10, 20]}}}, "rows": {}}
    loaded = load_study(study_file(own, "laptop.yaml"))
    width = loaded.experiment("width")
    found = width.definition
    assert (found.question, found.phase, found.seeds) == ("Does width matter?", "laws", None)
    assert found.expects == [{"law": "model.d_model"}]
    assert found.figures == study["experiments"]["width"]["figures"]
    assert [point.label for point in width.points] == ["steps=10", "steps=20"]
    assert len(loaded.experiment("rows").points) == 1
    places = [place.rpartition("/")[2] for place in (width.grid_at, width.figures_at)]
    assert places == ["laptop.yaml:7", "experiments.yaml:27"]

    own["experiments"]["width"] |= {"hypothesis": "It does not.", "figures": []}
    found = load_study(study_file(own, "laptop.yaml")).experiment("width").definition
    assert (found.hypothesis, found.expects, found.figures) == ("It does not.", [], [])
    own["experiments"]["depth"] = {"grid": {}}
    for name, sentence in (
        ("laptop.yaml", r"laptop.yaml:15: experiments.depth.question: is required"),
        ("third.yaml", r"extends .*laptop.yaml, which extends another study"),
    ):
        path = study_file(own, name)
        with pytest.raises(UserError, match=sentence):
            load_study(path)
        own["extends"] = "laptop.yaml"


def test_a_length_set_by_hand_replaces_an_axis_of_another_length(study, study_file):
    study["experiments"]["width"]["grid"] = {"product": {"training.steps": [10, 20]}}
    changed = load_study(study_file(study), "small", {"training.rows": 7680})
    assert len(changed.experiment("width").points) == 1


def test_a_variable_that_is_not_set_skips_the_experiment(study, study_file, tmp_path):
    puzzles, names = tmp_path / "p.csv", set()
    study["experiments"]["width"]["set"] = {"data": {"source": "csv", "files": ["$sudoku_csv"]}}
    path = study_file(study)
    assert "sudoku_csv" in load_study(path, "small").experiment("width").skip
    for content in ("one", "another"):
        puzzles.write_text(content)
        loaded = load_study(path, "small", variables={"sudoku_csv": str(puzzles)})
        run = loaded.experiment("width").points[0].runs[0]
        assert run.config.data.files == (str(puzzles),)
        names.add(run.name)
    assert len(names) == 2


def test_numbers_are_read_as_yaml_1_2_and_double_keys_refused():
    assert parse_yaml("[1e-4, -1E5, .5e3, 12, 0o17, 0x1f]", "x") == [1e-4, -1e5, 500.0, 12, 15, 31]
    assert parse_yaml("[5., 1.e-3, +16, 1e3, 1E-3]", "x") == [5.0, 1e-3, 16, 1000.0, 1e-3]
    assert parse_yaml("[yes, off, 2026-12-31, ~, TRUE]", "x") == ["yes", "off", "2026-12-31", None, True]
    for number in ("010", "1:30", "1_000", "0b11"):
        with pytest.raises(
            UserError, match=rf"x, line 2, column 4: not valid YAML: {number} is read in two ways"
        ):
            parse_yaml(f"a: 1\nb: {number}\n", "x")
    with pytest.raises(UserError, match="is given twice"):
        parse_yaml("a: 1\na: 2\n", "x")
    with pytest.raises(UserError, match=r"x, line 1, column 2: not valid YAML: .*cannot be a key"):
        parse_yaml("{{a}: 1}", "x")


def test_a_mapping_replaces_keys_of_the_one_that_it_merges():
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, y: 3}\nc: {<<: *b, x: 4}\n"
    assert parse_yaml(text, "x") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 4, "y": 3}}
    with pytest.raises(UserError, match="key 'y' is given twice"):
        parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 3, y: 4}\n", "x")


def set_in(study, place, value):
    """Change a document at a place such as base/training.steps, or width/grid for that of an experiment."""
    *parents, last = place.split("/")
    inner = study if place.startswith(("base", "scales")) else study["experiments"]
    for part in parents:
        inner = inner[part]
    inner[last] = value


WRONG = [
    ("base/training.steps", 99999999999999999999999999,
     r"steps: must be at most 1,000,000,000, not 99999999999999999999999999"),
    ("width/grid", {"product": {"model.d_modle": [32]}},
     r"experiment width.*unknown key 'model.d_modle'; did you mean 'model.d_model'\?"),
    ("width/grids", {}, r"unknown key 'experiments.width.grids'; did you mean 'grid'\?"),
    ("base", {"seeds": [0, 1]}, "base: 'seeds' does not belong to a run: write it in an experiment or a scale"),
    ("width/runtime", {"evals": 0}, r":\d+: runtime: evals"),
    ("scales", {"smal": {}}, r"did you mean 'smal'\?"),
    ("Width", {"question": "?"}, "'width' and 'Width' differ in case only"),
    ("train", {"question": "?"}, "'train' is the name of a rule of the pipeline; choose another"),
    ("a" * 101, {"question": "?"}, "names have at most 100 characters, not 101"),
    ("a.b", {"question": "?"}, "'a.b': names consist of letters, digits and _"),
    ("width/grid", {"product": {"model.d_model": ["wide", 64]}},
     r"experiment width, point d_model=wide: model.d_model: must be a whole number, not 'wide'"),
    ("width/grid", {"product": {"training.ema": [0.9, 1.5]}}, r"training.ema: must be below 1, not 1.5"),
    ("width/set", {"model": {"mixer": "attention", "heads": 5}},
     "model.d_model=32 is not divisible by model.heads=5"),
    ("width/set", {"training": {"micro_batches": 7}},
     "training.batch_size=768 is not divisible by training.micro_batches=7"),
    ("width/set", {"model.position": "rope"}, "model.position=rope needs model.mixer=attention"),
    ("width/grid", {"product": {"model.d_model": []}}, "an empty list has no points"),
    ("width/grid", {"zip": {"model.d_model": [32], "model.heads": [4, 8]}},
     "zipped lists must have the same length"),
    ("rows/grid", {"product": {"training.rows": [10]}}, "10 rows are less than one batch of 768"),
    ("rows", {"question": "?", "set": {"training": {"rows": 7680, "steps": 3}, "model.d_model": 64}},
     "both set the length"),
    ("width/set", {"data": {"source": "csv", "files": ["none.csv"]}}, "data.files: none.csv: No such file"),
    ("width/set", {"data": {"source": "csv"}}, "data.source=csv needs data.files"),
    ("width/set", {"data": {"source": "csv", "files": ["gs://b/x.csv"]}},
     "remote: append its checksum, as in gs://b/x.csv#sha256=..., which `python -m trm data checksum gs://b/x.csv`"),
    ("width/grid", {"scale": "smal"}, r"unknown scale 'smal'; did you mean 'small'\?"),
    ("width/seeds", [1, 1], "duplicate seed"),
    ("width/set", {"training.lr_rule": {"heads": [1, -1]}},
     "training.lr_rule: heads: .* it is one of d_model, layers, l_cycles, halt_max_steps, steps, batch_size"),
    ("width/set", {"training.lr_rule": [64, -0.7]},
     "training.lr_rule=.64, -0.7. must be a mapping, such as {d_model: .64, -0.7.}"),
    ("width/set", {"training.lr_rule": {"d_model": [64, "-0,7"]}},
     "training.lr_rule: d_model: .64, '-0,7'.; it is one of"),
    ("width/set", {"training.lr_rule": {"d_model": [1, 1e9]}}, "the power between -10 and 10"),
    ("base/training", {"lr": "fast", "lr_rule": {"d_model": [64, -1]}},
     "training.lr='fast' must be a finite number above 0"),
    ("width/set", {"training.flops": float("inf")}, "training.flops=inf must be a finite number above 0"),
    ("width/set", {"training.epochs": 2.5, "data.train_puzzles": "100"},
     "data.train_puzzles='100' must be a finite number above 0"),
    ("width/set", {"data": {"task": "maze", "walls": "uniform"}},
     "experiment width, point .*: data.walls=uniform makes perfect mazes"),
    ("width/set", {"training.flops": 5}, "5 FLOPs are less than one training step"),
    ("width/set", {"model": {"d_model": 48}},
     "experiment width: every point has its own value in place of model.d_model: remove it"),
    ("rows/grid", {"set": {"training.steps": 5}, "product": {"training.rows": [7680]}},
     "rows: grid: set: every point has its own value in place of training.steps"),
    ("width/grid", {"product": {"training.lr": [0.00012345671, 0.00012345672]}},
     "two points are labelled 'lr=0.000123457': training.lr=0.00012345671 and training.lr=0.00012345672"),
    ("width/grid", {"product": {"model.heads": [4, 8]}},
     "width: model.heads has 2 values but they make 1 different run: the mlp mixer has no attention heads; remove"),
    ("rows", {"question": "Heads?", "set": {"model.heads": 4, "model.d_model": 64}},
     "experiment rows: model.heads=4 has no effect .*the mlp mixer has no attention heads; remove it"),
    ("base/training.lr", float("nan"), "training.lr: input should be a finite number, not nan"),
    ("base/training.lr", -1e-3, "training.lr: must be above 0, not -0.001"),
    ("base/training.steps", "２２", "training.steps: must be a whole number, not '２２'"),
    ("width/seeds", [0, 1.0], "seeds.1: must be a whole number, not 1.0"),
    ("width/seeds", [], "no seeds; name at least one"),
    ("width/seeds", [-1], "seed: must be at least 0, not -1"),
    ("width/seeds", [2**31], "seed: must be below 2,147,483,648, not 2147483648"),
    ("width/grid", {"product": {"model.d_model": 16}}, "must be a list, not 16"),
    ("width/grid", {"product": {"model.d_model": [16, 16.0]}}, "the point d_model=16 is listed twice"),
    ("base/training.lr", "0.001", "training.lr: must be a number, not '0.001'"),
    ("base/training.steps", True, "training.steps: must be a whole number, not True"),
    ("base/data.hints", "auto", "data.hints: must be two whole numbers"),
    ("base/data.held_out_hints", [-1, 2], "data.held_out_hints: must be two whole numbers"),
    ("base/data.curriculum", [{"until": 0.5, "hints": [2]}], "data.curriculum.0.hints: must be two whole numbers"),
    ("base/data.curriculum", [{"until": 0.5}, {"until": 0.5}], "data.curriculum: the stages' `until` must increase"),
    ("base/data.unique_path", 1, "data.unique_path: must be true or false, not 1"),
    ("width/grid", {"zip": {"model.d_model": [16, 32]}, "points": [{"model": {"d_model": 64}}]},
     "width: grid: model.d_model is in `zip` and in `points`: keep one"),
    ("width/set", {"model": {"layers": 3}, "model.layers": 2},
     "model.layers is given twice, as `model.layers:` and as `model: {layers: ...}`: keep one"),
    ("rows/grid", {"set": {"training.lr_rule": {"d_model": [64, -1]}}, "product": {"training.lr": [1e-3, 2e-3]}},
     "rows: grid: set: every point has its own value in place of training.lr_rule"),
    ("width/grid", {"points": [{"model.d_model": 64, "label": "cost $5 and $10"}]},
     r"label 'cost .5 and .10': . begins a formula in figures: write USD"),
    ("width/grid", {"product": {"training.steps": list(range(1, 20_001))}},
     "experiment width has 40,000 runs, 40,000 with those before it; a study may have 20,000"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "sentence"), WRONG)
def test_what_is_wrong_is_one_sentence_with_file_and_place(place, value, sentence, study, study_file):
    set_in(study, place, value)
    path = study_file(study)
    with pytest.raises(UserError, match=sentence) as caught:
        load_study(path, "small")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"a: [1,\n", "line 2, column .*: not valid YAML"),
        (b"name: a\nscales: {caf\xe9: {}}\n", "x.yaml, line 2: not UTF-8 text: save"),
        (b"- 1\n", "must be a mapping"),
        (b"a: " + b"9" * 5000, "x.yaml: not valid YAML: Exceeds the limit"),
        (
            b"a0: &a0 [1]\n"
            + b"".join(
                b"a%d: &a%d [%s]\n" % (k, k, b", ".join([b"*a%d" % (k - 1)] * 9)) for k in range(1, 9)
            ),
            "its aliases write out too many values",
        ),
        (b"a: &a [*a]\n", "its aliases write out too many values"),
    ],
)
def test_not_yaml_and_no_file(tmp_path, content, said):
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        load_study(path, "small")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"training.lr": "fast"}, "--set: training.lr: must be a number, not 'fast'"),
        ({"evaluation.weights": "mean"}, "--set: evaluation: weights: must be"),
        ({"model.heads": 5, "model.mixer": "attention", "model.d_model": 64}, "--set"),
        ({"steps": 10}, "--set: unknown key 'steps'; did you mean 'training.steps'?"),
        ({"eval_steps": 4}, "--set: unknown key 'eval_steps'; did you mean 'evaluation.unroll'?"),
        ({"training.unroll": 4}, "'training.unroll'; did you mean 'evaluation.unroll'?"),
        ({"training.learning_rate": 4}, "'training.learning_rate'; did you mean 'training.lr'?"),
        ({"evals": 3}, "--set: unknown key 'evals'; did you mean 'runtime.evals'?"),
    ],
)
def test_what_was_set_is_named_as_the_place_of_the_error(study, study_file, change, said):
    with pytest.raises(UserError, match=re.escape(said)):
        load_study(study_file(study), "small", change)
