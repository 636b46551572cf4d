"""The command line as a user meets it: sentences, exit codes, no heavy imports."""

import errno
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from trm.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def in_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_help_names_every_command(capsys):
    assert main([]) == 2
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) > 200


def test_an_unknown_command_names_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err


def test_bad_input_is_one_sentence_and_exit_code_2(capsys):
    assert main(["study", "show", "data_sise"]) == 2
    assert capsys.readouterr().err == (
        "trm study: config/experiments.yaml has no experiment 'data_sise'; did you mean 'data_size'?\n"
    )
    assert main(["plan", "--set", "training.stepz=3"]) == 2
    assert "did you mean 'training.steps'?" in capsys.readouterr().err
    assert main(["plan", "--study", "nowhere.yaml"]) == 2
    assert "nowhere.yaml: No such file" in capsys.readouterr().err
    assert main(["plan", "--jobs", "0"]) == 2
    assert capsys.readouterr().err == "trm plan: --jobs 0: at least one job runs at once\n"


def test_study_list_and_show(capsys):
    laptop = ["--study", "config/laptop.yaml"]
    assert main(["study", "list", *laptop]) == 0
    listed = capsys.readouterr().out
    assert "data_size: 7 points, 21 runs" in listed
    assert main(["study", "show", "isoflop", *laptop]) == 0
    shown = capsys.readouterr().out
    grid, figures = re.findall(r"^(?:points|figures): (config/\w+\.yaml:\d+)", shown, re.MULTILINE)
    for place, path, key in (
        (grid, "config/laptop.yaml", "grid"),
        (figures, "config/experiments.yaml", "figures"),
    ):
        file, _, line = place.partition(":")
        assert (file, Path(file).read_text().splitlines()[int(line) - 1]) == (path, f"    {key}:")
    assert main(["study", "show", "data_size", *laptop]) == 0
    shown = capsys.readouterr().out
    assert "train_puzzles=46" in shown
    assert "evaluation-" in shown


def test_plan_totals_budget_and_json(capsys):
    assert main(["plan", "--scale", "tpu", "--json", "--budget-hours", "720"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["todo_runs"] == sum(item["todo_runs"] for item in plan["experiments"]) > 100
    hours = {item["experiment"]: item["todo_device_hours"] for item in plan["experiments"]}
    bought = [row["experiment"] for row in plan["budget"]["rows"] if row["bought"]]
    assert bought
    assert sum(hours[name] for name in bought) <= 720
    assert plan["wall_seconds"] == max(plan["todo_seconds"] / plan["jobs"], plan["chain_seconds"])
    assert plan["todo_evaluations"] > 100
    assert main(["plan", "--runs"]) == 0
    assert "parameters" in capsys.readouterr().out


def test_overrides_are_part_of_the_identity(capsys):
    main(["study", "show", "baseline", "--study", "config/laptop.yaml"])
    plain = capsys.readouterr().out
    main(["study", "show", "baseline", "--study", "config/laptop.yaml", "--set", "training.steps=1000"])
    changed = capsys.readouterr().out
    assert plain != changed
    assert "steps: 1000" in changed


def test_documentation_matches_the_schema():
    assert main(["study", "schema", "--check"]) == 0


def test_the_snakefile_side_imports_neither_torch_nor_numpy():
    code = (
        "import sys; from trm.pipeline.project import open_project; from trm.pipeline.estimates import Estimates;"
        "from trm.pipeline.reporting import write_partial_report;"
        "p = open_project({}); p.check_figures(); p.check_sizes(); p.report_identity;"
        "Estimates(p).of(next(iter(p.runs)));"
        "sys.exit(sorted({'torch', 'numpy', 'pandas', 'numba'} & set(sys.modules)) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_a_package_of_the_pipeline_that_is_missing_is_said(monkeypatch, capsys):
    """`pip install .` is enough for `trm solve`, not for studies."""
    for module in ("launch", "console"):
        monkeypatch.delitem(sys.modules, f"trm.pipeline.{module}", raising=False)
        monkeypatch.delattr(f"trm.pipeline.{module}", raising=False)
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
    def run(args):
        raise error

    monkeypatch.setattr("trm.cli.solve.run", run)
    assert main(["solve", "." * 81]) == 2
    said = capsys.readouterr().err
    assert said.startswith(sentence)
    assert said.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk of Linux")
def test_an_output_that_cannot_be_written_is_one_sentence():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "trm", "study", "list"]
        result = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (result.returncode, result.stderr) == (
        2,
        "trm study: the disk is full: free space and start again\n",
    )


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no limit of the address space")
def test_a_library_that_does_not_fit_in_memory_is_said():
    command = f"ulimit -v 300000; exec {shlex.quote(sys.executable)} -m trm solve {'.' * 81}"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert (
        "shared object: is it installed whole, and does `ulimit -v` leave the gigabyte that torch takes?"
        in line
    )
