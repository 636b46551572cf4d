"""`python -m trm report`: write the report from tables, fits and figures.

    python -m trm report --study config/laptop.yaml --out page.html
    python -m trm report --spec report.json --out page.html

The HTML file is self-contained and needs no network. Missing parts are marked in red; they never stop the report.
The JSON file beside it holds what the report was made from.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trm.cli.study import add_study_options

    add_study_options(parser)
    parser.add_argument(
        "--spec", metavar="JSON", help="in place of a study, a ReportSpec: JSON text or a file"
    )
    parser.add_argument(
        "--partial",
        nargs="*",
        metavar="TABLE.csv",
        help="the results so far of these tables (given by the pipeline)",
    )
    parser.add_argument("--out", required=True, metavar="FILE.html")


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from trm.analysis.report import build, page
    from trm.analysis.specs import ReportSpec
    from trm.analysis.words import count
    from trm.cli.study import project_of
    from trm.errors import UserError
    from trm.io import dump, sha256_file, write_text
    from trm.pipeline.reporting import partial_spec, report_spec
    from trm.study.reading import config_argument, parse
    from trm.study.records import sealed

    out = Path(args.out)
    if out.suffix != ".html":
        raise UserError(f"--out {out} must end in .html; its JSON file is written beside it")
    if args.spec:
        spec, made_from = config_argument(ReportSpec, args.spec, "--spec"), {}
    else:
        project = project_of(args)
        so_far = args.partial is not None
        document = partial_spec(project, set(args.partial)) if so_far else report_spec(project)
        if so_far and not document["experiments"]:
            raise UserError("no partial report: no run of these tables has finished or failed")
        spec = parse(ReportSpec, document, project.settings.study)
        made_from = {"identity": project.report_identity, "options": project.options}
    report = build(spec)
    out.with_suffix(".json").unlink(missing_ok=True)  # it never outlives the page that it describes
    write_text(out, page(report))
    stamp = {"name": out.stem, "sha256": {out.suffix: sha256_file(out)}, **made_from}
    write_text(out.with_suffix(".json"), dump(sealed(stamp)))
    problems = count(len(report.problems), "problem")
    print(f"{out}: {count(len(report.sections), 'experiment')}, {problems}")
    for finding in report.findings:
        print(f"- {finding.text}")
    return 0
