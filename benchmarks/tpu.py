"""The training step compiled for TPU v4 slices without a TPU: time, memory, and where the time goes.

    python -m benchmarks.tpu                                    # everything: more than an hour
    python -m benchmarks.tpu --rows 192 --slices v4-8           # a part of it
    python -m benchmarks.tpu --kernels 0 --rows 192 --parts     # XLA's own program, and its parts

The paper's model (d 512, T 3, n 6, 97 tokens) in bfloat16; `--tiny`: d 128, one block application, to test this script.
All numbers are estimates, as docs/tpu.md explains, and the plan reads none of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import product

from benchmarks.tpu_cycles import CLOCK_HZ
from trm.checks.tpu_check.check import ROOT, sizes_of, tpu_python
from trm.study.flops import step_flops
from trm.study.schema import RunConfig
from trm.study.slices import V4, parse_slice

LINK_BYTES_PER_SECOND = 100e9
"""Assumed all-reduce bandwidth of a chip's links; not measured. Each byte is sent twice."""
MIXERS = {"mlp": {"mixer": "mlp"}, "attention": {"mixer": "attention", "position": "rope"}}
TINY = {"d_model": 128, "layers": 1, "h_cycles": 1, "l_cycles": 1}


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--mixers", nargs="+", choices=MIXERS, default=list(MIXERS))
    parser.add_argument("--rows", nargs="+", type=int, default=[768, 192, 24], help="rows per chip")
    parser.add_argument("--slices", nargs="+", default=["chip", "v4-8", "v4-64"])
    parser.add_argument("--kernels", choices=("auto", "0"), default="auto", help="0: no kernels")
    parser.add_argument("--remat", choices=("auto", "0", "1"), default="auto")
    parser.add_argument("--parts", action="store_true", help="also print the milliseconds of each part")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ |= {"TRM_XLA_KERNELS": args.kernels, "TRM_XLA_REMAT": args.remat, "PYTHONPATH": str(ROOT)}
    print(
        "| mixer | slice | rows a chip | GiB | remat | ms | utilisation | sent |\n|---|---|---|---|---|---|---|---|"
    )
    for mixer, rows, name in product(args.mixers, args.rows, args.slices):
        where = parse_slice(name)
        model = MIXERS[mixer] | (TINY if args.tiny else {})
        training = {"batch_size": rows * where.chips, "precision": "bfloat16"}
        config = RunConfig.model_validate({"model": model, "training": training})
        sizes = sizes_of(config)
        request = {"config": config.model_dump(mode="json"), "puzzles": list(sizes), "slice": name}
        command = [tpu_python(), "-m", "benchmarks.tpu_cycles"]
        done = subprocess.run(command, input=json.dumps(request), stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{mixer}, {rows} rows per chip, {name}: the program could not be compiled (above)")
        found = json.loads(done.stdout.strip().splitlines()[-1])
        cells = [mixer, name, str(rows), f"{found['gib']:.2f}", "yes" if found["remat"] else "no"]
        if found["fits"]:
            milliseconds = {kind: cycles / CLOCK_HZ * 1e3 for kind, cycles in found["cycles"].items()}
            ms = sum(milliseconds.values()) + 2e3 * sum(found["sent"].values()) / LINK_BYTES_PER_SECOND
            flops = step_flops(config.model, sizes.seq_len, sizes.vocab) * rows
            sent = ", ".join(f"{kind} {count / 2**20:.1f} MiB" for kind, count in found["sent"].items())
            cells += [f"{ms:.2f}", f"{100 * flops / (ms / 1e3) / V4.peak_flops:.0f} %", sent or "nothing"]
        else:
            cells += ["does not fit", "", ""]
        print("| " + " | ".join(cells) + " |", flush=True)
        if args.parts and found["fits"]:
            parts = sorted(milliseconds.items(), key=lambda item: -item[1])
            print("  " + ", ".join(f"{kind} {part:.2f}" for kind, part in parts if part >= 0.01), flush=True)


if __name__ == "__main__":
    main()
