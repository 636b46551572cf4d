"""What a training step must at least do on a GPU: operations, bytes, and the time that neither lets it go below.

    python -m benchmarks.floors                    # the paper's two models, batch 768, one H200
    python -m benchmarks.floors --batch 256 --flops 990e12 --bytes 3.35e12 --markdown

Bytes are those of activations and weights in bfloat16, each input of an operation read once and each output written
once. `kernels` counts the operations as trm/network/cuda cuts them; `separate` writes every intermediate result out, as
operations started one by one do. An operation's floor is the larger of its two times; floors of operations add up.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

from trm.study.flops import forward_flops, inner_width, step_flops, tokens
from trm.study.schema import ModelConfig

FLOPS, BYTES = 790e12, 4.3e12
"""Measured on one H200: bfloat16 products of 8192 x 8192 on random data, a device-to-device copy (read + written)."""
WIDE, NARROW = 4, 2  # bytes of a float32 and of a bfloat16


class Work(NamedTuple):
    """One operation on the whole batch."""

    name: str
    flops: float
    bytes: float

    def seconds(self, flops: float = FLOPS, bandwidth: float = BYTES) -> float:
        """The operation's floor."""
        return max(self.flops / flops, self.bytes / bandwidth)


class Sizes(NamedTuple):
    """Elements: x a state, t and c the inner layers of token and channel mixing, and the operations between."""

    x: float
    t: float
    c: float
    token: float
    """FLOPs of one of the token mixing's three equal products (attention: one D x D product)."""
    channel: float
    scores: float


def sizes(model: ModelConfig, seq_len: int, batch: int) -> Sizes:
    """The sizes of one block on a batch."""
    length, width = tokens(model, seq_len), model.d_model
    inner, token_inner = inner_width(model, width), inner_width(model, length)
    rows = length * batch
    token = 2.0 * token_inner * length * width * batch if model.mixer == "mlp" else 2.0 * width * width * rows
    scores = 2.0 * 2 * length * length * width * batch
    return Sizes(
        rows * width, token_inner * batch * width, rows * inner, token, 2.0 * inner * width * rows, scores
    )


def forward(model: ModelConfig, seq_len: int, batch: int, separate: bool, keep: bool) -> list[Work]:
    """One block application; `keep`: backward's activations are written too."""
    s = sizes(model, seq_len, batch)
    norm = [Work("residual, norm", 0, 3 * s.x)]
    if separate:
        norm = [Work("residual", 0, 3 * s.x), Work("norm", 0, 2 * s.x)]
        gates = [Work("SiLU", 0, 2 * s.c), Work("gate's product", 0, 3 * s.c)]
        token_gates = [Work("token SiLU", 0, 2 * s.t), Work("token gate's product", 0, 3 * s.t)]
    else:
        gates, token_gates = [], []
    up = Work("channel gate, up", 2 * s.channel, s.x + (2 * s.c if separate else s.c + 2 * s.c * keep))
    channels = [up, *gates, Work("channel down", s.channel, s.c + s.x), *norm]
    if model.mixer == "attention":
        turn = [Work("rotary positions", 0, 4 * s.x)] if separate and model.position == "rope" else []
        mixing = [
            Work("attention q, k, v", 3 * s.token, 4 * s.x),
            *turn,
            Work("attention", s.scores, 4 * s.x),
            Work("attention out", s.token, 2 * s.x),
            *norm,
        ]
    elif separate:
        mixing = [
            Work("token gate, up", 2 * s.token, s.x + 2 * s.t),
            *token_gates,
            Work("token down", s.token, s.t + s.x),
            *norm,
            Work("transposes", 0, 4 * s.x),
        ]
    else:
        mixing = [Work("token mixing with norm", 3 * s.token, 2 * s.x)]
    return [Work(w.name, w.flops, NARROW * w.bytes) for w in mixing + channels]


