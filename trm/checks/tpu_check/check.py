"""Checks runs against a slice: one program per distinct shape, cached, with a verdict and a table.

A program depends on the model, the batch and the code, not on learning rates or seeds, so a study of many
runs needs few compilations.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from trm.errors import UserError
from trm.study.dataset_identity import shape
from trm.study.fingerprint import canonical_json
from trm.study.flops import forward_flops, step_flops
from trm.study.schema import RunConfig
from trm.study.slices import HBM_VARIABLE, Slice, evaluated, hbm_gib

ROOT = Path(__file__).parents[3]
CODE = (
    "trm/devices/base.py",
    "trm/devices/sharding.py",
    "trm/devices/xla.py",
    "trm/network/tpu/calls.py",
    "trm/network/tpu/kernels.py",
    "trm/network/tpu/network.py",
    "trm/network/tpu/recursion.py",
    "trm/network/tpu/shapes.py",
    "trm/devices/replay.py",
    "trm/training/state.py",
    "trm/training/step.py",
    "trm/network/act.py",
    "trm/network/inference.py",
    "trm/network/losses.py",
    "trm/network/definition.py",
    "trm/network/parameters.py",
    "trm/training/optim",
    "trm/checks/tpu_check/compiler.py",
    "trm/checks/tpu_check/hlo.py",
    "trm/checks/tpu_check/kernels.py",
    "trm/checks/tpu_check/rehearsal.py",
    "trm/checks/tpu_check/starting.py",
    "trm/checks/tpu_check/worker.py",
)
"""What a program and its numbers are made from."""
PUBLIC_ARC_TASKS = 800
"""Training and evaluation tasks of ARC-AGI-1."""
LINK_BYTES_PER_SECOND = 100e9
"""Assumed rate of an all-reduce on a chip's links; not measured."""
FREE = (
    *("steps", "lr", "puzzle_lr", "warmup_steps", "weight_decay", "puzzle_weight_decay", "beta1", "beta2"),
    *("exploration", "exploration_final", "init_from", "snapshots", "curriculum"),
)
"""Training fields that only change constants of the program."""
PYTHON_VARIABLE = "TRM_TPU_PYTHON"
CHOICES = ("TRM_XLA_KERNELS", "TRM_XLA_REMAT", HBM_VARIABLE)
"""Environment variables that change a program."""


class Sizes(NamedTuple):
    """What a program must know of a data set."""

    seq_len: int
    vocab: int
    num_ids: int
    ignore: int


class Program(NamedTuple):
    """One program of a run, besides its training step, on one slice."""

    phase: str
    """When the run starts it: report, validation, checkpoint, evaluation, ..."""
    fits: bool
    gib: float
    """Memory that it takes of a chip; where it does not fit, what it needs."""
    ms: float | None
    """By the compiler's estimates, plus what it sends at an assumed 100 GB/s."""
    collectives: dict[str, dict[str, int]]


class Result(NamedTuple):
    """One program on one slice; times in milliseconds, memory in GiB a chip."""

    what: str
    """train or eval."""
    chips: int
    rows_per_chip: int
    fits: bool
    peak_gib: float | None
    needs_gib: float | None
    """What it needs, where libtpu says that it does not fit; else its peak."""
    remat: bool
    step_ms: float | None
    """The compiler's cycles and the kernels' at 1.05 GHz, plus `collective_ms`."""
    collective_ms: float | None
    """Bytes sent at an assumed 100 GB/s."""
    host_ms: float
    """What the host takes to place a batch and start a step, on the machine of this check."""
    utilisation: float | None
    """Model FLOPs over estimated time and 275 TFLOP/s."""
    gflop_per_chip: float
    """Operations of the model's mathematics, as `plan` counts them."""
    collectives: dict[str, dict[str, int]]
    parts_ms: dict[str, float]
    """Where the step's time goes: kernels by name, XLA's own operations by kind."""
    advice: str
    """What to change: where it does not fit, or where the host is slower than the chip."""


def sizes_of(config: RunConfig) -> Sizes:
    """Sizes of the data set that a run will have. ARC's number of tasks is known only once the set is built: the table
    of puzzle vectors is taken to hold as many as the configuration asks for, or as the public set has."""
    found, data = shape(config.data), config.data
    tasks = (data.train_puzzles or PUBLIC_ARC_TASKS) + data.validation_puzzles
    ids = found.num_puzzle_identifiers or 1 + tasks * (1 + data.augmentations)
    return Sizes(found.seq_len, found.vocab_size, ids, 0)


def tpu_python() -> str:
    """The interpreter that has torch_xla and libtpu: this one, $TRM_TPU_PYTHON, or that of .venv-tpu.

    Raises UserError where there is none.
    """
    if importlib.util.find_spec("torch_xla") is not None:
        return sys.executable
    chosen = os.environ.get(PYTHON_VARIABLE) or str(ROOT / ".venv-tpu" / "bin" / "python")
    if not Path(chosen).exists():
        raise UserError(
            f"{chosen} does not exist, and this Python has no torch_xla: build the environment envs/tpu "
            f"(`make envs`, Linux x86-64) or set {PYTHON_VARIABLE}"
        )
    return chosen


