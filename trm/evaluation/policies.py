"""Ways to spend inference compute: fixed depth, stopping when confident, noisy restarts.

Shapes: B rows, L tokens, S cells, D width, V symbols, N puzzles of this worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.network.inference import InferenceNetwork, inference_batch
from trm.network.scores import Score
from trm.training.step import Originals

NewScore = Callable[[], Score]


class Timed(NamedTuple):
    """A score and the seconds it took."""

    score: Score
    seconds: float


class FixedResult(NamedTuple):
    """What a pass over all depths yields."""

    depths: dict[int, Timed]
    first_positive: Tensor
    """First step with a positive halt logit, int32 [N]; 0: never."""
    answers: Tensor
    """After the last step, uint8 [N, S]."""
    halt_logits: Tensor
    """After the last step, float32 [N]."""
    right: dict[int, Tensor]
    """Whether the answer at each depth is exactly right, bool [N]."""


def batches(net: InferenceNetwork, data: Originals) -> Iterable[slice]:
    """Slices of the puzzles that are run together."""
    count = len(data.inputs)
    size = inference_batch(data.inputs.shape[1] + net.arch.puzzle_tokens, len(net.h_init), data.inputs.device)
    size *= max(1, net.multiple // 2)  # rows of each device
    return (slice(first, min(count, first + size)) for first in range(0, count, size))


def shared_out(net: InferenceNetwork, x_LBD: Tensor, rows: int = 0) -> Tensor:
    """Embeddings padded with rows of zeros where several devices share them: to a multiple of the devices and to
    at least `rows`, so that the last batch reuses the same program."""
    if net.multiple == 1:
        return x_LBD
    count = x_LBD.shape[1]
    return F.pad(x_LBD, (0, 0, 0, max(rows, count + -count % net.multiple) - count))


def restart_noise(z: Tensor, noise: float, restart: int, first: int, which: int) -> Tensor:
    """Start states plus normal noise that depends on (restart, first row of the batch) alone."""
    device = torch.device("cpu") if z.device.type == "xla" else z.device  # XLA has no generators
    generator = torch.Generator(device=device)
    # hashed to 32 bits: torch's CPU generator ignores all higher bits of a seed
    generator.manual_seed(crc32(f"{restart} {which} {first}".encode()))
    noisy = torch.randn(z.shape, generator=generator, device=device, dtype=torch.float32) * noise
    return z + noisy.to(z.device, z.dtype)


@torch.no_grad()
def fixed(
    net: InferenceNetwork,
    data: Originals,
    depths: tuple[int, ...],
    new_score: NewScore,
    wait: Callable[[], None],
) -> FixedResult:
    """Every puzzle gets every step; answers are scored at each of `depths` (one pass for all)."""
    scores = {depth: new_score() for depth in sorted(depths)}
    seconds = dict.fromkeys(scores, 0.0)
    right: dict[int, list[Tensor]] = {depth: [] for depth in scores}
    firsts, answers, halts, rows = [], [], [], 0
    for part in batches(net, data):
        inputs, labels = data.inputs[part], data.labels[part]
        count = len(inputs)
        rows = max(rows, count)
        x = shared_out(net, net.embed(inputs, data.puzzle[part]), rows)
        z_H, z_L = net.start(x.shape[1], len(x))
        first = torch.zeros(count, dtype=torch.int32, device=x.device)
        wait()
        begun = time.perf_counter()
        for step in range(1, max(depths) + 1):
            z_H, z_L, logits, halt = net.step(z_H, z_L, x)
            logits, halt = logits[:, :count], halt[:count]
            first = torch.where((first == 0) & (halt > 0), step, first)
            if step in scores:
                wait()
                paused = time.perf_counter()
                seconds[step] += paused - begun
                right[step].append(scores[step].add(logits, inputs, labels, step) > 0)
                wait()
                begun += time.perf_counter() - paused
        firsts.append(first)
        answers.append(logits.argmax(-1).t().to(torch.uint8))
        halts.append(halt.float())
    timed = {depth: Timed(scores[depth], seconds[depth]) for depth in scores}
    joined = {depth: torch.cat(parts) for depth, parts in right.items()}
    return FixedResult(timed, torch.cat(firsts), torch.cat(answers), torch.cat(halts), joined)


@torch.no_grad()
def confident(
    net: InferenceNetwork, data: Originals, depth: int, score: Score, wait: Callable[[], None]
) -> tuple[Timed, Tensor]:
    """A puzzle leaves the batch at its first positive halt logit, or after `depth` steps; the next one takes its slot.

    When none is left to come, the batch shrinks by halves; not where several devices share it, for each size would be
    a program to compile. Returns the score and the answers, uint8 [N, S] on the host; they equal those of a full
    pass, because rows do not influence each other.
    """
    begun = time.perf_counter()
    count, cells = data.inputs.shape
    device, shared = data.inputs.device, net.multiple > 1
    slots = min(count, next(iter(batches(net, data))).stop)
    rows = slots + -slots % net.multiple
    # the assignment of puzzles to slots, and the answers, are kept on the host: device shapes never change
    inputs, labels, puzzles = (tensor.cpu() for tensor in (data.inputs, data.labels, data.puzzle))
    score.sums = score.sums.cpu()
    answers = torch.zeros(count, cells, dtype=torch.uint8)
    which, incoming = torch.arange(rows) % count, slots
    live, steps = torch.arange(rows) < slots, torch.zeros(rows, dtype=torch.int32)

    def start() -> tuple[Tensor, Tensor, Tensor]:
        x = net.embed(inputs[which].to(device), puzzles[which].to(device))
        return (*net.start(len(which), len(x)), x)

    z_H, z_L, x = start()
    while True:
        wait()  # so that XLA sees the same two programs (new rows, a step) whichever rows leave
        z_H, z_L, logits, halt = net.step(z_H, z_L, x)
        logits, halt = net.whole(logits), net.whole(halt)
        wait()
        steps += 1
        left = torch.nonzero(live & ((halt.cpu() > 0) | (steps >= depth))).squeeze(1)
        if not len(left):
            continue
        chosen = logits.cpu()[:, left] if shared else logits[:, left.to(device)].cpu()
        answers[which[left]] = chosen.argmax(-1).t().to(torch.uint8)
        score.add(chosen, inputs[which[left]], labels[which[left]], steps[left])
        fresh = torch.arange(incoming, min(count, incoming + len(left)))
        incoming += len(fresh)
        taken = left[: len(fresh)]
        live[left[len(fresh) :]] = False
        if len(fresh):
            which[taken], steps[taken] = fresh, 0
            new = torch.zeros(len(which), 1, dtype=torch.bool)
            new[taken] = True
            new = new.to(device)
            z_H, z_L, x = (torch.where(new, a, b) for a, b in zip(start(), (z_H, z_L, x), strict=True))
        open_slots = int(live.sum())
        if open_slots == 0:
            break
        if not shared and open_slots <= len(live) // 2:
            kept = torch.nonzero(live).squeeze(1)
            z_H, z_L, x = (state[:, kept.to(device)] for state in (z_H, z_L, x))
            which, steps, live = which[kept], steps[kept], live[kept]
    return Timed(score, time.perf_counter() - begun), answers


class Restarts(NamedTuple):
    """Scores of K restarts by K."""

    best: dict[int, Score]
    """The answer with the highest halt logit."""
    majority: dict[int, Score]
    """The most frequent answer; among equals the one with the highest halt logit."""
    oracle: dict[int, Score]
    """The right answer where any restart found it: the upper bound of choosing among them."""
    seconds: dict[int, float]


@torch.no_grad()
def restarts(
    net: InferenceNetwork,
    data: Originals,
    depth: int,
    counts: tuple[int, ...],
    noise: float,
    new_score: NewScore,
    wait: Callable[[], None],
) -> Restarts:
    """K runs of `depth` steps, all but the first from start states with normal noise of deviation `noise`."""
    best, majority, oracle = ({k: new_score() for k in sorted(counts)} for _ in range(3))
    result = Restarts(best, majority, oracle, dict.fromkeys(sorted(counts), 0.0))
    rows = 0
    for part in batches(net, data):
        inputs, labels = data.inputs[part], data.labels[part]
        count = len(inputs)
        rows = max(rows, count)
        x = shared_out(net, net.embed(inputs, data.puzzle[part]), rows)
        begun = time.perf_counter()
        answers, halts = [], []
        for restart in range(max(counts)):
            z_H, z_L = net.start(x.shape[1], len(x))
            if restart and noise:
                z_H = restart_noise(z_H, noise, restart, part.start, 0)
                z_L = restart_noise(z_L, noise, restart, part.start, 1)
            for _ in range(depth):
                z_H, z_L, logits, halt = net.step(z_H, z_L, x)
                wait()  # one step is one XLA program: without it all steps of all restarts were
            answers.append(logits[:, :count].argmax(-1).t().to(torch.uint8))
            halts.append(halt[:count].float())
            k = restart + 1
            if k in result.best:
                answers_KBS, halts_KB = torch.stack(answers), torch.stack(halts)
                for scores, choose in (
                    (result.best, _most_confident),
                    (result.majority, _most_frequent),
                    (result.oracle, _right_one),
                ):
                    index_B = choose(answers_KBS, halts_KB, labels)
                    chosen = answers_KBS[index_B, torch.arange(count, device=x.device)]
                    scores[k].add_answers(chosen, inputs, labels, depth)
                wait()
                result.seconds[k] += time.perf_counter() - begun
    return result


def _most_confident(answers_KBS: Tensor, halts_KB: Tensor, labels_BS: Tensor) -> Tensor:
    return halts_KB.argmax(0)


def _most_frequent(answers_KBS: Tensor, halts_KB: Tensor, labels_BS: Tensor) -> Tensor:
    votes_KB = torch.stack([(answers_KBS == answer).all(-1).sum(0) for answer in answers_KBS])
    top = votes_KB == votes_KB.max(0).values
    return torch.where(top, halts_KB, -torch.inf).argmax(0)


def _right_one(answers_KBS: Tensor, halts_KB: Tensor, labels_BS: Tensor) -> Tensor:
    ignored = labels_BS == 0
    right_KB = ((answers_KBS == labels_BS) | ignored).all(-1)
    return torch.where(right_KB.any(0), right_KB.float().argmax(0), halts_KB.argmax(0))
