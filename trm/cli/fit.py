"""`python -m trm fit`: fit scaling laws to a table, with intervals.

python -m trm fit --table results/tables/data_size.csv --spec '{"x": "data.train_puzzles"}' --out fit.json
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table", required=True, nargs="+", action="extend", metavar="FILE.csv", help="one table or several"
    )
    parser.add_argument("--spec", required=True, metavar="JSON", help="FitSpec: JSON text or a file")
    parser.add_argument("--out", required=True, metavar="FILE.json")


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from trm.analysis.fits import fit_table
    from trm.analysis.origin import origin
    from trm.analysis.specs import FitSpec
    from trm.analysis.tables import load, merge
    from trm.io import dump, write_text
    from trm.study.reading import config_argument
    from trm.study.records import sealed

    spec = config_argument(FitSpec, args.spec, "--spec")
    tables = [load(path) for path in args.table]
    if not spec.experiments:  # a figure asks for the fit of its own tables by name
        names = tuple(dict.fromkeys(table.experiment for table in tables))
        spec = spec.model_copy(update={"experiments": names})
    result = fit_table(merge(tables, spec.experiments), spec)
    write_text(args.out, dump(sealed({**result, "name": Path(args.out).stem, **origin(tables)})))
    for group in result["groups"]:
        print(f"{args.out}: {group.get('chosen') or group.get('error') or spec.form}")
    return 0