@cache
def code_digest() -> str:
    """Checksum of the code that a program is made from."""
    digest = hashlib.sha256()
    for place in CODE:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def program_key(config: RunConfig, where: Slice, what: str, remat: bool | None = None) -> str:
    """Fingerprint of a program: shapes, slice, code and the environment's lock file."""
    training = config.training.model_dump(mode="json")
    for field in FREE:
        training.pop(field)
    training["ema"] = training["ema"] > 0
    identity = {
        "model": config.model.model_dump(mode="json"),
        "training": config.training.precision if what == "eval" else training,
        "sizes": list(sizes_of(config)),
        "puzzles": evaluated_counts(config, where, what),
        "slice": where.name,
        "what": what,
        "remat": remat,
        "choices": [os.environ.get(name, "auto") for name in CHOICES],
        "code": code_digest(),
        "lock": hashlib.sha256((ROOT / "envs/tpu/requirements.lock").read_bytes()).hexdigest(),
    }
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


def evaluated_counts(config: RunConfig, where: Slice, what: str) -> list[int | None] | int | None:
    """Numbers of puzzles that are shapes of the program."""
    if what == "run":
        return [config.data.validation_puzzles, config.data.test_puzzles]
    return evaluated(config, where) if what == "eval" else None


def programs(config: RunConfig, where: Slice, cache_folder: Path) -> list[Program]:
    """Every program of a run, compiled for the slice. Raises UserError: a program that libtpu refuses."""
    found = []
    for answer in ask(config, where, "run", cache_folder)["programs"]:
        ms = None
        if answer["fits"]:
            ms = 1e3 * (answer["cycles"] / where.generation.clock_hz + collective_seconds(answer))
        gib = answer["peak_gib"] if answer["fits"] else answer["needs_gib"]
        found.append(Program(answer["phase"], fits(answer, where), gib, ms, answer.get("collectives", {})))
    return found


def programs_table(found: list[Program], where: Slice) -> str:
    """A line for each phase: its programs, the largest one's memory, the time of all, what is sent, and a verdict."""
    lines = [("phase", "programs", "GiB", "ms", "sent MiB", "verdict")]
    for phase in dict.fromkeys(program.phase for program in found):
        own = [program for program in found if program.phase == phase]
        sent: dict[str, float] = {}
        for program in own:
            for kind, item in program.collectives.items():
                sent[kind] = sent.get(kind, 0.0) + item["bytes"] / 2**20
        lines.append(
            (
                phase,
                str(len(own)),
                f"{max(program.gib for program in own):.2f}",
                f"{sum(program.ms or 0.0 for program in own):.2f}",
                " ".join(f"{kind} {size:.1f}" for kind, size in sorted(sent.items())) or "-",
                "fits"
                if all(program.fits for program in own)
                else f"DOES NOT FIT ({hbm_gib(where.generation):g} GiB)",
            )
        )
    return aligned(lines)


def ask(
    config: RunConfig, where: Slice, what: str, cache_folder: Path, remat: bool | None = None
) -> dict[str, Any]:
    """The worker's answer, from the cache if the same program was compiled before.

    Raises UserError where the worker fails; the last line of its error is in the sentence.
    """
    kept = cache_folder / f"{program_key(config, where, what, remat)}.json"
    if kept.exists():
        kept_answer: dict[str, Any] = json.loads(kept.read_text())
        return kept_answer
    request = {
        "config": config.model_dump(mode="json"),
        "puzzles": list(sizes_of(config)),
        "slice": where.name,
        "what": what,
        "remat": remat,
        "cache": str(cache_folder),
    }
    done = subprocess.run(
        [tpu_python(), "-m", "trm.checks.tpu_check.worker"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), HBM_VARIABLE: str(hbm_gib(where.generation))},
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the TPU program of this run could not be compiled: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    cache_folder.mkdir(parents=True, exist_ok=True)
    temporary = kept.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(answer))
    os.replace(temporary, kept)
    return answer


def fits(answer: dict[str, Any], where: Slice) -> bool:
    """Whether the program compiles, and stays within what a program may fill of the slice's chips."""
    return bool(answer["fits"]) and float(answer["peak_gib"]) <= hbm_gib(where.generation)


def step_seconds(config: RunConfig, where: Slice, cache_folder: Path) -> float | None:
    """Estimated seconds of a training step that was checked before: the chips' time, or the host's to start it where
    that is longer. None where it was not checked with this code, or does not fit."""
    kept = cache_folder / f"{program_key(config, where, 'train')}.json"
    if not kept.exists():
        return None
    answer = json.loads(kept.read_text())
    if not fits(answer, where):
        return None
    computing = float(answer["cycles"]) / where.generation.clock_hz + collective_seconds(answer)
    return max(computing, float(answer["host_ms"]) / 1e3)


