"""Kept tables whose runs no grid holds any more say so."""

import csv

from tests.shell import ROOT
from trm.pipeline.project import open_project


def test_tables_of_runs_that_no_grid_holds_are_marked(monkeypatch):
    monkeypatch.chdir(ROOT)
    known = set(open_project({"study": "config/laptop.yaml"}).runs)
    for table in sorted(ROOT.glob("docs/results/*/table.csv")):
        held = bool({row["run"] for row in csv.DictReader(table.read_text().splitlines())} & known)
        note = table.with_name("note.md")
        marked = note.exists() and "No grid of the present study holds these runs." in note.read_text()
        assert marked != held, table.parent.name
