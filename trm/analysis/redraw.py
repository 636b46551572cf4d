"""Draw the figures of kept results again, without runs, checkpoints or pipeline, and write the page about them.

    python -m trm.analysis.redraw docs/results --out figures --page docs/results.md

Every folder below the first argument that has a `figures.json` (name -> a figure's spec) and a `table.csv`, as a study
writes it, with `table.csv.json` and `table.csv.curves.csv` beside it, gives its figures as OUT/<name>.pdf, .png, .json.
The laws that they show are fitted anew.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trm.errors import UserError


def redraw(results: Path, out: Path) -> list[Path]:
    """Draw everything; returns the PDFs. UserError: where there is nothing to draw, or a table or a spec is not what it
    should be."""
    from trm.analysis.drawing import save, styled
    from trm.analysis.fits import fit_table
    from trm.analysis.kinds import FIGURE, draw
    from trm.analysis.tables import load
    from trm.io import read_json
    from trm.study.reading import parse

    listed = sorted(results.rglob("figures.json"))
    if not listed:
        raise UserError(f"{results} holds no figures.json: give the folder of kept results, docs/results")
    out.mkdir(parents=True, exist_ok=True)
    drawn = []
    for path in listed:
        table = load(str(path.parent / "table.csv"))
        for name, fields in read_json(str(path)).items():
            target = out / f"{name}.pdf"
            spec = parse(FIGURE, fields, f"{path}: {name}")
            fits = [fit_table(table, fit) for fit in spec.fits(table.experiment)]
            with styled(None):
                save(draw(spec, [table], fits), str(target))
            drawn.append(target)
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="also write the page of results, docs/results.md")
    args = parser.parse_args()
    try:
        drawn = redraw(args.results, args.out)
        for path in drawn:
            print(path)
        if args.page:
            from trm.analysis.results_page import results_page
            from trm.io import read_json, write_text

            facts = {path.stem: read_json(path.with_suffix(".json")) for path in drawn}
            write_text(args.page, results_page(args.results, facts))
    except UserError as error:
        print(f"redraw: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
