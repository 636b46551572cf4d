"""Files that are not what their names say: copied over one another, changed, or made from something else."""

import contextlib
import json
import os
import re
import shutil

import pytest

from tests.damage import damage
from trm.cli import main
from trm.io import sha256_file
from trm.study.records import sealed
from trm.study.schema import EvaluationConfig


def files(project, pattern):
    return sorted((project.folder / "results").glob(pattern))


def copied(pattern):
    """A file over another of its kind, with what lies beside it."""

    def damage(project):
        one, other = files(project, pattern)[:2]
        for end in ("", ".json", ".curves.csv"):
            if (beside := one.with_name(one.name + end)).exists():
                shutil.copyfile(beside, other.with_name(other.name + end))
        return other

    return damage


def rename_fit(project):
    (path,) = files(project, "fits/*.json")
    return path.rename(path.with_name("data_size-0123abcd.json"))


def copy_folder(project):
    one, other = files(project, "runs/*")[:2]
    shutil.copytree(one, other, dirs_exist_ok=True)
    return other / "training.json"


def other_evaluation(project):
    """An evaluation of the right run with other settings under this one's name."""
    path = files(project, "runs/*/evaluation-*.json")[0]
    document = json.loads(path.read_text())
    document["evaluation"] = EvaluationConfig(train_puzzles=8, traces=1, unroll=(1,)).model_dump(mode="json")
    path.write_text(json.dumps(sealed(document)))
    return path


def changed(pattern):
    """Change a bit."""

    def damaged(project):
        path = next(path for path in files(project, pattern) if not path.name.endswith("curves.csv"))
        damage(path, "flipped")
        return path

    return damaged


def edited(pattern, key):
    """Another number in a JSON file."""

    def damage(project):
        path = files(project, pattern)[0]
        before = path.read_text()
        path.write_text(re.sub(f'("{key}": ?)[0-9.e+-]+', r"\g<1>0.875", before, count=1))
        assert path.read_text() != before
        return path.with_name(path.name.replace(".csv.json", ".csv"))

    return damage


def fifo(project):
    path = files(project, "runs/*/training.json")[0]
    path.unlink()
    os.mkfifo(path)
    return path


def retyped(project):
    """A list in place of the checksums: an archive of another version, or of somebody who means harm."""
    path = files(project, "plots/*.json")[0]
    document = json.loads(path.read_text())
    path.write_text(json.dumps(sealed({**document, "sha256": [1]})))
    return path.with_suffix(".pdf")


TABLE = "tables/data_size-????????.csv"
DAMAGED = {
    "weights of another run": (copied("runs/*/weights.safetensors"), "evaluate"),
    "a flipped bit of the weights": (changed("runs/*/weights.safetensors"), "evaluate"),
    "training.json of another run": (copied("runs/*/training.json"), "evaluate"),
    "the folder of another run": (copy_folder, "evaluate"),
    "history of another run": (copied("runs/*/history.csv"), "table"),
    "an evaluation of another run": (copied("runs/*/evaluation-*.json"), "table"),
    "an evaluation with other settings": (other_evaluation, "table"),
    "a number of an evaluation": (edited("runs/*/evaluation-*.json", "exact_accuracy"), "table"),
    "a number of a training": (edited("runs/*/training.json", "train_flops"), "evaluate"),
    "a number beside a table": (edited(f"{TABLE}.json", "device_seconds"), "fit"),
    "a number of a fit": (edited("fits/data_size-*.json", "y"), "plot"),
    "a number of a figure": (edited("plots/*.json", "inches"), None),
    "another table": (copied("tables/*-????????.csv"), "fit"),
    "a changed table": (changed(TABLE), "fit"),
    "another fit": (rename_fit, "plot"),
    "another figure": (copied("plots/*.png"), None),
    "a changed data set": (changed("datasets/*/train/all__inputs.npy"), None),
    "a changed report": (changed("report.html"), None),
    "a FIFO": (fifo, None),
    "entries of another type": (retyped, None),
}


def read(project, kind, path, out):
    """The command of the pipeline that reads the damaged file."""
    results, run = project.folder / "results", path.parent
    if kind == "evaluate":
        dataset = json.loads((run / "training.json").read_text())["dataset"]["name"]
        return f"evaluate --run {run} --dataset {results}/datasets/{dataset} --out {out}".split()
    if kind == "table":
        entry = {"run": run.name, "seed": 0, "directory": str(run)}
        entry["evaluations"] = [item.name for item in run.glob("evaluation-*.json")]
        points = [{"coords": {}, "label": "", "runs": [entry]}]
        document = {"name": "a", "scale": "laptop", "study": "small", "points": points}
        return ["table", "--experiment", json.dumps(document), "--out", out]
    if kind == "fit":
        return ["fit", "--table", str(path), "--spec", '{"x": "data.train_puzzles"}', "--out", out]
    assert kind == "plot"
    spec = json.dumps({"kind": "law", "x": "data.train_puzzles", "fit": "power_law"})
    (table,) = map(str, files(project, TABLE))
    return ["plot", "--spec", spec, "--table", table, "--fit", str(path), "--out", f"{out}.pdf"]


