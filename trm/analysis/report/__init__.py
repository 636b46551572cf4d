"""The report: one self-contained HTML file and a PDF, from tables, fits and figures.

build.py      files -> Report: what each section says
contents.py   the data classes of a report
criteria.py   the study's criteria: met, not met, not run
contrasts.py  paired contrasts over all tables (ablations, the paper's numbers)
page.py       Report -> HTML (template.html, style.css, viewer.js)
document.py   Report -> PDF
"""

from trm.analysis.report.build import build
from trm.analysis.report.page import page

__all__ = ["build", "page"]
