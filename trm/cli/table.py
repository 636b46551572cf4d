"""`python -m trm table`: collect the results of one experiment into a tidy table.

    python -m trm table --study config/laptop.yaml --experiment data_size --out data_size.csv

Writes table.csv (one row per run, evaluation and policy), table.csv.json (provenance, missing runs,
halting, traces) and table.csv.curves.csv (thinned histories).
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trm.cli.study import add_study_options

    add_study_options(parser)
    parser.add_argument("--root", default="", help="put before the runs' folders (given by the rule)")
    parser.add_argument(
        "--experiment",
        required=True,
        metavar="NAME",
        help="an experiment of the study; or, without a study, a TableSpec as JSON text or a .json file",
    )
    parser.add_argument("--out", required=True, metavar="FILE.csv")
    parser.add_argument(
        "--allow-missing", action="store_true", help="skip runs whose files are missing, and list them"
    )


def run(args: argparse.Namespace) -> int:
    import re

    from trm.analysis.specs import TableSpec
    from trm.analysis.tables import collect, save
    from trm.cli.study import project_of
    from trm.study.reading import config_argument, parse

    if re.fullmatch(r"[\w-]+", args.experiment):
        project = project_of(args)
        document = project.catalogue.table_spec(args.experiment, args.root)
        spec = parse(TableSpec, document, project.settings.study)
    else:
        spec = config_argument(TableSpec, args.experiment, "--experiment")
    table = collect(spec, allow_missing=args.allow_missing)
    save(table, args.out)
    missing = len(table.info["missing"])
    print(
        f"{args.out}: {table.rows['run'].nunique()} runs" + (f", {missing} files missing" if missing else "")
    )
    return 0
