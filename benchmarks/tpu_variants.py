"""The training step compiled for TPU v4 chips, with no TPU: time, memory and where the time goes, as Markdown.

    python -m benchmarks.tpu_variants                                    # all of docs/tpu.md's table: about an hour
    python -m benchmarks.tpu_variants --rows 192 --slices v4-8           # some of it
    python -m benchmarks.tpu_variants --kernels 0 --rows 192 --parts     # XLA's own program, and its parts

The paper's model (d 512, T 3, n 6, 97 tokens) in bfloat16. Programs are kept in results/tpu-check by content, so a
second call prints at once. Estimates, as docs/tpu.md explains; nothing here was measured on a TPU.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from trm.checks.tpu_check.check import Result, check
from trm.study.schema import RunConfig
from trm.study.slices import parse_slice

MIXERS = {"mlp": {"mixer": "mlp"}, "attention": {"mixer": "attention", "position": "rope"}}


def config(mixer: str, rows: int) -> RunConfig:
    """The paper's recipe with `rows` rows in a batch."""
    training = {"batch_size": rows, "precision": "bfloat16"}
    return RunConfig.model_validate({"model": MIXERS[mixer], "training": training})


def line(mixer: str, rows: int, where: str, result: Result) -> str:
    """A row of the table."""
    sent = ", ".join(f"{kind} {item['bytes'] / 2**20:.0f} MiB" for kind, item in result.collectives.items())
    if not result.fits:
        return f"| {mixer} | {rows} | {where} | does not fit | {result.needs_gib:.1f} | | | |"
    return (
        f"| {mixer} | {rows} | {where} | {result.step_ms:.1f} | {result.peak_gib:.2f} | "
        f"{100 * result.utilisation:.0f} % | {result.host_ms:.1f} | {sent or '-'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mixers", nargs="+", choices=MIXERS, default=list(MIXERS))
    parser.add_argument("--rows", nargs="+", type=int, default=[768, 192, 24], help="rows of a batch a chip")
    parser.add_argument("--slices", nargs="+", default=["chip", "v4-8", "v4-64"])
    parser.add_argument("--kernels", choices=("auto", "0"), default="auto", help="0: without the kernels")
    parser.add_argument("--remat", choices=("auto", "0", "1"), default="auto")
    parser.add_argument("--parts", action="store_true", help="also the milliseconds of each part")
    parser.add_argument("--cache", type=Path, default=Path("results/tpu-check"))
    args = parser.parse_args()
    os.environ |= {"TRM_XLA_KERNELS": args.kernels, "TRM_XLA_REMAT": args.remat}
    print("| mixer | rows a chip | slice | ms | peak GiB | utilisation | host ms | sent |")
    print("|---|---|---|---|---|---|---|---|")
    for mixer in args.mixers:
        for rows in args.rows:
            for name in args.slices:
                where = parse_slice(name)
                result = check(config(mixer, rows * where.chips), where, "train", args.cache)
                print(line(mixer, rows, name, result), flush=True)
                if args.parts:
                    parts = sorted(result.parts_ms.items(), key=lambda item: -item[1])
                    print(
                        "  " + ", ".join(f"{kind} {ms:.2f}" for kind, ms in parts if ms >= 0.01), flush=True
                    )


if __name__ == "__main__":
    main()
