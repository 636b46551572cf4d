"""Only what an edit changes is made again: asked of real Snakemake over a real, small, finished study."""

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import yaml

from trm.launch import controller
from trm.pipeline import reporting
from trm.pipeline.project import open_project

DRAWING = {"plot", "html_report", "all"}


def set_in(*path):
    *parents, last, value = path

    def change(document):
        for part in parents:
            document = document[part]
        document[last] = value

    return change


def test_what_no_result_depends_on_runs_nothing(project):
    """The locks of a controller that was killed; comments, another order of keys and another way to write a value; and
    derived parameters: log settings, threads and checkpoint intervals."""
    locks = project.folder / ".snakemake/locks"
    locks.mkdir(exist_ok=True)
    for kind, file in (("output", "results/report.html"), ("input", "results/plots/batch.pdf")):
        (locks / f"0.{kind}.lock").write_text(f"{file}\n")
    style = project.folder / "config/figures.mplstyle"
    style.write_text("# only a comment\n" + style.read_text())
    project.edit(set_in("scales", "laptop", "runtime", {"log_every": 1, "evals": 2, "checkpoint_minutes": 3}))
    project.edit(set_in("scales", "laptop", "threads", 2))
    before = yaml.safe_load(project.study_path.read_text())
    text = yaml.safe_dump(dict(reversed(before.items())), sort_keys=False)
    project.study_path.write_text("# a comment\n" + text.replace("train_puzzles: 20", "train_puzzles: 0x14"))
    assert "0x14" in project.study_path.read_text()
    assert yaml.safe_load(project.study_path.read_text()) == before
    assert project.would_run() == {}
    assert project.said == ""


def test_an_added_and_an_edited_point_train_only_themselves(project):
    project.edit(set_in("experiments", "batch", "grid", "product", "training.batch_size", [4, 8, 16]))
    jobs = project.would_run()
    assert (jobs["train"], jobs["evaluate"], jobs["table"], jobs["plot"]) == (2, 2, 1, 1)
    line = r"\n2 runs: new grid points of batch \(config/laptop.yaml:\d+\)\n2 evaluations: of these runs\n"
    assert re.search(line, project.said)
    assert not {"fit", "dataset"} & jobs.keys()
    project.edit(set_in("experiments", "data_size", "grid", "product", "data.train_puzzles", [12, 20]))
    jobs = project.would_run()
    assert (jobs["train"], jobs["dataset"]) == (4, 1)
    assert "source" not in jobs
    for run in [*(project.folder / "results/runs").iterdir()]:  # of a run that never finished
        run.with_name(f"{run.name[:-8]}00000000").mkdir(exist_ok=True)
    project.edit(set_in("base", "training", "lr", 2e-4))
    project.would_run()
    assert "runs: other settings than before (training.lr) in" in project.said


def test_lost_records_and_times_evaluate_nothing_again(project):
    """Snakemake would delete the old evaluation first; --forcerun train does evaluate again."""
    shutil.rmtree(project.folder / ".snakemake")
    assert project.would_run() == {}
    for path in (project.folder / "results/runs").glob("*/*"):
        if not path.name.startswith("evaluation"):
            os.utime(path)
    assert "evaluate" not in project.would_run()
    assert project.would_run("--forcerun", "train")["evaluate"] == 8
    assert "\n6 runs: forced on the command line\n8 evaluations: of these runs\n" in project.said


def test_lost_data_sets_are_made_again_for_new_runs_only(project):
    """Finished runs on them do not train again, nor do they when the pool of puzzles is lost too."""
    shutil.rmtree(project.folder / "results/datasets")
    assert project.would_run() == {}
    project.edit(set_in("scales", "laptop", "seeds", [0, 1, 2]))
    jobs = project.would_run()
    assert (jobs["dataset"], jobs["train"], jobs["evaluate"]) == (2, 3, 4)
    assert re.search(r"3 runs: new seeds of .*data_size \(config/laptop\.yaml:", project.said)
    assert "source" not in jobs
    shutil.rmtree(project.folder / "results/sources")
    assert project.would_run()["train"] == 3
    forced = project.would_run("--forcerun", "train")  # which reads them
    assert (forced["dataset"], forced["train"]) == (2, 9)
    run = next((project.folder / "results/runs").iterdir()).name
    target = f"results/runs/{run}/training.json"
    assert project.would_run(target, "--forcerun", target)["dataset"] == 1


def test_a_change_of_style_redraws_only(project):
    style = project.folder / "config/figures.mplstyle"
    style.write_text(style.read_text() + "\nlines.linewidth: 2.5\n")
    jobs = project.would_run()
    assert set(jobs) <= DRAWING
    assert jobs["plot"] == 3
    assert "3 figures: missing, or made from something else\n" in project.said


def test_a_raised_recipe_version_trains_all(project, monkeypatch, tmp_path):
    # a copy of the package with another version, found first
    import trm

    package = tmp_path / "raised/trm"
    shutil.copytree(trm.__path__[0], package)
    path = package / "study/fingerprint.py"
    text = path.read_text()
    path.write_text(re.sub(r"^RECIPE_VERSION = \d+$", "RECIPE_VERSION = 99", text, flags=re.MULTILINE))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    jobs = project.would_run()
    assert jobs["train"] == 6
    assert "dataset" not in jobs
    assert "\n6 runs: recipe version " in project.said


def test_another_scale_never_passes_for_this_one(project):
    jobs = project.would_run("--config", "scale=other")
    assert (jobs["table"], jobs["plot"], jobs["html_report"]) == (2, 3, 1)
    assert "train" not in jobs


