"""README's table of commands works as written, after a small study, from a shell that has activated nothing."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.pipeline.conftest import ROOT


def listed():
    """Commands of the table, each as written."""
    section = (ROOT / "README.md").read_text().partition("## Commands")[2].partition("\n## ")[0]
    commands = []
    for row in re.findall(r"^\| [^|]+ \| (.+) \|$", section, re.MULTILINE):
        found = re.findall(r"`([^`]+)`", row)
        first = next((item for item in found if item.startswith("bin/trm ")), "")
        for item in found:  # `bin/trm results archive X`, `collect`, `export DIR`
            if item.startswith("bin/trm "):
                commands.append(item)
            elif first and not item.startswith("make "):
                commands.append(f"{' '.join(first.split()[:2])} {item}")
    return commands


@pytest.mark.parametrize("command", listed())
def test_a_listed_command_works_as_written(command, project):
    shutil.copytree(ROOT / "bin", project.folder / "bin")
    (project.folder / ".venv").symlink_to(sys.prefix)
    runs = sorted(path.name for path in (project.folder / "results/runs").iterdir())
    dataset = next((project.folder / "results/datasets").iterdir()).name
    for word, value in (
        ("RUN RUN", f"{runs[0]} {runs[1]}"),
        ("gs://BUCKET/PREFIX", "archive"),
        ("NAME", dataset),
        ("DIR", "tables"),
        ("baseline", "batch"),  # the small study has other experiments and fewer steps
        ("training.steps=1000", "training.steps=4"),
    ):
        command = command.replace(word, value)
    if command.endswith(" collect"):
        shutil.copytree(project.folder / "results", project.folder / "archive/results")
        command += " archive"
    assert said(command, project.folder)


def said(command, folder):
    """What a command prints in a fresh shell; it must succeed."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    environment |= {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
    result = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_the_first_model_to_try_solves_its_puzzle_as_in_the_picture(tmp_path):
    for name in ("bin", "models"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    commands = re.findall(r"^bin/trm solve .+$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        assert "the answer keeps every rule and clue" in said(f"{command} --svg solve.svg", tmp_path)
    assert (tmp_path / "solve.svg").read_bytes() == (ROOT / "docs/images/solve.svg").read_bytes()


def test_the_table_is_found():
    assert len(listed()) >= 8
