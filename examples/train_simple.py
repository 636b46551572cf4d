"""The algorithm on one page: trains a Tiny Recursive Model (arXiv 2510.04871) on Sudoku with plain PyTorch.

    CONFIG='{"data": {"source": "generate", "box_rows": 2, "box_cols": 3, "train_puzzles": 1000, "test_puzzles": 1000}}'
    python -m trm data source --config "$CONFIG" --out /tmp/source
    python -m trm data build --config "$CONFIG" --source /tmp/source --out /tmp/sudoku6
    python examples/train_simple.py /tmp/sudoku6 /tmp/weights.safetensors      # a few minutes on a CPU

Of the project it uses trm/model/definition.py alone. The engine (trm/training) does the same with flat buffers,
kernels, several workers and restarts; a test finds equal losses. The file is like that of any run: `python -m trm solve
PUZZLE --model /tmp/weights.safetensors`.
"""

import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from trm.model import definition

MODEL = SimpleNamespace(
    mixer="mlp", position="none", d_model=64, heads=4, layers=1, h_cycles=1, l_cycles=2, halt_max_steps=8,
    puzzle_tokens=1, expansion=1.0, multiple=8,
)  # fmt: skip
TRAINING = SimpleNamespace(
    batch_size=64, steps=2000, lr=1e-2, lr_min_ratio=0.1, warmup_steps=50, beta1=0.9, beta2=0.95, weight_decay=0.1,
    puzzle_weight_decay=0.1, ema=0.99, exploration=0.1,
)  # fmt: skip


def new_weights(model, cells, vocab):
    """Truncated normals with deviation 1 / sqrt(fan-in); the halt head starts at "not yet". For the MLP mixer."""
    width = model.d_model
    shapes = {"embed.weight": (vocab, width), "head.weight": (vocab, width)}
    for i in range(model.layers):
        for name, size in (("token_mlp", cells + model.puzzle_tokens), ("channel_mlp", width)):
            inner = math.ceil(round(model.expansion * size * 2 / 3) / model.multiple) * model.multiple
            shapes[f"blocks.{i}.{name}.gate_up"] = 2 * inner, size
            shapes[f"blocks.{i}.{name}.down"] = size, inner
    w = {name: torch.randn(shape).fmod(2) * shape[1] ** -0.5 for name, shape in shapes.items()}
    return w | {"halt.weight": torch.zeros(2, width), "halt.bias": torch.full((2,), -5.0)}


def log_stablemax(x):  # softmax with x + 1 and 1 / (1 - x) in place of exp
    s = torch.where(x < 0, 1 / (1 - x.clamp(max=0)), 1 + x.clamp(min=0))
    return (s / s.sum(-1, keepdim=True)).log()


def train(model, training, w, starts, ids, batches):
    """Train the weights `w` in place; yield each step's loss, the averaged weights and the puzzle table [ids, D].

    `starts`: the vectors [D] with which z_H and z_L begin. `batches` yields questions, answers [B, S], rows of the
    puzzle table [B], least number of supervision steps [B].
    """
    rope, B = model.position == "rope", training.batch_size
    arch = definition.Architecture(model.layers, model.heads, model.puzzle_tokens, rope, torch.float32)
    w = {name: tensor.requires_grad_() for name, tensor in w.items()}
    m, v, ema = ({name: torch.zeros_like(tensor) for name, tensor in w.items()} for _ in range(3))
    table = torch.zeros(ids, model.d_model, requires_grad=True)  # one vector per puzzle
    taken, halted, slots = torch.zeros(B), torch.ones(B, dtype=torch.bool), None
    z_H = z_L = torch.zeros(1)
    for step in range(1, training.steps + 1):
        # Deep supervision: a slot keeps its puzzle and its states until it halts, then takes a new one.
        *incoming, least = next(batches)
        fresh = [halted.view(-1, *[1] * (new.ndim - 1)) for new in incoming]
        slots = [torch.where(*slot) for slot in zip(fresh, incoming, slots or incoming)]
        questions, answers, rows = slots
        z_H, z_L = (torch.where(halted[:, None], new, z.detach()) for new, z in zip(starts, (z_H, z_L)))
        taken = torch.where(halted, 0, taken) + 1
        # h_cycles rounds, of which the last has gradients: z_L is refined l_cycles times, then z_H once.
        z_H, z_L, logits, halt = definition.supervision_step(
            z_H, z_L, questions, table[rows.long()], w, arch, model.h_cycles, model.l_cycles
        )
        logits, labels = logits.transpose(0, 1), answers.long()
        cross_entropy = F.nll_loss(log_stablemax(logits).flatten(0, 1), labels.flatten())
        exact = (logits.argmax(-1) == labels).all(1)
        # The halt head learns whether the answer is right; exploration asks for a least number of steps.
        loss = cross_entropy + 0.5 * F.binary_cross_entropy_with_logits(halt, exact.float())
        halted = (taken >= model.halt_max_steps) | ((halt > 0) & (taken >= least))
        loss.backward()
        # Linear warm-up and a cosine; Adam-atan2 with weight decay; the sign of the gradient for seen puzzles.
        progress = max(0.0, (step - training.warmup_steps) / max(1, training.steps - training.warmup_steps))
        cosine = (
            0.5 * (1 + math.cos(math.pi * progress)) * (1 - training.lr_min_ratio) + training.lr_min_ratio
        )
        lr = training.lr * (step / training.warmup_steps if step < training.warmup_steps else cosine)
        b1, b2 = training.beta1, training.beta2
        with torch.no_grad():
            for name, p in w.items():
                m[name].lerp_(p.grad, 1 - b1)
                v[name].lerp_(p.grad.square(), 1 - b2)
                direction = torch.atan2(m[name], (v[name] / (1 - b2**step)).sqrt())
                p.mul_(1 - lr * training.weight_decay).sub_(direction, alpha=lr / (1 - b1**step))
                ema[name].lerp_(p, 1 - training.ema)
                p.grad = None
            seen = torch.zeros(ids, dtype=torch.bool).index_fill(0, rows.long(), True)[:, None]
            moved = table * (1 - lr * training.puzzle_weight_decay) - lr * table.grad.sign()
            table.copy_(torch.where(seen, moved, table))
            table.grad = None
        averaged = {name: mean / (1 - training.ema**step) for name, mean in ema.items()}  # is evaluated
        yield loss.item(), averaged, table.detach()


