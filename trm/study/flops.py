"""Parameters and floating-point operations of a TRM, computed from its configuration (no torch).

One multiply-add counts as two operations. Matrix products and attention scores are counted, elementwise work is
not: the paper's 512-wide Sudoku model comes to 1.2205 GFLOP per call of its block stack (MLP) and 1.3608 (attention).
"""

from math import ceil, prod

from trm.study.schema import ModelConfig, TrainingConfig
from trm.study.stages import recursion_stages


def inner_width(model: ModelConfig, width: int) -> int:
    """Inner width of a SwiGLU over `width` channels or tokens: expansion * width * 2/3, rounded up to `multiple`."""
    return ceil(round(model.expansion * width * 2 / 3) / model.multiple) * model.multiple


def tokens(model: ModelConfig, seq_len: int) -> int:
    """Length of the token axis: puzzle tokens, then one token per cell."""
    return seq_len + model.puzzle_tokens


def parameter_shapes(model: ModelConfig, seq_len: int, vocab: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the trained parameters, without the puzzle embedding, which is trained separately.

    Matrices are [out, in], as in `torch.nn.Linear`.
    """
    width, length = model.d_model, tokens(model, seq_len)
    inner, token_inner = inner_width(model, width), inner_width(model, length)
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (vocab, width)}
    if model.position == "learned":
        shapes["position.weight"] = (length, width)
    for i in range(model.layers):
        if model.mixer == "mlp":
            shapes[f"blocks.{i}.token_mlp.gate_up"] = (2 * token_inner, length)
            shapes[f"blocks.{i}.token_mlp.down"] = (length, token_inner)
        else:
            shapes[f"blocks.{i}.attention.qkv"] = (3 * width, width)
            shapes[f"blocks.{i}.attention.out"] = (width, width)
        shapes[f"blocks.{i}.channel_mlp.gate_up"] = (2 * inner, width)
        shapes[f"blocks.{i}.channel_mlp.down"] = (width, inner)
    shapes["head.weight"] = (vocab, width)
    shapes["halt.weight"] = (2, width)
    shapes["halt.bias"] = (2,)
    return shapes


def parameters(model: ModelConfig, seq_len: int, vocab: int) -> int:
    """Number of trained parameters, without the puzzle embedding."""
    return sum(prod(shape) for shape in parameter_shapes(model, seq_len, vocab).values())


def stack_flops(model: ModelConfig, seq_len: int) -> float:
    """Forward pass of one row through the block stack."""
    width, length = model.d_model, tokens(model, seq_len)
    block = 2 * 3 * inner_width(model, width) * width * length
    if model.mixer == "mlp":
        block += 2 * 3 * inner_width(model, length) * length * width
    else:
        block += 2 * 4 * width * width * length + 2 * 2 * length * length * width
    return float(model.layers * block)


def head_flops(model: ModelConfig, seq_len: int, vocab: int) -> float:
    """Forward pass of one row through both heads."""
    return 2.0 * model.d_model * (seq_len * vocab + 2)


def forward_flops(model: ModelConfig, seq_len: int, vocab: int) -> float:
    """One supervision step of one row in evaluation: forward only."""
    return model.h_cycles * (model.l_cycles + 1) * stack_flops(model, seq_len) + head_flops(
        model, seq_len, vocab
    )


def step_flops(
    model: ModelConfig, seq_len: int, vocab: int, h_cycles: int | None = None, l_cycles: int | None = None
) -> float:
    """One supervision step of one row in training: forward, and backward (twice its forward) of the last round."""
    rounds, updates = h_cycles or model.h_cycles, l_cycles or model.l_cycles
    calls = rounds * (updates + 1) + 2 * (updates + 1)
    return calls * stack_flops(model, seq_len) + 3 * head_flops(model, seq_len, vocab)


def train_flops(model: ModelConfig, training: TrainingConfig, seq_len: int, vocab: int) -> float:
    """The whole run: forward and backward of every step on the global batch, without validation."""
    total, done = 0.0, 0
    for stage in recursion_stages(model, training):
        per_row = step_flops(model, seq_len, vocab, *stage.recursion.cycles)
        total += (stage.last_step - done) * training.batch_size * per_row
        done = stage.last_step
    return total
