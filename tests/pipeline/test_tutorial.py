"""The tutorial as a reader follows it: its lines of YAML in the shipped study, its commands, the output shown."""

import json
import re
import shlex
import shutil
import sys

import pytest

from tests.pipeline.conftest import Project, copy_pipeline
from tests.shell import ROOT, run

PAGE = (ROOT / "docs/tutorial.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)\n```", PAGE, re.DOTALL)
ENTRY, LONGER_GRID = [f"{text}\n" for kind, text in BLOCKS if kind == "yaml"]
PLAN, RUN = [text for kind, text in BLOCKS if kind == "sh"]
ERROR, FIRST_PLAN, LAST_LINE, SECOND_PLAN = [text for kind, text in BLOCKS if not kind]
GRID = re.compile(r"^    grid: .*exploration.*\n", re.MULTILINE)


@pytest.fixture
def reader(tmp_path):
    """A checkout with the experiment added below `experiments:`, and a third of the steps."""
    copy_pipeline(tmp_path)
    for name in ("bin", "models"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    study = tmp_path / "config/laptop.yaml"
    text = study.read_text().replace("\nexperiments:\n", f"\nexperiments:\n{ENTRY}\n")
    study.write_text(text.replace("\n    steps: 1200\n", "\n    steps: 400\n", 1))
    return Project(tmp_path)


def shown(reader, command, check=True):
    path = f"{sys.prefix}/bin:/usr/bin:/bin"
    done = run(
        "sh", "-c", command, cwd=reader.folder, env={"PATH": path, "HOME": str(reader.folder)}, check=check
    )
    return done.stdout + done.stderr


def as_text(text):
    """Without what differs from machine to machine, or from edit to edit of the study: times, and line numbers."""
    text = re.sub(r"[\d.]+ (s|min|h)\b", "TIME", text)
    return " ".join(re.sub(r"yaml:\d+", "yaml:LINE", text).split())


def test_the_plans_and_the_error_are_as_shown(reader):
    first = as_text(shown(reader, PLAN))
    for line in FIRST_PLAN.strip().splitlines():
        assert as_text(line) in first
    study = reader.study_path.read_text()
    reader.study_path.write_text(study.replace("training.exploration: [", "training.explorations: [", 1))
    refused = as_text(shown(reader, PLAN, check=False))
    assert as_text(ERROR) in refused
    assert "WorkflowError" not in refused
    reader.study_path.write_text(GRID.sub(LONGER_GRID, study, count=1))
    assert "9 runs to train" in shown(reader, PLAN)


@pytest.mark.full
def test_the_run_gives_the_files_and_a_longer_grid_trains_only_what_is_new(reader):
    study = reader.study_path.read_text()
    assert as_text(LAST_LINE) in as_text(shown(reader, RUN))
    for pattern in re.findall(r"^\| `(results/[^`]*)`", PAGE, re.MULTILINE):
        assert list(reader.folder.glob(pattern)), pattern
    answer = json.loads((reader.folder / "results/plots/exploration.json").read_text())["answer"]
    assert "no difference is established" in answer
    reader.study_path.write_text(GRID.sub(LONGER_GRID, study, count=1))
    assert shlex.split(PLAN) == ["snakemake", "--profile", "profiles/local", "-n", "exploration"]
    second = as_text(reader.snakemake("-n", "exploration").stderr)
    for line in SECOND_PLAN.strip().splitlines():
        assert as_text(line) in second
    reader.study_path.write_text(study)
    assert reader.would_run("exploration") == {}