def backward(model: ModelConfig, seq_len: int, batch: int) -> list[Work]:
    """One block application's gradients as trm/network/cuda computes them (the token projection once more)."""
    s = sizes(model, seq_len, batch)
    norm = Work("norm backward", 0, 3 * s.x)
    channels = [
        norm,
        Work("channel down: input", s.channel, s.x + s.c),
        Work("gate backward", 0, 6 * s.c),
        Work("channel down: weights", s.channel, s.x + s.c),
        Work("channel gate, up: weights", 2 * s.channel, 2 * s.c + s.x),
        Work("channel gate, up: input", 2 * s.channel, 2 * s.c + 2 * s.x),
    ]
    if model.mixer == "attention":
        mixing = [
            norm,
            Work("attention out: input", s.token, 2 * s.x),
            Work("attention out: weights", s.token, 2 * s.x),
            Work("attention backward", 2.5 * s.scores, 7 * s.x),
            Work("attention q, k, v: weights", 3 * s.token, 4 * s.x),
            Work("attention q, k, v: input", 3 * s.token, 5 * s.x),
        ]
    else:
        mixing = [
            Work("token mixing backward", 5 * s.token, 5 * s.x + 3 * s.t),
            Work("token down: weights", s.token, s.x + s.t),
            Work("token gate, up: weights", 2 * s.token, s.x + 2 * s.t),
        ]
    return [Work(w.name, w.flops, NARROW * w.bytes) for w in channels + mixing]


def total(parts: list[Work], name: str = "sum", times: float = 1.0) -> Work:
    """The parts' sum, taken `times`."""
    return Work(name, times * sum(w.flops for w in parts), times * sum(w.bytes for w in parts))


def floor(parts: list[Work], flops: float = FLOPS, bandwidth: float = BYTES) -> float:
    """Seconds that the parts take at least, one after the other."""
    return sum(part.seconds(flops, bandwidth) for part in parts)


def report(
    model: ModelConfig, seq_len: int, vocab: int, batch: int, flops: float, bandwidth: float
) -> list[list[str]]:
    """The table's rows: name, GFLOP, MB, milliseconds."""
    rows = []

    def add(name: str, parts: list[Work], times: float = 1.0) -> float:
        whole, seconds = total(parts, times=times), times * floor(parts, flops, bandwidth)
        rows.append([name, f"{whole.flops / 1e9:,.0f}", f"{whole.bytes / 1e6:,.0f}", f"{1e3 * seconds:.3f}"])
        return seconds

    kernels = forward(model, seq_len, batch, separate=False, keep=False)
    for part in kernels:
        add(part.name, [part])
    add("one block forward, no gradient", kernels)
    add("the same, every operation separate", forward(model, seq_len, batch, separate=True, keep=False))
    kept, back = forward(model, seq_len, batch, separate=False, keep=True), backward(model, seq_len, batch)
    add("one block forward, kept for backward", kept)
    add("one block backward", back)
    calls = model.l_cycles + 1
    free, graded = (model.h_cycles - 1) * calls * model.layers, calls * model.layers
    parts = kernels * free + (kept + back) * graded
    seconds = add("training step (blocks)", parts)
    matmuls = step_flops(model, seq_len, vocab) * batch
    rows.append(["training step, by definition", f"{matmuls / 1e9:,.0f}", "", f"{1e3 * matmuls / flops:.3f}"])
    rows.append(["rows/s at most (blocks)", "", "", f"{batch / seconds:,.0f}"])
    evaluation = 16 * (free + graded) * floor(kernels, flops, bandwidth)
    definition = 16 * forward_flops(model, seq_len, vocab) * batch / flops
    rows.append(
        ["evaluation of a batch, 16 steps", "", "", f"{1e3 * evaluation:.1f} ({1e3 * definition:.1f})"]
    )
    full = 422_786 / batch * evaluation / 60
    rows.append(["422,786 puzzles, 16 steps, minutes", "", "", f"{full:.2f}"])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=768)
    parser.add_argument("--flops", type=float, default=FLOPS, help="FLOP/s of matrix products")
    parser.add_argument("--bytes", type=float, default=BYTES, help="bytes/s of device memory")
    parser.add_argument("--markdown", action="store_true", help="as a table for a page")
    args = parser.parse_args()
    for name, fields in (("MLP", {}), ("ATT", {"mixer": "attention", "position": "rope"})):
        table = report(ModelConfig(**fields), 81, 11, args.batch, args.flops, args.bytes)
        head = [f"{name}, batch {args.batch}", "GFLOP", "MB", "ms at least"]
        if args.markdown:
            print(
                "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---", "---:", "---:", "---:"], *table])
            )
        else:
            print("\n".join(f"{a:40}{b:>12}{c:>10}{d:>18}" for a, b, c, d in [head, *table]))
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
