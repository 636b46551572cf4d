"""`python -m trm play`: write a page on which a visitor watches the trained models solve Sudoku.

    python -m trm play --out results/play.html
    python -m trm play --models FOLDER --out play.html

The page holds the weights of the models and computes in the browser; it needs no server and no network.
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("results/play.html"), metavar="FILE.html")
    parser.add_argument("--models", type=Path, help="folder of model folders (default: models/)")


def run(args: argparse.Namespace) -> int:
    from trm.io import write_text
    from trm.play import models_folder
    from trm.play.page import page

    text = page(args.models or models_folder())
    write_text(args.out, text)
    print(f"{args.out}: {len(text) / 1e6:.2f} MB; open it in a browser")
    return 0
