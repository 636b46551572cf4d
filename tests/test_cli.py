"""The command line as a user meets it: sentences, exit codes, no heavy imports."""

import errno
import io
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.shell import ROOT, python, run
from tests.training.conftest import MODEL, TRAINING
from trm import __version__
from trm.cli import COMMANDS, main


@pytest.fixture(autouse=True)
def in_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_help_names_every_command(capsys):
    assert main([]) == 2
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"trm {__version__}")


def test_what_a_terminal_cannot_show_is_a_question_mark(monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", write_through=True)
    monkeypatch.setattr(sys, "stdout", console)
    monkeypatch.setitem(COMMANDS, "study", "×, ≥ and “quotes”")
    assert main(["--help"]) == 0
    assert b"\xd7, ? and ?quotes?\n" in console.buffer.getvalue()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) > 200


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "did you mean 'train'?"),
        ("study show data_sise",
         "trm study: config/experiments.yaml has no experiment 'data_sise'; did you mean 'data_size'?\n"),
        ("study list --set training.stepz=3", "did you mean 'training.steps'?"),
        ("study list --study nowhere.yaml", "nowhere.yaml: No such file"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_code_2(words, said, capsys):
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error == said if said.endswith("\n") else said in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("data source --config { --out o", "--config is not JSON"),
        ("data source --config [1] --out o", "--config must be a JSON object"),
        ('data source --config {"taks":"maze"} --out o', "taks"),
        ('data source --config {"seed":"x"} --out o', "seed"),
        ("data source --config none.json --out o", "--config none.json cannot be read: No such file"),
        ("data source --config /bin/sh --out o", "is not UTF-8 text"),
        ("data build --config {} --source none --out o", "none/manifest.json does not exist"),
        ("evaluate --run r --data d --out e.json --threads 0", "--threads: must be at least 1, not 0"),
        ("data inspect none", "none is not a folder"),
        ("data inspect .", "is neither a data set"),
        ("table --experiment nowhere.json --out t.csv", "--experiment nowhere.json cannot be read"),
        ("table --experiment { --out t.csv", "--experiment is not JSON"),
        ('table --experiment {"name":"a"} --out t.csv', "--experiment: scale: is required"),
        ("fit --table none.csv --spec {} --out f.json", "none.csv.json does not exist"),
        ('fit --table none.csv --spec {"x":"colour"} --out f.json', "unknown column 'colour'"),
        ('plot --spec {"kind":"halting"} --table t.csv --out a.svg', "must end in .pdf"),
        ('report --spec {"study":"a"} --out r.html', "--spec: scale: is required"),
        ('plot --spec {"kind":"lav"} --table t --out p.pdf', "did you mean 'law'?"),
    ],
)
def test_bad_input_writes_nothing(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


MAZES = {"task": "maze", "source": "generate", "maze_size": 8, "min_path": 14, "augmentations": 1}
MAZES |= {"train_puzzles": 10, "validation_puzzles": 0, "test_puzzles": 4}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory) -> Path:
    """A run on mazes with its pool and data set, and files and folders that are none of these."""
    root = tmp_path_factory.mktemp("wrong")
    training = TRAINING | {"batch_size": 4, "steps": 1}
    config = json.dumps({"model": MODEL, "data": MAZES, "training": training})
    for words in (
        f"data source --out {root}/pool",
        f"data build --source {root}/pool --out {root}/set",
        f"train --dataset {root}/set --out {root}/run --checkpoints {root}/c",
    ):
        assert main([*words.split(), "--config", config]) == 0
    (root / "run.json").write_text(config)
    (root / "nothing-in-it").mkdir()
    (root / "text").write_text("hello\nworld\n")
    (root / "bytes").write_bytes(bytes(range(256)))
    (root / "list.json").write_text("[1]")
    return root


LAW = '{"kind": "law", "x": "data.train_puzzles"}'
LINES = """
solve {GRID} --model X --steps 1
solve X --model models/sudoku6 --steps 1
play --models X --out O
evaluate --run X --dataset SET --out O
evaluate --run RUN --dataset X --out O
evaluate --run RUN --dataset SET --evaluation X --out O
train --config X --dataset SET --out O --checkpoints C
train --config RUN.json --dataset X --out O --checkpoints C
data source --config X --out O
data source --config {ARC} --out O
data source --config {CSV} --out O
data build --config RUN.json --source X --out O
data inspect X
data checksum X
convert from-reference X --config RUN.json --out O
convert from-reference RUN/weights.safetensors --config X --out O
convert to-reference X --out O
convert to-model X --out O
convert to-huggingface X --out O
convert to-onnx X --out O
table --experiment X --out O
fit --table X --spec '{"x": "data.train_puzzles"}' --out O
fit --table TABLE --spec X --out O
plot --table X --spec LAW --out O.pdf
plot --table TABLE --spec LAW --fit X --out O.pdf
plot --table TABLE --spec X --out O.pdf
report --spec X --out O
results verify X
results collect X --dry-run
results archive O --root X --dry-run
study list --study X
study compare X RUN
""".strip().splitlines()
THINGS = ("RUN", "SET", "POOL", "nothing", "nothing-in-it", "text", "bytes", "list.json")
RIGHT = {
    "RUN": ("evaluate --run", "convert to", "study compare"),
    "SET": ("evaluate --run RUN --dataset X", "RUN.json --dataset X", "data inspect"),
    "POOL": ("data build", "data inspect"),
}
"""Commands that are right for a thing."""