def verify(project, capsys):
    """Exit code and words of `trm results verify`."""
    with contextlib.chdir(project.folder):
        code = main(["results", "verify", str(project.folder / "results")])
    return code, capsys.readouterr().out


def test_sound_results_are_verified(built, capsys):
    code, said = verify(built, capsys)
    assert code == 0
    assert "6 runs, 8 evaluations, 2 tables" in said
    assert "all checksums match" in said


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_not_what_its_name_says_is_refused_and_found(project, tmp_path, capsys, name):
    do, kind = DAMAGED[name]
    path = do(project)
    code, said = verify(project, capsys)
    assert code == 1
    assert str(path) in said.replace(".csv.curves.csv", ".csv")
    assert "delete" in said
    if kind:
        assert main(read(project, kind, path, str(tmp_path / "out"))) == 2
        said = capsys.readouterr().err
        assert (path.parent.name if kind in ("evaluate", "table") else path.stem) in said
        assert "delete" in said
        assert "Traceback" not in said
        assert not list(tmp_path.glob("out*"))


def test_a_fit_and_a_figure_of_an_earlier_table_are_found(project, capsys):
    """The table was made again from other runs, and only it."""
    (path,) = files(project, TABLE)
    info = json.loads((side := path.with_name(f"{path.name}.json")).read_text())
    path.write_text(path.read_text() + "\n")
    info["fingerprint"] = sha256_file(path)
    side.write_text(json.dumps(sealed(info)))
    code, said = verify(project, capsys)
    assert code == 1
    for words in ("fits/data_size", "plots/data_size", "made from an earlier table"):
        assert words in said


def test_an_edit_during_a_run_is_called_one(project, monkeypatch, tmp_path, capsys):
    """The rule asks for the table of the study as it was when the run began."""
    monkeypatch.chdir(project.folder)
    assert main(["table", "--experiment", "data_size-0123abcd", "--out", str(tmp_path / "table.csv")]) == 2
    assert "experiments.yaml was edited during this run" in capsys.readouterr().err


TRAIN_PUZZLES = {"data.train_puzzles": [10, 20, 24]}


def plots(project, name):
    return project.folder / "results/plots" / name


def other_figure(project):
    """One figure with all that belongs to it over another: Snakemake's records are those of the first."""
    for end in (".pdf", ".png", ".json"):
        shutil.copyfile(plots(project, f"batch{end}"), plots(project, f"data_size{end}"))


def figure_of_another_scale(project):
    """As `collect` brings it: whole, sealed, of the right name."""
    path = plots(project, "scaling_laws.json")
    path.write_text(json.dumps(sealed({**json.loads(path.read_text()), "identity": "0" * 64})))


def no_proof(project):
    """Of an earlier version, or copied without its JSON file."""
    plots(project, "batch.json").unlink()


def stale(project, capsys, *words):
    """What Snakemake makes again by the trigger that looks at times only: with the others it makes no less."""
    jobs = project.would_run(*words, "--rerun-triggers", "mtime")
    code, said = verify(project, capsys)
    assert code == 1
    return jobs, said


def test_a_figure_is_current_only_if_it_proves_it(project, capsys):
    """Each of the three fails in a way of its own; one that was not asked for is not drawn again."""
    for change in (other_figure, figure_of_another_scale, no_proof):
        change(project)
    jobs, said = stale(project, capsys, "results/plots/batch.pdf", "data_size")
    assert jobs == {"plot": 2, "data_size": 1}
    for name in ("batch", "data_size", "scaling_laws"):
        assert re.search(rf"{name}.*(delete it and repeat|does not exist: build it first)", said)
    assert stale(project, capsys)[0] == {"plot": 3, "html_report": 1, "all": 1}
    assert "3 figures: missing, or made from something else\n" in project.said


def test_a_report_is_current_only_if_it_proves_it(project, capsys):
    (project.folder / "results/report.html").write_text("the report of another study")
    jobs, said = stale(project, capsys)
    assert jobs == {"html_report": 1, "all": 1}
    assert "1 report: missing, or made from something else\n" in project.said
    assert "delete it and repeat" in said


def test_an_edited_study_draws_again_without_snakemakes_records(project):
    """They are of another folder: a copy of the results, or a new clone."""
    shutil.rmtree(project.folder / ".snakemake")
    project.edit(lambda study: study["experiments"]["data_size"]["grid"]["product"].update(TRAIN_PUZZLES))
    jobs = project.would_run("--rerun-triggers", "mtime")
    assert {"plot": 2, "html_report": 1}.items() <= jobs.items()
    assert "2 figures, 1 report: from these results\n" in project.said
