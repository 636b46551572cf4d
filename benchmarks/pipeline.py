"""Wall and CPU seconds to parse the shipped study, and one with many grid points, and to run `snakemake -n` on them.

python -m benchmarks.pipeline [--points 5000] [--rounds 3] [--json out.json]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import yaml

from benchmarks.frame import ROOT, finish, parser, spread, timed

PARSE = (
    "from trm.pipeline.project import open_project; p = open_project({}); "
    "p.check_figures(); p.check_sizes(); p.report_identity"
)
COMMANDS = {
    "parse": [sys.executable, "-c", PARSE],
    "snakemake -n -q": [sys.executable, "-m", "snakemake", "--profile", "profiles/local", "-n", "-q"],
}


def project(folder: Path, points: int) -> None:
    """Copy the pipeline with a study of one experiment with `points` grid points; 0: the shipped study."""
    for name in ("Snakefile", "workflow", "profiles", "config", "envs"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)
    if points:
        document = yaml.safe_load((folder / "config/laptop.yaml").read_text())
        for shared in ("extends", "report", "study", "figures"):
            document.pop(shared, None)
        document["scales"]["laptop"]["seeds"] = [0]
        grid = {"product": {"training.steps": list(range(100, 100 + points))}}
        figures = [{"kind": "law", "x": "train_flops"}]
        document["experiments"] = {"many": {"question": "Many?", "grid": grid, "figures": figures}}
        (folder / "config/laptop.yaml").write_text(yaml.safe_dump(document))


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--points", type=int, default=5000)
    args = options.parse_args()
    rows = []
    for points in (0, args.points):
        study = f"{points} points" if points else "shipped study"
        with tempfile.TemporaryDirectory() as folder:
            project(Path(folder), points)
            for name, command in COMMANDS.items():
                walls, processor = zip(
                    *(timed(command, Path(folder)) for _ in range(args.rounds)), strict=True
                )
                cpu = spread(processor)["median"]
                rows.append({"study": study, "command": name, **spread(walls), "CPU s": cpu})
    finish(rows, args.json)


if __name__ == "__main__":
    main()