def test_experiments_and_pictures_are_targets(project):
    plots = project.folder / "results/plots"
    (plots / "data_size.pdf").unlink()
    (plots / "batch.png").unlink()
    jobs = project.would_run("data_size")
    assert jobs["plot"] == 1
    assert "html_report" not in jobs
    assert project.would_run()["plot"] == 2


def test_sizes_are_checked_for_what_is_asked_for(project):
    project.edit(set_in("experiments", "batch", "set", {"data": {"train_puzzles": 1_000_000, "pool": 100}}))
    result = project.snakemake("-n", check=False)
    assert "lower the numbers" in result.stderr + result.stdout
    assert project.would_run("data_size") == {}


def test_an_unknown_target_is_one_sentence(project):
    """Snakemake would raise it within an input function, with a traceback."""
    path = next((project.folder / "results/runs").glob("*/evaluation-*.json")).relative_to(project.folder)
    result = project.snakemake("--cores", "1", str(path.with_name("evaluation-0123abcd.json")), check=False)
    assert result.returncode == 1
    said, name = result.stdout + result.stderr, f"{path.parent.name}/evaluation-"
    assert f"has no run or evaluation '{name}0123abcd.json'; did you mean '{name}" in said
    assert "Traceback" not in said


def test_a_failed_run_leaves_a_partial_report_beside_the_whole_one_and_a_revert_draws_anew(project):
    """All of it after the clock was set back: what is there is from the future."""
    for path in (project.folder / "results").rglob("*"):
        os.utime(path, (time.time() + 86400,) * 2)
    assert project.would_run() == {}
    whole = (project.folder / "results/report.html").read_text()
    project.edit(set_in("experiments", "data_size", "figures", 0, "title", "Another title"))
    project.edit(set_in("experiments", "batch", "grid", "product", "training.batch_size", [4, 8, 16]))
    broken = project.snakemake("-n", "-p").stdout
    run = re.search(r"(sudoku4\S+-b16-s1-[0-9a-f]{8}): ", broken)[1]
    blocked = project.folder / "results/checkpoints" / run
    blocked.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(blocked, ignore_errors=True)
    blocked.write_text("a file where the run wants a folder")
    result = project.snakemake("--cores", "2", check=False)
    assert result.returncode != 0
    other = run.replace("-s1-", "-s0-").rsplit("-", 1)[0]
    assert list((project.folder / "results/runs").glob(f"{other}-*/training.json")), "the other seed went on"
    partial = project.folder / "results/report.partial.html"
    assert run in partial.read_text()
    assert (project.folder / "results/report.html").read_text() == whole
    blocked.unlink()
    project.snakemake("--cores", "2")
    assert not partial.exists()
    assert project.would_run() == {}
    project.edit(lambda study: study["experiments"]["data_size"]["figures"][0].pop("title"))
    assert project.would_run() == {"plot": 1, "html_report": 1, "all": 1}


def test_a_partial_report_is_made_of_what_was_asked_for(project, monkeypatch):
    """The tables of a whole study took the place of its end; a signal ends the report."""
    monkeypatch.chdir(project.folder)
    opened = open_project({"study": "config/laptop.yaml"})
    assert not reporting.partial_spec(opened, set())["experiments"]
    shutil.rmtree("results/tables")
    run = opened.study.experiment("batch").points[0].runs[0].name
    shutil.rmtree(Path("results/runs", run))
    opened = open_project({"study": "config/laptop.yaml"})
    spec = reporting.partial_spec(opened, {opened.catalogue.table_file("batch")})
    (section,) = spec["experiments"]
    assert section["table"] == "results/partial/batch.csv"
    assert run not in Path(section["table"]).read_text()
    assert section["figures"] == ["results/partial/batch.pdf"]
    assert all(map(os.path.exists, section["figures"]))

    def interrupted(*command, **options):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(controller.subprocess, "run", interrupted)
    with pytest.raises(SystemExit):
        controller.write_partial_report(opened.options, set())


def test_what_only_the_report_reads_makes_it_again(project, monkeypatch):
    monkeypatch.chdir(project.folder)
    identities = {open_project({"study": "config/laptop.yaml"}).report_identity}
    for path, value in (
        (("experiments", "batch", "expects"), [{"where": {"training.batch_size": 4}, "above": 0.5}]),
        (("experiments", "batch", "hypothesis"), "It depends."),
        (("about",), "Tiny Sudoku."),
    ):
        project.edit(set_in(*path, value))
        identities.add(open_project({"study": "config/laptop.yaml"}).report_identity)
    assert len(identities) == 4
    assert project.would_run() == {"all": 1, "html_report": 1}


def tree(folder):
    """Every file and folder with its time."""
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_looking_changes_nothing(project):
    """Dry runs, --list-rules and --lint of a study that was edited, and back."""
    before = project.study_path.read_text()
    stat = project.study_path.stat()
    earlier = tree(project.folder / "results")
    project.edit(set_in("experiments", "batch", "question", "Another question?"))
    project.edit(set_in("experiments", "data_size", "figures", 0, "fit", "power_law_floor"))
    jobs = project.would_run()
    assert jobs["plot"] >= 1
    assert jobs["html_report"] == 1
    for words in (["--list-rules"], ["--lint"], ["--summary"]):
        project.snakemake(*words, check=False)
    assert tree(project.folder / "results") == earlier
    project.study_path.write_text(before)
    os.utime(project.study_path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert project.would_run() == {}
    shutil.make_archive(str(project.folder / "plots"), "zip", project.folder / "results/plots")
