"""The report: one self-contained HTML file.

build.py      files -> Report: findings, sections, problems
grids.py      the tables of the report
contents.py   the data classes of a report
verdicts.py   hypotheses: supported, contradicted, undecided
prose.py      sentences that no figure says
page.py       Report -> HTML (template.html, style.css, viewer.js, scrolling.js)
"""

from trm.analysis.report.build import build
from trm.analysis.report.page import page

__all__ = ["build", "page"]