def random_batches(questions, answers, model, training):
    """Yield random puzzles, their digits permuted anew each time (symbol 0 is padding, 1 a blank cell)."""
    B, digits = training.batch_size, int(answers.max()) - 1
    while True:
        rows, fixed = torch.randint(len(questions), (B,)), torch.arange(2).expand(B, 2)
        symbols = torch.cat((fixed, torch.rand(B, digits).argsort(1) + 2), dim=1)
        least = torch.randint(2, model.halt_max_steps + 1, (B,)) * (torch.rand(B) < training.exploration)
        moved = (symbols.gather(1, grids[rows].long()) for grids in (questions, answers))
        yield *moved, torch.zeros(B, dtype=torch.int32), least


def main(folder, out):
    about = json.loads(Path(folder, "test/dataset.json").read_text())
    names = [f"{split}/all__{kind}.npy" for split in ("train", "test") for kind in ("inputs", "labels")]
    *seen, questions, answers = (torch.from_numpy(np.load(Path(folder, name))) for name in names)
    torch.manual_seed(0)
    w = new_weights(MODEL, about["seq_len"], about["vocab_size"])
    starts, losses, began = torch.randn(2, MODEL.d_model).fmod(2), [], time.monotonic()
    for loss, ema, table in train(MODEL, TRAINING, w, starts, 1, random_batches(*seen, MODEL, TRAINING)):
        losses.append(loss)
        if len(losses) % 100 == 0:
            save(Path(folder), Path(out), about, w, ema, table, starts)
            right = (definition.solve(definition.load(out), questions)[0] == answers).all(1).float().mean()
            line = f"step {len(losses)}/{TRAINING.steps}  loss {sum(losses[-100:]) / 100:.4f}"
            print(f"{line}  validation {100 * right:.1f} %  {time.monotonic() - began:.0f} s", flush=True)


def save(folder, out, about, w, ema, table, starts):
    """Write the file that a run of the engine writes."""
    tensors = {f"raw.{name}": tensor.detach() for name, tensor in w.items()} | {"raw.puzzle.weight": table}
    tensors |= {f"ema.{name}": tensor for name, tensor in ema.items()}
    tensors |= {"buffers.h_init": starts[0].clone(), "buffers.l_init": starts[1].clone()}
    meta = {"run": out.stem, "fingerprint": "", "precision": "float32", "num_ids": 1, "ignore": 0}
    meta |= {"seq_len": about["seq_len"], "vocab": about["vocab_size"]}
    data = json.loads((folder / "manifest.json").read_text())["config"]
    config = {"model": vars(MODEL), "training": vars(TRAINING), "data": data, "seed": 0, "meta": meta}
    save_file(tensors, out, {"config": json.dumps(config)})


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 3 else sys.exit(__doc__)
