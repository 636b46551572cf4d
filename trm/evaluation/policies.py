"""Inference policies: fixed depth, stopping when confident, restarts.

Shapes: B rows, L tokens, S cells, D width, V symbols, N puzzles of this worker.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from trm.data.progress import Progress
from trm.evaluation.parts import Result, compute
from trm.evaluation.passes import NO_NOISE, Noise, Pass
from trm.evaluation.symmetry import Symmetry, Views
from trm.model.act import Rows
from trm.model.inference import InferenceNetwork
from trm.model.scores import Score

NewScore = Callable[[], Score]
Runner = Callable[[str, Iterable[slice], Callable[[slice], Result]], Result]
"""`trm.evaluation.parts.compute`, or one that keeps what it has computed."""


class FixedResult(NamedTuple):
    """Results of `Policies.fixed`, on the host."""

    scores: dict[int, Score]
    """By depth; so are the next two."""
    seconds: dict[int, float]
    right: dict[int, Tensor]
    """Whether each answer is exactly right, bool [N]."""
    first_positive: Tensor
    """First step with a positive halt logit, int32 [N]; 0: never."""
    first_right: Tensor
    """First step with an exactly right answer, int32 [N]; 0: never."""
    answers: Tensor
    """After the last step, uint8 [N, S]."""
    halt_logits: Tensor
    """After the last step, float32 [N]."""
    confident: dict[int, Score]
    """By largest depth, of each puzzle's answer at its first positive halt logit; empty unless asked for."""


def batches(net: InferenceNetwork, data: Rows, name: str = "", noise: bool = False) -> Iterator[slice]:
    """Slices of the puzzles that form a batch, or that `noise` is drawn for. `name`: of the work on them, for progress;
    none without it."""
    count = len(data.inputs)
    size = net.batch_rows(data.inputs.shape[1] + net.arch.puzzle_tokens, noise)
    progress = Progress(name, count, "puzzles")
    for first in range(0, count, size):
        stop = min(count, first + size)
        yield slice(first, stop)
        progress.update(stop)
    progress.close(count)


class Restarts(NamedTuple):
    """Scores by number of restarts."""

    best: dict[int, Score]
    """The answer with the highest halt logit."""
    majority: dict[int, Score]
    """The most frequent answer; ties are broken by the halt logit."""
    oracle: dict[int, Score]
    """The right answer if any restart found it: an upper bound for choosing among restarts."""
    solved: dict[int, Tensor]
    """Numbers of puzzles that exactly 0, 1, ... of the restarts solve, int64 [K + 1]."""
    seconds: dict[int, float]


