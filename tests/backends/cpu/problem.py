"""A supervision step on random data, by the kernel and by trm.model.definition through autograd."""

import torch

from trm.backends.cpu.choice import products_for
from trm.backends.cpu.network import Incoming, Results, Settings, Supervision
from trm.model import definition
from trm.model.act import Carry, Rows, empty_carry, halt, refill
from trm.model.losses import expected_further_steps, halting_loss, judge
from trm.model.parameters import Layout, architecture, initial_weights
from trm.study.schema import ModelConfig
from trm.study.stages import Recursion

HALT_MAX, IGNORE, COST = 6, 0, 0.01
BASE = {"d_model": 16, "heads": 2, "puzzle_tokens": 1, "h_cycles": 1, "l_cycles": 2, "expansion": 1.0}
BASE |= {"multiple": 8, "halt_max_steps": HALT_MAX}


def relative(mine: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative error in the 2-norm."""
    exact = exact.detach().double()
    return ((mine.detach().double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


class Problem:
    """Weights, a carry in the middle of its work, and new rows. `fields`: of the model."""

    def __init__(
        self, dtype: torch.dtype, rows: int = 8, cells: int = 9, vocab: int = 5, seed: int = 0, **fields
    ):
        self.model, self.dtype = ModelConfig(**(BASE | fields)), dtype
        self.cells, self.vocab, self.rows = cells, vocab, rows
        self.layout, self.arch = Layout.of(self.model, cells, vocab), architecture(self.model, dtype)
        self.params = torch.zeros(self.layout.size)
        views, draw = self.layout.views(self.params), torch.Generator().manual_seed(seed)
        for name, tensor in initial_weights(self.model, cells, vocab, seed).items():
            views[name].copy_(tensor)
        views["halt.weight"].normal_(0, 0.3, generator=draw)
        views["halt.bias"].zero_()
        length, width = cells + self.model.puzzle_tokens, self.model.d_model

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=draw).to(dtype)

        def symbols(low: int, *shape: int) -> torch.Tensor:
            return torch.randint(low, vocab, shape, dtype=torch.uint8, generator=draw)

        def whole(high: int) -> torch.Tensor:
            return torch.randint(0, high, (rows,), dtype=torch.int32, generator=draw)

        labels = symbols(0, rows, cells)
        labels[rows // 2] = IGNORE
        self.table = normal(3, width).float() * 0.1 if self.model.puzzle_tokens else None
        self.carry = Carry(
            normal(length, rows, width),
            normal(length, rows, width),
            whole(HALT_MAX),
            torch.rand(rows, generator=draw) < 0.3,
            Rows(symbols(0, rows, cells), labels, whole(3)),
        )
        self.new = Rows(symbols(0, rows, cells), symbols(1, rows, cells), whole(3))
        self.minimum = whole(HALT_MAX)
        self.h_init, self.l_init = normal(width), normal(width)

    def by_kernel(self, products: int | None = None) -> dict[str, torch.Tensor]:
        """Next states, halt logits' consequences, metrics and gradients by name."""
        settings = Settings(self.rows, COST, IGNORE, self.h_init, self.l_init, self.table)
        grads = torch.zeros_like(self.params)
        if products is None:
            products = products_for(self.layout.views(self.params), self.arch)
        assert products is not None
        shape = self.cells + self.model.puzzle_tokens, self.rows
        step = Supervision(self.layout, self.params, grads, self.arch, shape, settings, products)
        following = empty_carry(*self.carry.z_H.shape[::2], self.cells, self.rows, self.dtype)
        for _ in range(2):  # the second call uses used buffers
            grads.zero_()
            results = Results(torch.zeros(9), torch.zeros(HALT_MAX))
            step.prepare(self.model.l_cycles)
            recursion = Recursion.of(self.model)._replace(halt_max_steps=HALT_MAX)
            puzzle, norm = step(self.carry, following, Incoming(self.new, self.minimum), recursion, results)
        found = {name: getattr(following, name) for name in ("z_H", "z_L", "steps", "halted")}
        found |= {"inputs": following.rows.inputs, "sums": results.sums, "histogram": results.histogram}
        found |= {} if self.table is None else {"puzzle": puzzle}
        close = {"rtol": 1e-4, "atol": 0, "equal_nan": True}
        torch.testing.assert_close(torch.tensor(norm), grads.square().sum(), **close)
        return found | self.layout.views(grads)

    def by_autograd(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The same by the definition, in `dtype`."""
        wide = torch.promote_types(dtype, torch.float32)
        weights = {n: w.detach().to(wide).requires_grad_() for n, w in self.layout.views(self.params).items()}
        carry = refill(self.carry, self.new, self.h_init, self.l_init)
        puzzle = None
        if self.table is not None:
            puzzle = self.table[carry.rows.puzzle.long()].to(wide).requires_grad_()
        z_H, z_L, logits, logit = definition.supervision_step(
            carry.z_H.to(dtype), carry.z_L.to(dtype), carry.rows.inputs, puzzle, weights,
            architecture(self.model, dtype), self.model.h_cycles, self.model.l_cycles,
        )  # fmt: skip
        answer, steps = judge(logits, carry.rows.labels, IGNORE), carry.steps + 1
        parts = [
            answer.cross_entropy.sum() / self.rows,
            halting_loss(logit, answer.exact).sum() / self.rows,
            COST * expected_further_steps(logit, steps, HALT_MAX).sum() / self.rows,
        ]
        sum(parts).backward()
        halted = halt(steps, logit, self.minimum, HALT_MAX)
        counted = halted * answer.valid
        right = (logit > 0) == (answer.exact > 0)
        rows = [counted, counted * answer.accuracy, counted * answer.exact, counted * right, counted * steps]
        sums = torch.stack([*(row.sum() for row in rows), *parts, torch.zeros(())])
        histogram = torch.stack([(counted * (steps == k)).sum() for k in range(1, HALT_MAX + 1)])
        found = {"z_H": z_H, "z_L": z_L, "steps": steps, "halted": halted, "inputs": carry.rows.inputs}
        found |= {"sums": sums.detach(), "histogram": histogram}
        if puzzle is not None:
            found["puzzle"] = puzzle.grad
        return found | {name: weight.grad for name, weight in weights.items()}
