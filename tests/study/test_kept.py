"""Kept tables whose runs no grid holds any more say so."""

import csv

from tests.shell import ROOT
from trm.pipeline.project import open_project

MARK = "No grid of the present study holds these runs."
COLLECTIONS = (
    "gs://b/17_clue.csv#sha256=24cec1dfae0afddade6560dcb7c6e8c30243601384665bafb76561c1d4746525",
    "gs://b/forum.csv#sha256=57c7876389b3b3ff1e0d2ce10a75afb85afb738ad64f2d1f917fc2706261e4d9",
)


def test_tables_of_runs_that_no_grid_holds_are_marked(monkeypatch):
    monkeypatch.chdir(ROOT)
    studies = [{"study": "config/laptop.yaml"}]
    studies += [{"study": "config/workstation.yaml", "sudoku_csv": file} for file in COLLECTIONS]
    known = {run for study in studies for run in open_project(study).runs}
    for table in sorted(ROOT.glob("docs/results/*/table.csv")):
        with table.open(newline="") as file:
            held = bool({row["run"] for row in csv.DictReader(file)} & known)
        note = table.with_name("note.md")
        assert (MARK in note.read_text() if note.exists() else False) != held, table.parent.name
