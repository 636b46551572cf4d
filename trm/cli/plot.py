"""`python -m trm plot`: draw one figure from tables and fits.

    python -m trm plot --spec '{"kind": "law", "x": "data.train_puzzles"}' --table t.csv --fit f.json --out
    figure.pdf

Writes the PDF, a PNG and a JSON file (caption, sentence, numbers). It never refits.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spec", required=True, metavar="JSON", help="a figure's spec: JSON text or a file")
    parser.add_argument("--table", required=True, nargs="+", action="extend", metavar="FILE.csv")
    parser.add_argument("--fit", nargs="*", action="extend", default=[], metavar="FILE.json")
    parser.add_argument("--style", metavar="FILE.mplstyle", help="default: config/figures.mplstyle")
    parser.add_argument("--identity", default="", help="of the figure in its study (given by the rule)")
    parser.add_argument("--out", required=True, metavar="FILE.pdf")


def run(args: argparse.Namespace) -> int:
    from trm.analysis.drawing import save, styled
    from trm.analysis.kinds import FIGURE, draw
    from trm.analysis.origin import origin, read_fit
    from trm.analysis.tables import load
    from trm.errors import UserError
    from trm.study.reading import config_argument

    if not args.out.endswith(".pdf"):
        raise UserError(f"--out {args.out} must end in .pdf; the PNG and the JSON are written beside it")
    spec = config_argument(FIGURE, args.spec, "--spec")
    tables = [load(path) for path in args.table]
    fits = [read_fit(path, tables) for path in args.fit]
    with styled(args.style):
        drawing = draw(spec, tables, fits)
        save(drawing, args.out, {**origin(tables), "identity": args.identity})
    print(f"{args.out}: {drawing.sentence}")
    return 0
