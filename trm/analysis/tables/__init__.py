"""Result files of one experiment -> table.csv (rows), table.csv.json (provenance), table.csv.curves.csv (histories)."""

from trm.analysis.tables.collect import collect
from trm.analysis.tables.store import Table, compact, load, merge, save

__all__ = ["Table", "collect", "compact", "load", "merge", "save"]
