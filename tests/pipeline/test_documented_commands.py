"""Every command of README and docs, as written, after a small study; or the reason why it is not run here. Those of
README come from a shell that has activated nothing."""

import json
import os
import re
import shlex
import shutil
import sys
from importlib.util import find_spec

import pytest

from tests import shell
from tests.pipeline.conftest import Project, job_stats
from tests.shell import ROOT

ELSEWHERE = {
    "docs/cloud.md": "tests/pipeline/test_cloud_page.py",
    "docs/pod-operations.md": "tests/pipeline/test_cloud_page.py",
    "docs/cluster.md": "below, as dry runs",
    "docs/tpu.md": "the second environment; tests/xla/test_tpu_check.py",
    "docs/tutorial.md": "tests/pipeline/test_tutorial.py",
    "docs/performance.md": "measurements",
}
"""Pages whose commands another test runs, or that nobody can run here."""
NOT_RUN = {
    r"git clone|make ": "CI runs it, or it needs a terminal or another machine",
    r"hf upload": "an account",
    r"pip install|snakedeploy": "tests/test_packaging.py",
    r".*(gs://BUCKET|storage_prefix)": "a bucket; tests/results/test_archive.py",
    r".*data fetch --from": "the network; tests/data/test_collections.py",
    r".*study=config/own\.yaml": "a file that the page prints; tests/training/test_extending.py",
    r".*from-reference": "a checkpoint of the published code; tests/training/test_convert.py",
    r"python -m benchmarks|snakemake --profile profiles/(gpu|tpu|slurm)": "other machines",
    r"(bin/|python -m )trm play|.*tpu-check": "tests/play, tests/checks/tpu_check",
    r".*\.\.\.( |$)": "an abbreviation",
}
"""Commands that are not run, and why."""
COMMAND = re.compile(r"(bin/trm|python3? -m|snakemake|make|git|hf|pip|snakedeploy|export|sbatch|gcloud) \S.*")


def commands(page):
    """Commands of a page: in blocks of `sh`, indented blocks and tables; comments cut, continued lines joined."""
    text = re.sub(r"\\\n *", "", (ROOT / page).read_text())
    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.DOTALL)
    blocks += re.findall(r"^ {4}(\S.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    cells = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\|.*\|$", text, re.MULTILINE)))
    lines = [line for block in blocks for line in block.splitlines()]
    plain = [re.sub(r"(  +|\s)#.*$", "", line).strip() for line in lines] + cells
    return [line for line in plain if COMMAND.fullmatch(line)]


def wanted(page):
    """Those that are run here."""
    return [line for line in commands(page) if not any(re.match(known, line) for known in NOT_RUN)]


def pages():
    found = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")]
    pages = {"README.md", "config/README.md", "CONTRIBUTING.md", *found} - ELSEWHERE.keys()
    return sorted(page for page in pages if wanted(page))


@pytest.mark.parametrize("page", pages())
def test_the_commands_of_a_page_work_as_written(page, checkout):
    for line in wanted(page):
        print(f"{page}: {line}")
        (in_a_fresh_shell if page == "README.md" else run)(with_names(line, checkout), checkout)


@pytest.fixture(scope="module")
def checkout(built, tmp_path_factory):
    """The small study with what a user's checkout has besides: the commands, the models, an example of each file."""
    project = Project(tmp_path_factory.mktemp("documented") / "checkout")
    shutil.copytree(built.folder, project.folder, copy_function=shutil.copy2)
    for name in ("bin", "models", "docs"):
        shutil.copytree(ROOT / name, project.folder / name, ignore=shutil.ignore_patterns("results"))
    (project.folder / ".venv").symlink_to(sys.prefix)
    question = {"question": "?", "figures": [{"kind": "curves"}]}
    config = json.loads(trained(project.folder)[0].joinpath("training.json").read_text())["config"]
    for name in ("run.json", "RUN.json"):
        (project.folder / name).write_text(json.dumps(config))
    names = ("baseline", "exploration", "model_size", "ema", "recursion_schedule")
    project.edit(lambda document: document["experiments"].update(dict.fromkeys(names, question)))
    project.edit(lambda document: document["scales"].update(gpu=document["scales"]["other"]))
    shutil.copy(project.study_path, project.folder / "config/experiments.yaml")
    return project.folder


def trained(folder):
    """The runs of the small study."""
    return sorted(path.parent for path in folder.glob("results/runs/*-*/training.json"))


def with_names(command, folder):
    """The command with the names of the small study, and its few steps."""
    one, other, *_ = (path.name for path in trained(folder))
    dataset = json.loads((folder / f"results/runs/{one}/training.json").read_text())["dataset"]["name"]
    for word, value in (
        ("RUN RUN", f"{one} {other}"),
        ("results/runs/RUN", f"results/runs/{one}"),
        ("results/runs/NAME --out", f"results/runs/{one} --out"),
        ("results/datasets/NAME", f"results/datasets/{dataset}"),
        ("inspect results/datasets/hard", f"inspect results/datasets/{dataset}"),
        ("training.steps=1000", "training.steps=4"),
        (" [--allow-missing]", ""),
        ("--point 1000", "--point 10"),
        ("results keep DIR", "results keep --dirty DIR"),  # this checkout may have local changes
        ("'*'", "data_size"),
    ):
        command = command.replace(word, value)
    return command


PROGRAMS = {"bin/trm": ["-m", "trm"], "snakemake": ["-m", "snakemake"], "python": []}


def run(command, folder):
    """A command in a fork that has imported its libraries."""
    program, *words = shlex.split(command)
    shell.python(*PROGRAMS[program], *words, cwd=folder, check=True)


def in_a_fresh_shell(command, folder):
    """What a command says in a fresh shell."""
    environment = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "HOME": str(folder)}
    environment |= {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
    fresh = [*("env", "-i"), *(f"{key}={value}" for key, value in environment.items())]
    return shell.run(*fresh, "sh", "-c", command, cwd=folder, check=True).stdout


@pytest.mark.parametrize("command", [line for line in commands("docs/cluster.md") if line[:5] == "snake"])
def test_a_command_for_a_cluster_plans_training(command, checkout):
    if "cluster-generic" in command and not find_spec("snakemake_executor_plugin_cluster_generic"):
        pytest.skip("snakemake-executor-plugin-cluster-generic is not installed: pip install -e '.[dev]'")
    # without Apptainer, which Snakemake looks for in a dry run too
    program, *words = shlex.split(command.replace("$PWD", "/images").replace("--sdm apptainer ", ""))
    done = shell.python("-m", program, "--dry-run", "--forceall", *words, cwd=checkout, check=True)
    assert job_stats(done.stdout)["train"]
    assert "Warning" not in done.stderr


def test_every_table_and_block_is_found():
    assert len(commands("README.md")) >= 15
    assert len(commands("docs/experiments.md")) >= 12
    assert len(commands("docs/analysis.md")) == 4


def test_the_first_model_to_try_solves_its_puzzle_as_in_the_picture(checkout):
    (solve,) = (line for line in commands("README.md") if line.startswith('bin/trm solve "'))
    said = in_a_fresh_shell(f"{solve} --svg solve.svg", checkout)
    assert "the answer keeps every rule and clue" in said
    assert (checkout / "solve.svg").read_bytes() == (ROOT / "docs/images/solve.svg").read_bytes()
