"""`python -m trm table`: collect the results of one experiment into a tidy table.

    python -m trm table --experiment experiment.json --out results/tables/data_size.csv

Writes table.csv (one row per run, evaluation and policy), table.csv.json (provenance, missing runs,
halting, traces) and table.csv.curves.csv (thinned histories).
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--experiment", required=True, metavar="JSON", help="TableSpec: JSON text or a file")
    parser.add_argument("--out", required=True, metavar="FILE.csv")
    parser.add_argument(
        "--allow-missing", action="store_true", help="skip runs whose files are missing, and list them"
    )


def run(args: argparse.Namespace) -> int:
    from trm.analysis.specs import TableSpec
    from trm.analysis.tables import collect, save
    from trm.study.reading import config_argument

    spec = config_argument(TableSpec, args.experiment, "--experiment")
    table = collect(spec, allow_missing=args.allow_missing)
    save(table, args.out)
    missing = len(table.info["missing"])
    print(
        f"{args.out}: {table.rows['run'].nunique()} runs" + (f", {missing} files missing" if missing else "")
    )
    return 0
