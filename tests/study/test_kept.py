"""Kept tables whose runs no grid holds any more say so."""

import csv

from tests.shell import ROOT
from trm.pipeline.project import open_project

MARK = "No grid of the present study holds these runs."


def test_tables_of_runs_that_no_grid_holds_are_marked(monkeypatch):
    monkeypatch.chdir(ROOT)
    known = open_project({"study": "config/laptop.yaml"}).runs
    for table in sorted(ROOT.glob("docs/results/*/table.csv")):
        with table.open(newline="") as file:
            held = bool({row["run"] for row in csv.DictReader(file)} & set(known))
        note = table.with_name("note.md")
        assert (MARK in note.read_text() if note.exists() else False) != held, table.parent.name
