"""The report: one self-contained HTML file, and a PDF printed from it.

build.py      files -> Report: findings, sections, problems
grids.py      the tables of the report
contents.py   the data classes of a report
criteria.py   the study's criteria: met, not met, not run
contrasts.py  paired contrasts over all tables (ablations, the paper's numbers)
page.py       Report -> HTML (template.html, style.css, viewer.js, scrolling.js)
printing.py   HTML -> PDF
"""

from trm.analysis.report.build import build
from trm.analysis.report.page import page
from trm.analysis.report.printing import print_pdf

__all__ = ["build", "page", "print_pdf"]
