"""The training step compiled for TPU v4 slices without a TPU: time, memory, and where the time goes.

    python -m benchmarks.tpu                                    # everything: about an hour
    python -m benchmarks.tpu --rows 192 --slices v4-8           # a part of it
    python -m benchmarks.tpu --kernels 0 --rows 192 --parts     # XLA's own program, and its parts

The paper's model (d 512, T 3, n 6, 97 tokens) in bfloat16. results/tpu-check caches the numbers of each program, so a
second call prints at once. All numbers are estimates, as docs/tpu.md explains.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import product
from pathlib import Path

from trm.checks.tpu_check.check import check, table
from trm.study.schema import RunConfig
from trm.study.slices import parse_slice

CACHE = Path("results/tpu-check")
MIXERS = {"mlp": {"mixer": "mlp"}, "attention": {"mixer": "attention", "position": "rope"}}


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--mixers", nargs="+", choices=MIXERS, default=list(MIXERS))
    parser.add_argument("--rows", nargs="+", type=int, default=[768, 192, 24], help="rows per chip")
    parser.add_argument("--slices", nargs="+", default=["chip", "v4-8", "v4-64"])
    parser.add_argument("--kernels", choices=("auto", "0"), default="auto", help="0: no kernels")
    parser.add_argument("--remat", choices=("auto", "0", "1"), default="auto")
    parser.add_argument("--parts", action="store_true", help="also print the milliseconds of each part")
    args = parser.parse_args()
    os.environ |= {"TRM_XLA_KERNELS": args.kernels, "TRM_XLA_REMAT": args.remat}
    results = []
    for mixer, rows, name in product(args.mixers, args.rows, args.slices):
        where = parse_slice(name)
        training = {"batch_size": rows * where.chips, "precision": "bfloat16"}
        config = RunConfig.model_validate({"model": MIXERS[mixer], "training": training})
        results.append((f"{mixer} {name}", check(config, where, CACHE)))
        print(f"{mixer}, {rows} rows per chip, {name}: done", file=sys.stderr, flush=True)
    print(table(results, where))
    for name, result in results if args.parts else ():
        parts = sorted(result.parts_ms.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{kind} {ms:.2f}" for kind, ms in parts if ms >= 0.01)
        print(f"{name}, {result.rows_per_chip} rows per chip: {shown}")


if __name__ == "__main__":
    main()
