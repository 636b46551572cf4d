"""Time the tiles of `trm.backends.cuda.tiles` on this GPU and write the fastest into trm/backends/cuda/tiles.json.

python -m benchmarks.gpu_tiles
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.frame import ROOT
from benchmarks.kernels import WORTH_TIMING
from trm.backends.cuda import norm
from trm.backends.cuda.layers import Buffers, Channels, Tokens
from trm.backends.cuda.tiles import LONGEST, OPERATIONS, TABLE, architecture_of, parse
from trm.io import read_json, write_json
from trm.study.dataset_identity import shape as data_shape
from trm.study.flops import inner_width
from trm.study.flops import tokens as token_count
from trm.study.grid import load_study

Shape = tuple[int, int]
WIDTH = 512
"""Of the token mixing."""
ROUNDS = 15


def study_shapes() -> dict[str, list[Shape]]:
    """The shapes of each operation in the study at scale `gpu`, except those that no kernel computes."""
    found: dict[str, set[Shape]] = {operation: set() for operation in OPERATIONS}
    for run in load_study(ROOT / "config" / "experiments.yaml", "gpu").runs.values():
        model = run.config.model
        length = token_count(model, data_shape(run.config.data).seq_len)
        found["channels"].add((model.d_model, inner_width(model, model.d_model)))
        if model.mixer == "mlp" and length <= LONGEST:
            found["tokens"].add((length, inner_width(model, length)))
    found["tokens backward"] = found["tokens"]
    return {operation: sorted(shapes) for operation, shapes in found.items()}


def call_of(
    operation: str, shape: Shape, choice: str, rows: int, device: torch.device, dtype: torch.dtype
) -> Callable[[], Any]:
    """The layer's operation on random inputs with the tile `choice`. ValueError: the tile does not fit the shape."""
    first, second = shape
    table = {operation: {"*": choice}}

    def draw(*sizes: int, std: float = 1.0) -> Tensor:
        return (torch.randn(sizes, device=device) * std).to(dtype)

    def layer(kind: Any, into: Shape, back: Shape) -> Any:
        weights = draw(*into, std=into[1] ** -0.5), draw(*back, std=back[1] ** -0.5)
        grads = tuple(torch.zeros(w.shape, device=device) for w in weights)
        return kind(weights, grads, Buffers(), table)

    if operation == "channels":
        channels = layer(Channels, (2 * second, first), (first, second))
        x, kept = draw(rows * 97, first), draw(rows * 97, 2 * second)
        return lambda: channels.forward(x, kept)
    tile = parse(operation, choice)
    if second % tile["INNER"]:
        raise ValueError(f"the inner width {second} is not a multiple of {tile['INNER']}")
    mixing = layer(Tokens, (2 * second, first), (first, second))
    x, y, grad = (draw(first, rows * WIDTH) for _ in range(3))
    scale = torch.ones(rows * WIDTH, device=device, dtype=norm.scale_dtype(x))
    if operation == "tokens":
        return lambda: mixing.forward(x, y, scale)
    return lambda: mixing.backward(grad, x, y, scale)


def milliseconds(call: Callable[[], Any]) -> float:
    """GPU time of one call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def fastest(operation: str, shape: Shape, rows: int, device: torch.device, dtype: torch.dtype) -> str | None:
    """The tile with the smallest median time, None if none runs; candidates take turns."""
    calls: dict[str, Callable[[], Any]] = {}
    for choice in WORTH_TIMING[operation][architecture_of(device)]:
        try:
            call = call_of(operation, shape, choice, rows, device, dtype)
            call()  # compiles
            calls[choice] = call
        except Exception as error:
            print(f"  {operation} {shape}: {choice} does not run: {str(error).splitlines()[0]}", flush=True)
    times: dict[str, list[float]] = {choice: [] for choice in calls}
    for _ in range(ROUNDS):
        for choice, call in calls.items():
            times[choice].append(milliseconds(call))
    medians = {choice: statistics.median(values) for choice, values in times.items()}
    text = ", ".join(f"{choice} {value:.3f} ms" for choice, value in medians.items())
    print(f"{operation} {'x'.join(map(str, shape))}: {text}", flush=True)
    return min(medians, key=medians.__getitem__, default=None)


def refresh(
    shapes: dict[str, list[Shape]],
    device: torch.device,
    source: str,
    rows: int = 768,
    dtype: torch.dtype = torch.bfloat16,
    path: Path = TABLE,
) -> None:
    """Measure every shape and update the choices for this device's architecture; other entries stay."""
    document = read_json(path)
    entry = document[architecture_of(device)]
    for operation, wanted in shapes.items():
        for shape in wanted:
            if tile := fastest(operation, shape, rows, device, dtype):
                entry[operation]["x".join(map(str, shape))] = tile
    entry["source"] = source
    write_json(path, document)


if __name__ == "__main__":
    name = torch.cuda.get_device_name()
    refresh(
        study_shapes(),
        torch.device("cuda"),
        f"{name}, torch {torch.__version__}, Triton {triton.__version__}",
    )
    print(f"wrote {TABLE}: commit it to use these choices on every machine of this architecture")
