"""`trm checkpoints list|clean` on this disk and in a bucket."""

import pytest

from tests.shell import ROOT
from trm.cli import main
from trm.pipeline.catalogue import RUN_FILES
from trm.pipeline.project import open_project
from trm.results import cleanup
from trm.storage import Store, open_store

STUDY = str(ROOT / "config/rehearsal.yaml")
OTHER = "another-s0-0123abcd"


@pytest.fixture(params=["folder", "bucket"])
def results(request, tmp_path) -> Store:
    """A place of results."""
    return request.getfixturevalue("gcs") if request.param == "bucket" else open_store(tmp_path / "results")


def test_only_what_nobody_needs_is_removed(results, monkeypatch, capsys):
    """An evaluation may go on after its run is finished."""
    project = open_project({"study": STUDY})
    finished, unfinished, *_ = project.runs
    evaluation = next(name for name in project.study.evaluations if name.startswith(f"{finished}/"))
    evaluation = evaluation.removesuffix(".json")
    states = {OTHER: "in use", f"{finished}/evaluation-1": "finished", evaluation: "unfinished"}
    states |= {finished: "finished", unfinished: "unfinished"}
    for name in states:
        results.put_bytes(f"checkpoints/{name}/step-1/state.bin", b"x" * 1000)
    for file in (*RUN_FILES, "evaluation-1.json"):
        results.put_bytes(f"runs/{finished}/{file}", b"x")

    def asked(*words) -> dict[str, str]:
        """Name -> state of what a command prints, without its last line."""
        assert main(["checkpoints", *words, "--study", STUDY, "--root", results.uri]) == 0
        *rows, asked.last = capsys.readouterr().out.splitlines()
        return {row[23:]: row[:11].strip() for row in rows}

    def left() -> set[str]:
        return {info.name.split("/", 1)[1].rpartition("/step")[0] for info in results.list("checkpoints/")}

    assert (asked("list"), asked.last) == (states, "5 kB of 3 runs")
    gone = {finished, f"{finished}/evaluation-1"}
    assert (asked("clean", "--dry-run").keys(), asked.last) == (gone, "would free 2 kB of 1 run")
    assert left() == states.keys()
    assert asked("clean", "--unknown").keys() == gone
    assert left() == states.keys() - gone
    monkeypatch.setattr(cleanup, "QUIET_SECONDS", -1.0)
    assert asked("clean").keys() == set()
    assert asked("clean", "--unknown") == {OTHER: "unknown"}
    assert left() == {evaluation, unfinished}
    assert len(list(results.list("runs/"))) == len(RUN_FILES) + 1
    if not results.uri.startswith("gs"):
        assert [path.name for path in (ROOT / results.uri / "checkpoints").glob(f"{OTHER}*")] == []
