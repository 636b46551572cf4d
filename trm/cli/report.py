"""`python -m trm report`: write the report from tables, fits and figures.

    python -m trm report --spec report.json --out results/report.html --pdf results/report.pdf

The HTML file needs nothing beside it and no network. Missing parts are marked in red; they never stop the report.
"""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Options of `report`."""
    parser = subparsers.add_parser(
        "report",
        help="write the report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--spec", required=True, metavar="JSON", help="ReportSpec: JSON text or a file")
    parser.add_argument("--out", required=True, metavar="FILE.html")
    parser.add_argument("--pdf", metavar="FILE.pdf", help="also write a PDF")


def run(args: argparse.Namespace) -> int:
    """Build and write."""
    from trm.analysis.report import build, page
    from trm.analysis.specs import ReportSpec
    from trm.errors import UserError
    from trm.io import config_argument, write_bytes, write_text

    report = build(config_argument(ReportSpec, args.spec, "--spec"))
    write_text(args.out, page(report))
    if args.pdf:
        try:
            from trm.analysis.report.document import document
        except ModuleNotFoundError as error:
            raise UserError(f"--pdf needs the package {error.name}: pip install reportlab pypdf") from None
        write_bytes(args.pdf, document(report))
    states = [item.state for item in report.criteria]
    shown = ", ".join(f"{states.count(state)} {state}" for state in ("met", "not met", "not run"))
    print(
        f"{args.out}: {len(report.sections)} experiments; criteria: {shown}; {len(report.problems)} problems"
    )
    return 0