@pytest.mark.parametrize("line", LINES)
def test_what_a_command_cannot_use_is_one_sentence(line, wrong, tmp_path, monkeypatch, capsys):
    """Every command with the wrong kind of run, folder and file."""
    monkeypatch.setenv("TRM_CACHE", str(tmp_path / "cache"))
    places = {"RUN": wrong / "run", "SET": wrong / "set", "POOL": wrong / "pool"}
    fixed = {"RUN": places["RUN"], "SET": places["SET"], "RUN.json": wrong / "run.json", "C": tmp_path / "c"}
    fixed |= {"O": tmp_path / "o", "O.pdf": tmp_path / "o.pdf", "LAW": LAW, "{GRID}": "." * 81}
    fixed |= {"RUN/weights.safetensors": wrong / "run/weights.safetensors"}
    fixed |= {"TABLE": "docs/results/data_size_laptop/table.csv"}
    for thing in THINGS:
        if any(right in line for right in RIGHT.get(thing, ())):
            continue
        x = str(places.get(thing, wrong / thing))
        data = {"files": [x], "source": "csv"}
        words = {**fixed, "X": x, "{CSV}": json.dumps(data)}
        words["{ARC}"] = json.dumps({**data, "source": "json", "task": "arc"})
        assert main([str(words.get(word, word)) for word in shlex.split(line)]) in (1, 2), thing
        said = capsys.readouterr()
        assert (said.err or said.out).strip(), thing
        assert said.err.count("\n") == 1 or not said.err, (thing, said.err)


@pytest.mark.parametrize(
    "content", [None, b"", b"hello\n", bytes(range(256)), b"quizzes,solutions\n12,34\n", b'{"a": 1}']
)
def test_a_standard_input_that_holds_no_puzzles_is_one_sentence(content, monkeypatch, capsys):
    stdin = content and type("In", (), {"buffer": io.BytesIO(content)})
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["solve", "-", "--model", "models/sudoku6", "--threads", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_on_mazes_is_no_model_of_sudoku(wrong, capsys):
    assert main(["solve", "." * 81, "--model", str(wrong / "run")]) == 2
    assert "has no model of Sudoku, only of maze: give --model a run on Sudoku" in capsys.readouterr().err


def test_study_list_and_show(capsys):
    def shown(*words):
        assert main(["study", *words, "--study", "config/laptop.yaml"]) == 0
        return capsys.readouterr().out

    assert "data_size: 7 points, 42 runs" in shown("list")
    places = re.findall(
        r"^(?:points|figures): (config/\w+\.yaml:\d+)", shown("show", "isoflop"), re.MULTILINE
    )
    wanted = (("config/laptop.yaml", "grid"), ("config/experiments.yaml", "figures"))
    for place, (path, key) in zip(places, wanted, strict=True):
        file, _, line = place.partition(":")
        assert (file, Path(file).read_text().splitlines()[int(line) - 1]) == (path, f"    {key}:")
    for words in ("train_puzzles=46", "evaluation-"):
        assert words in shown("show", "data_size")
    plain, changed = shown("show", "baseline"), shown("show", "baseline", "--set", "training.steps=1000")
    assert plain != changed  # what is set is part of the identity
    assert "steps: 1000" in changed


def test_the_snakefile_side_imports_neither_torch_nor_numpy():
    code = (
        "import sys; from trm.pipeline.project import open_project; from trm.pipeline.estimates import Estimates;"
        "from trm.pipeline.reporting import partial_spec;"
        "p = open_project({}); p.check_figures(); p.check_sizes(); p.report_identity;"
        "Estimates(p).of(next(iter(p.runs)));"
        "sys.exit(sorted({'torch', 'numpy', 'pandas', 'numba'} & set(sys.modules)) or 0)"
    )
    python("-c", code, cwd=ROOT, check=True)


def test_a_package_of_the_pipeline_that_is_missing_is_said(monkeypatch, capsys):
    """`pip install .` is enough for `trm solve`, not for studies."""
    for module in ("snakemake", "console"):
        monkeypatch.delitem(sys.modules, f"trm.launch.{module}", raising=False)
        monkeypatch.delattr(f"trm.launch.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main(["study", "run"]) == 2
    assert "rich.console is not installed: `pip install '.[pipeline]'`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "trm solve: there is not enough memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "trm solve: the disk is full"),
    ],
)
def test_what_a_machine_lacks_is_one_sentence(error, sentence, monkeypatch, capsys):
    def fail(args):
        raise error

    monkeypatch.setattr("trm.cli.solve.run", fail)
    assert main(["solve", "." * 81]) == 2
    said = capsys.readouterr().err
    assert said.startswith(sentence)
    assert said.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk of Linux")
def test_an_output_that_cannot_be_written_is_one_sentence():
    result = run("sh", "-c", '"$0" -m trm study list >/dev/full', sys.executable, cwd=ROOT)
    sentence = "trm study: the disk is full: free space and start again\n"
    assert (result.returncode, result.stderr) == (2, sentence)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no limit of the address space")
def test_a_library_that_does_not_fit_in_memory_is_said():
    limited = 'ulimit -v 300000; exec "$@"'
    result = run("bash", "-c", limited, "bash", sys.executable, "-m", "trm", "solve", "." * 81, cwd=ROOT)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert (
        "shared object: is it installed whole, and does `ulimit -v` leave the gigabyte that torch takes?"
        in line
    )