def collective_seconds(answer: dict[str, Any]) -> float:
    """Time of a program's all-reduces: each byte is sent twice."""
    sent: int = sum(item["bytes"] for item in answer["collectives"].values())
    return 2 * sent / LINK_BYTES_PER_SECOND


def check(config: RunConfig, where: Slice, what: str, cache_folder: Path) -> Result:
    """Compile the run's training or evaluation step for the slice. Raises UserError: rows that do not divide
    over the chips, no environment, a program that libtpu refuses."""
    rows = config.training.batch_size // config.training.micro_batches
    if what == "train" and rows % where.chips:
        raise UserError(
            f"{rows} rows (training.batch_size / micro_batches) do not divide over the {where.chips} chips of "
            f"{where.name}: choose a smaller slice or a multiple of {where.chips}"
        )
    answer = ask(config, where, what, cache_folder)
    sizes, model = sizes_of(config), config.model
    if what == "train":
        per_chip = config.training.batch_size // where.chips
        flops = step_flops(model, sizes.seq_len, sizes.vocab) * per_chip
    else:
        per_chip = answer["rows_per_chip"]
        flops = forward_flops(model, sizes.seq_len, sizes.vocab) * per_chip
    step_ms = collective_ms = utilisation = None
    if answer["fits"]:
        collective_ms = collective_seconds(answer) * 1e3
        step_ms = answer["cycles"] / where.generation.clock_hz * 1e3 + collective_ms
        utilisation = flops / (step_ms / 1e3) / where.generation.peak_flops
    return Result(
        what,
        where.chips,
        per_chip,
        fits(answer, where),
        answer.get("peak_gib"),
        answer["needs_gib"] or answer["peak_gib"],
        answer["remat"],
        step_ms,
        collective_ms,
        answer["host_ms"],
        utilisation,
        flops / 1e9,
        answer.get("collectives", {}),
        {
            kind: cycles / where.generation.clock_hz * 1e3
            for kind, cycles in answer.get("cycles_by_kind", {}).items()
        },
        _advice(config, where, what, answer, step_ms, cache_folder),
    )


def _advice(
    config: RunConfig,
    where: Slice,
    what: str,
    answer: dict[str, Any],
    step_ms: float | None,
    cache_folder: Path,
) -> str:
    if fits(answer, where):
        if what == "train" and step_ms is not None and answer["host_ms"] > step_ms:
            knob = "use fewer chips" if where.hosts > 1 else "a larger batch uses the chips better"
            return (
                f"starting a step takes the host {answer['host_ms']:.3g} ms, longer than the chips' "
                f"{step_ms:.3g} ms: {knob}"
            )
        return ""
    if what != "train":
        needs, most = answer["needs_gib"] or answer["peak_gib"], hbm_gib(where.generation)
        return f"needs {needs:.1f} of {most} GiB: no knob changes its rows a chip; choose a smaller model"
    if not answer["remat"]:
        again = ask(config, where, what, cache_folder, remat=True)
        if fits(again, where):
            return f"TRM_XLA_REMAT=1 makes it fit ({again['peak_gib']:.1f} GiB), with the same result"
    batch, micro = config.training.batch_size, config.training.micro_batches
    for count in range(micro + 1, batch // where.chips + 1):
        if batch % count or (batch // count) % where.chips:
            continue
        smaller = config.model_copy(
            update={"training": config.training.model_copy(update={"micro_batches": count})}
        )
        again = ask(smaller, where, what, cache_folder)
        if fits(again, where):
            return f"training.micro_batches={count} makes it fit ({again['peak_gib']:.1f} GiB)"
    return "nothing makes it fit on this slice: use more chips or a smaller model"


def table(rows: list[tuple[str, Result]]) -> str:
    """A line a program: run, what, rows a chip, memory, FLOPs of a chip, time, utilisation, traffic, verdict."""
    head = (
        "run",
        "step",
        "rows/chip",
        "GiB",
        "TFLOP",
        "remat",
        "ms",
        "util",
        "host ms",
        "sent MiB",
        "verdict",
    )
    lines = [head]
    for name, result in rows:
        sent = " ".join(
            f"{kind} {item['bytes'] / 2**20:.1f}" for kind, item in sorted(result.collectives.items())
        )
        gib = result.peak_gib if result.fits else result.needs_gib
        lines.append(
            (
                name,
                result.what,
                str(result.rows_per_chip),
                f"{gib:.2f}",
                f"{result.gflop_per_chip / 1000:.3g}",
                "yes" if result.remat else "no",
                "-" if result.step_ms is None else f"{result.step_ms:.1f}",
                "-" if result.utilisation is None else f"{100 * result.utilisation:.0f} %",
                f"{result.host_ms:.1f}",
                sent or "-",
                ("fits" if result.fits else f"DOES NOT FIT ({hbm_gib():g} GiB)")
                + (f": {result.advice}" if result.advice else ""),
            )
        )
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """The cells in columns."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
    )