@dataclass
class Policies:
    """Measures a network's inference policies."""

    net: InferenceNetwork
    new_score: NewScore
    wait: Callable[[], None]
    """Returns when the device has finished what it was given."""
    run: Runner = compute
    """Computes the batches."""
    turn: tuple[int, int] = (0, 1)
    """This worker and the number of them, which take turns at the batches that noise is drawn for."""

    @torch.no_grad()
    def fixed(
        self,
        data: Rows,
        depths: tuple[int, ...],
        views: Views | None = None,
        name: str = "",
        stopping: bool = False,
    ) -> FixedResult:
        """All puzzles take all steps; answers are scored at each of `depths` in one pass.

        Args:
            name: for progress.
            stopping: score also what a user gets who stops each puzzle at its first positive halt logit. Rows are
                independent, so that the answer is that of this pass.
        """
        net, new_score, wait = self.net, self.new_score, self.wait
        depths, rows = tuple(sorted(depths)), next(batches(net, data)).stop

        def one(part: slice) -> Result:
            inputs, labels = data.inputs[part], data.labels[part]
            count, result = len(inputs), dict[str, Tensor]()
            states = Pass(net, inputs, data.puzzle[part], views=views, rows=rows)
            # the step as a tensor: XLA compiles another program where a number happens to equal another one
            first, solved, taken = (
                torch.zeros(count, dtype=torch.int32, device=inputs.device) for _ in range(3)
            )
            stopped = new_score()
            wait()
            started = time.perf_counter()
            for step in range(1, depths[-1] + 1):
                logits, halt = states.step()
                taken = taken + 1
                stops = (first == 0) & (halt > 0)
                first = torch.where(stops, taken, first)
                right_now = is_right(states.answers(logits), labels, ignore)
                solved = torch.where((solved == 0) & right_now, taken, solved)
                wait()  # each step is one XLA program, whatever the depth
                paused = time.perf_counter()
                if stopping:
                    stopped.add(logits, inputs, labels, taken, stops)
                    wait()
                if step in depths:
                    result[f"+seconds {step}"] = torch.tensor(paused - started, dtype=torch.float64)
                    score = new_score()
                    result[f"right {step}"] = score.add(logits, inputs, labels, step) > 0
                    result[f"+sums {step}"] = score.sums
                    if stopping:
                        others = new_score().with_sums(stopped.sums.clone())
                        others.add(logits, inputs, labels, taken, first == 0)
                        result[f"+confident {step}"] = others.sums
                    wait()
                started += time.perf_counter() - paused
            return result | {
                "first": first, "solved": solved, "answers": states.answers(logits), "halts": halt.float()
            }  # fmt: skip

        ignore = new_score().ignore
        whole = self.run(f"fixed {name}", batches(net, data, name), one)
        scores = {depth: new_score().with_sums(whole[f"+sums {depth}"]) for depth in depths}
        seconds = {depth: float(whole[f"+seconds {depth}"]) for depth in depths}
        right = {depth: whole[f"right {depth}"] for depth in depths}
        first, solved, answers, halts = (whole[key] for key in ("first", "solved", "answers", "halts"))
        sums = {depth: whole[f"+confident {depth}"] for depth in depths if stopping}
        confident = {depth: new_score().with_sums(found) for depth, found in sums.items()}
        return FixedResult(scores, seconds, right, first, solved, answers, halts, confident)

    @torch.no_grad()
    def restarts(
        self,
        data: Rows,
        depth: int,
        counts: tuple[int, ...],
        noise: tuple[float, float],
        symmetries: Sequence[Symmetry],
        views: Views | None = None,
        name: str = "",
    ) -> Restarts:
        """Several runs of `depth` steps, all but the first with `noise`: standard deviations as in `Noise`.

        Restart k sees the puzzles under `symmetries[k]`. `data`: with noise those of all workers. `name`: for progress.
        """
        net, new_score, wait = self.net, self.new_score, self.wait
        counts, noisy = tuple(sorted(counts)), any(noise)
        rows = next(batches(net, data, noise=noisy)).stop
        policies, ignore = ("best", "majority", "oracle"), new_score().ignore

        def one(part: slice) -> Result:
            inputs, labels = data.inputs[part], data.labels[part]
            started, result = time.perf_counter(), dict[str, Tensor]()
            answers, halts = [], []
            for restart in range(max(counts)):
                added = Noise(*noise, restart, part.start) if restart else NO_NOISE
                states = Pass(net, inputs, data.puzzle[part], symmetries[restart], views, rows, added)
                for _ in range(depth):
                    logits, halt = states.step()
                    wait()  # makes each step one XLA program, instead of all steps of all restarts
                answers.append(states.answers(logits))
                halts.append(halt.float())
                k = restart + 1
                if k in counts:
                    answers_KBS, halts_KB = torch.stack(answers), torch.stack(halts)
                    right_KB = is_right(answers_KBS, labels, ignore)
                    numbers = torch.arange(k + 1, device=inputs.device)  # XLA has no bincount
                    result[f"+solved {k}"] = (right_KB.sum(0)[:, None] == numbers).sum(0)
                    for policy, index_B in zip(policies, chosen(answers_KBS, halts_KB, right_KB)):
                        score, rows_B = new_score(), torch.arange(len(inputs), device=inputs.device)
                        score.add_answers(answers_KBS[index_B, rows_B], inputs, labels, depth)
                        result[f"+{policy} {k}"] = score.sums
                    wait()
                    result[f"+seconds {k}"] = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
            return result

        parts = batches(net, data, name, noisy)
        parts = islice(parts, self.turn[0], None, self.turn[1]) if noisy else parts
        whole = self.run(f"restarts {name}", parts, one)
        best, majority, oracle = (
            {k: new_score().with_sums(whole[f"+{policy} {k}"]) for k in counts} for policy in policies
        )
        solved = {k: whole[f"+solved {k}"] for k in counts}
        return Restarts(best, majority, oracle, solved, {k: float(whole[f"+seconds {k}"]) for k in counts})


def is_right(answers_BS: Tensor, labels_BS: Tensor, ignore: int) -> Tensor:
    """Whether each answer is exactly right, bool [B]; cells labelled `ignore` are right in any answer."""
    return ((answers_BS == labels_BS) | (labels_BS == ignore)).all(-1)


def chosen(answers_KBS: Tensor, halts_KB: Tensor, right_KB: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The restart [B] that each policy of `Restarts` takes."""
    best_B = halts_KB.argmax(0)
    votes_KB = torch.stack([(answers_KBS == answer).all(-1).sum(0) for answer in answers_KBS])
    top_KB = torch.where(votes_KB == votes_KB.max(0).values, halts_KB, -torch.inf)
    return best_B, top_KB.argmax(0), torch.where(right_KB.any(0), right_KB.float().argmax(0), best_B)
