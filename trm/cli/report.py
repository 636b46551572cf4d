"""`python -m trm report`: write the report from tables, fits and figures.

    python -m trm report --spec report.json --out results/report.html

The HTML file is self-contained and needs no network. Missing parts are marked in red; they never stop the report.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spec", required=True, metavar="JSON", help="ReportSpec: JSON text or a file")
    parser.add_argument("--out", required=True, metavar="FILE.html")


def run(args: argparse.Namespace) -> int:
    from trm.analysis.report import build, page
    from trm.analysis.specs import ReportSpec
    from trm.analysis.words import count
    from trm.io import write_text
    from trm.study.reading import config_argument

    report = build(config_argument(ReportSpec, args.spec, "--spec"))
    write_text(args.out, page(report))
    problems = count(len(report.problems), "problem")
    print(f"{args.out}: {count(len(report.sections), 'experiment')}, {problems}")
    for finding in report.findings:
        print(f"- {finding.text}")
    return 0
