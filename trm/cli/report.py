"""`python -m trm report`: write the report from tables, fits and figures.

    python -m trm report --spec report.json --out results/report.html --pdf results/report.pdf

The HTML file is self-contained and needs no network. Missing parts are marked in red; they never stop the report.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spec", required=True, metavar="JSON", help="ReportSpec: JSON text or a file")
    parser.add_argument("--out", required=True, metavar="FILE.html")
    parser.add_argument(
        "--pdf", metavar="FILE.pdf", help="also print a PDF, if Chromium or Chrome is installed"
    )


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from trm.analysis.report import build, page, print_pdf
    from trm.analysis.specs import ReportSpec
    from trm.analysis.words import count
    from trm.errors import UserError
    from trm.io import write_text
    from trm.study.reading import config_argument

    report = build(config_argument(ReportSpec, args.spec, "--spec"))
    write_text(args.out, page(report))
    problems = count(len(report.problems), "problem")
    print(f"{args.out}: {count(len(report.sections), 'experiment')}, {problems}")
    for finding in report.findings:
        print(f"- {finding.text}")
    if args.pdf:
        Path(args.pdf).unlink(missing_ok=True)  # an older report's PDF must not pass for this one's
        try:
            print(f"{args.pdf}: printed by {print_pdf(page(report, paper=True), args.pdf)}")
        except UserError as error:
            print(f"{args.pdf}: {error}")
    return 0
