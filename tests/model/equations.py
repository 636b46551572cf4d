"""An independent implementation: TRM in plain eager PyTorch, from the paper's equations, without any care for speed.

Batch-first, transposes around the token mixer, weights cast at each use, one optimiser call per tensor, loss in
float64, unique() for the puzzle table. Tests compare numbers with it, benchmarks/step.py and benchmarks/gpu.py speed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trm.study.flops import inner_width
from trm.study.schema import ModelConfig, TrainingConfig


def rms(x: Tensor) -> Tensor:
    wide = x.float() if x.dtype != torch.float64 else x
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Linear(nn.Linear):
    def __init__(self, inputs: int, outputs: int, bias: bool = False):
        super().__init__(inputs, outputs, bias)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class SwiGLU(nn.Module):
    def __init__(self, width: int, model: ModelConfig):
        super().__init__()
        inner = inner_width(model, width)
        self.gate_up, self.down = Linear(width, 2 * inner), Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


def turned(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


class Attention(nn.Module):
    def __init__(self, model: ModelConfig, length: int):
        super().__init__()
        self.heads, self.rope = model.heads, model.position == "rope"
        self.qkv, self.out = Linear(model.d_model, 3 * model.d_model), Linear(model.d_model, model.d_model)
        width = model.d_model // model.heads
        frequency = 1.0 / (10000.0 ** (torch.arange(0, width, 2).float() / width))
        angle = torch.outer(torch.arange(length).float(), frequency)
        angle = torch.cat((angle, angle), dim=-1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).unbind(2)
        if self.rope:
            cos, sin = self.cos[:, None], self.sin[:, None]
            q, k = ((t.to(cos.dtype) * cos + turned(t.to(cos.dtype)) * sin).to(x.dtype) for t in (q, k))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, width)
        return self.out(y)


class Block(nn.Module):
    def __init__(self, model: ModelConfig, length: int):
        super().__init__()
        self.token_mlp = SwiGLU(length, model) if model.mixer == "mlp" else None
        self.attention = Attention(model, length) if model.mixer == "attention" else None
        self.channel_mlp = SwiGLU(model.d_model, model)

    def forward(self, x: Tensor) -> Tensor:
        if self.token_mlp is not None:
            y = x.transpose(1, 2)
            x = rms(y + self.token_mlp(y)).transpose(1, 2)
        else:
            x = rms(x + self.attention(x))
        return rms(x + self.channel_mlp(x))


class EagerTRM(nn.Module):
    """The model; parameter names are those of `trm.model`, plus `.weight` after each matrix."""

    def __init__(self, model: ModelConfig, seq_len: int, vocab: int, num_ids: int, dtype: torch.dtype):
        super().__init__()
        self.config, self.dtype = model, dtype
        length = seq_len + model.puzzle_tokens
        self.embed = nn.Embedding(vocab, model.d_model)
        self.position = nn.Embedding(length, model.d_model) if model.position == "learned" else None
        self.blocks = nn.ModuleList(Block(model, length) for _ in range(model.layers))
        self.head = Linear(model.d_model, vocab)
        self.halt = Linear(model.d_model, 2, bias=True)
        self.register_buffer("puzzle", torch.zeros(num_ids, model.d_model))
        self.register_buffer("h_init", torch.zeros(model.d_model, dtype=dtype))
        self.register_buffer("l_init", torch.zeros(model.d_model, dtype=dtype))

    def load_ours(self, weights: dict[str, Tensor], states: dict[str, Tensor]) -> None:
        """Load the weights of `trm.model.parameters`."""
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name if name in own else f"{name}.weight"].copy_(tensor)
            self.h_init.copy_(states["h_init"])
            self.l_init.copy_(states["l_init"])

    def stack(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle_BD: Tensor) -> tuple[Tensor, ...]:
        model = self.config
        x = F.embedding(inputs.long(), self.embed.weight.to(self.dtype))
        if model.puzzle_tokens:
            prefix = F.pad(puzzle_BD.to(self.dtype), (0, (model.puzzle_tokens - 1) * model.d_model))
            x = torch.cat((prefix.view(len(x), model.puzzle_tokens, model.d_model), x), dim=1)
        if self.position is not None:
            x = 0.707106781 * (x + self.position.weight.to(self.dtype))
        x = model.d_model**0.5 * x
        for round_ in range(model.h_cycles):
            with torch.set_grad_enabled(torch.is_grad_enabled() and round_ == model.h_cycles - 1):
                for _ in range(model.l_cycles):
                    z_L = self.stack(z_L + (z_H + x))
                z_H = self.stack(z_H + z_L)
        return z_H, z_L, self.head(z_H)[:, model.puzzle_tokens :], self.halt(z_H[:, 0]).float()[:, 0]


def log_stablemax(x: Tensor) -> Tensor:
    s = torch.where(x < 0, 1 / (1 - x + 1e-30), x + 1)
    return torch.log(s / s.sum(-1, keepdim=True))


def stablemax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    logp = log_stablemax(logits.double())
    picked = torch.gather(logp, -1, labels.clamp(min=0).long()[..., None]).squeeze(-1)
    return -torch.where(labels != -100, picked, 0)


class EagerTrainer:
    """Training steps on a fixed batch: every slot gets the same row again when it halts."""

    def __init__(self, net: EagerTRM, training: TrainingConfig, batch: int, seq_len: int):
        self.net, self.training = net, training
        length, width = seq_len + net.config.puzzle_tokens, net.config.d_model
        self.z_H = torch.zeros(batch, length, width, dtype=net.dtype)
        self.z_L = torch.zeros_like(self.z_H)
        self.steps = torch.zeros(batch, dtype=torch.int32)
        self.halted = torch.ones(batch, dtype=torch.bool)
        self.params = list(net.parameters())
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.params]
        self.ema = [p.detach().clone() for p in self.params]
        self.t = 0

    def step(self, inputs: Tensor, labels: Tensor, puzzle_ids: Tensor) -> float:
        """One supervision and optimiser step; labels int64 with -100 for ignored cells. Returns the loss."""
        net, batch = self.net, len(inputs)
        reset = self.halted.view(-1, 1, 1)
        z_H = torch.where(reset, net.h_init, self.z_H)
        z_L = torch.where(reset, net.l_init, self.z_L)
        steps = torch.where(self.halted, 0, self.steps) + 1
        puzzle_BD = net.puzzle[puzzle_ids].clone().requires_grad_()
        z_H, z_L, logits, halt = net(z_H, z_L, inputs, puzzle_BD)
        mask = labels != -100
        counts = mask.sum(-1)
        with torch.no_grad():
            correct = ((logits.argmax(-1) == labels) & mask).sum(-1) == counts
            self.halted = (steps >= net.config.halt_max_steps) | (halt > 0)
            self.z_H, self.z_L, self.steps = z_H.detach(), z_L.detach(), steps
        lm_loss = (stablemax_cross_entropy(logits, labels).sum(-1) / counts.clamp(min=1)).sum()
        halt_loss = F.binary_cross_entropy_with_logits(halt, correct.to(halt.dtype), reduction="sum")
        loss = (lm_loss + 0.5 * halt_loss) / batch
        for p in self.params:
            p.grad = None
        loss.backward()
        self._update(puzzle_ids, puzzle_BD.grad)
        return loss.item()

    @torch.no_grad()
    def _update(self, puzzle_ids: Tensor, puzzle_grads: Tensor | None) -> None:
        training, net = self.training, self.net
        self.t += 1
        warm = min(1.0, self.t / max(1, training.warmup_steps))
        lr, puzzle_lr = training.lr * warm, (training.puzzle_lr or training.lr) * warm
        for p, (m, v), ema in zip(self.params, self.moments, self.ema):
            p.mul_(1 - lr * training.weight_decay)
            m.lerp_(p.grad, 1 - training.beta1)
            v.mul_(training.beta2).addcmul_(p.grad, p.grad, value=1 - training.beta2)
            scale = (v / (1 - training.beta2**self.t)).sqrt()
            p.add_(torch.atan2(m, scale), alpha=-lr / (1 - training.beta1**self.t))
            ema.mul_(training.ema).add_(p, alpha=1 - training.ema)
        if puzzle_grads is not None:
            ids, inverse = puzzle_ids.unique(return_inverse=True)
            summed = puzzle_grads.new_zeros(len(ids), puzzle_grads.shape[1]).index_add_(
                0, inverse, puzzle_grads
            )
            decayed = net.puzzle[ids] * (1 - puzzle_lr * training.puzzle_weight_decay)
            net.puzzle[ids] = decayed - puzzle_lr * torch.sign(summed)
