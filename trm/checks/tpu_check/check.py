"""Checks whether runs fit a slice, by the memory of their compiled programs, which are cached.

A program depends on model, batch and code, but not on learning rates or seeds, so a study of many runs needs few
compilations.
"""

import ast
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
from trm.io import read_json, write_json
from trm.study.dataset_identity import shape
from trm.study.fingerprint import canonical_json
from trm.study.flops import step_flops
from trm.study.schema import RunConfig
from trm.study.slices import HBM_VARIABLE, Slice, hbm_gib
from trm.study.tasks import Sizes

ROOT = Path(__file__).parents[3]
WORKER = "trm.checks.tpu_check.worker"
"""What traces and compiles programs."""
PUBLIC_ARC_TASKS = 800
"""Training and evaluation tasks of ARC-AGI-1."""
FREE = (
    *("steps", "lr", "puzzle_lr", "warmup_steps", "weight_decay", "puzzle_weight_decay", "beta1", "beta2"),
    *("exploration", "exploration_final", "init_from", "snapshots", "curriculum"),
)
"""Training fields that only change constants in the program."""
PYTHON_VARIABLE = "TRM_TPU_PYTHON"
CHOICES = ("TRM_XLA_KERNELS", "TRM_XLA_REMAT", HBM_VARIABLE)
"""Environment variables that change a program."""


class Program(NamedTuple):
    """Any program of a run on one slice."""

    phase: str
    """When it runs: step, report, validation, checkpoint, evaluation, ..."""
    fits: bool
    gib: float
    """Memory required on a chip."""
    collectives: dict[str, int]


class Result(NamedTuple):
    """A training step on one slice."""

    chips: int
    rows_per_chip: int
    fits: bool
    gib: float
    """Memory of a chip: the peak, or if the program does not fit what libtpu says that it needs."""
    remat: bool
    gflop_per_chip: float
    """Model FLOPs as in `plan`."""
    collectives: dict[str, int]
    """Operations that send between the chips, by kind."""
    advice: str
    """What to change if it does not fit."""


def sizes_of(config: RunConfig) -> Sizes:
    """Sizes of a run's future data set. For ARC, whose number of tasks is not known before the data set is built, it is
    taken from the config or the public data set."""
    known, data = shape(config.data), config.data
    tasks = (data.train_puzzles or PUBLIC_ARC_TASKS) + data.validation_puzzles
    ids = known.num_puzzle_identifiers or 1 + tasks * (1 + data.augmentations)
    return Sizes(known.seq_len, known.vocab_size, ids, 0)


def tpu_python() -> str:
    """The Python interpreter with torch_xla and libtpu: this one, $TRM_TPU_PYTHON, or that of .venv-tpu. UserError:
    there is none."""
    if importlib.util.find_spec("torch_xla") is not None:
        return sys.executable
    python = os.environ.get(PYTHON_VARIABLE) or str(ROOT / ".venv-tpu" / "bin" / "python")
    if not Path(python).exists():
        raise UserError(
            f"{python} does not exist, and this Python has no torch_xla: build the environment envs/tpu "
            f"(`make envs`, Linux x86-64) or set {PYTHON_VARIABLE}"
        )
    return python


def imported(module: str, found: dict[str, Path] | None = None) -> dict[str, Path]:
    """The module and every module of trm that it imports, at any depth: files by name."""
    found = {} if found is None else found
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if module not in found and path.exists():
        found[module] = path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "trm":
                for name in (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)):
                    imported(name, found)
    return found


@cache
def code_digest() -> str:
    """Checksum of the code that determines programs. Folders count whole: optimisers and tasks are found by name."""
    digest = hashlib.sha256()
    for folder in sorted({path.parent for path in imported(WORKER).values()} - {ROOT / "trm"}):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def program_key(config: RunConfig, where: Slice, what: str, remat: bool | None = None) -> str:
    """Fingerprint of the training step (`what`: train) or of all programs (run): shapes, slice, code and the
    environment's lock file."""
    training = config.training.model_dump(mode="json")
    for field in FREE:
        training.pop(field)
    training["ema"] = training["ema"] > 0
    identity = {
        "model": config.model.model_dump(mode="json"),
        "training": training,
        "sizes": list(sizes_of(config)),
        "puzzles": [config.data.validation_puzzles, config.data.test_puzzles] if what == "run" else None,
        "slice": where.name,
        "what": what,
        "remat": remat,
        "choices": [os.environ.get(name, "auto") for name in CHOICES],
        "code": code_digest(),
        "lock": hashlib.sha256((ROOT / "envs/tpu/requirements.lock").read_bytes()).hexdigest(),
    }
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


def programs(config: RunConfig, where: Slice, cache_folder: Path) -> list[Program]:
    """Every program of a run, compiled for the slice. Raises UserError if libtpu rejects one."""
    answers = ask(config, where, "run", cache_folder)["programs"]
    return [
        Program(answer["phase"], fits(answer, where), answer["gib"], answer["collectives"])
        for answer in answers
    ]


def programs_table(programs: list[Program], where: Slice) -> str:
    """A line per phase: number of programs, the largest one's memory, verdict."""
    lines = [("phase", "programs", "GiB", "verdict")]
    for phase in dict.fromkeys(program.phase for program in programs):
        group = [program for program in programs if program.phase == phase]
        largest = f"{max(program.gib for program in group):.2f}"
        lines.append((phase, str(len(group)), largest, _verdict(all(p.fits for p in group), where)))
    return _aligned(lines)


def _verdict(fit: bool, where: Slice) -> str:
    return "fits" if fit else f"DOES NOT FIT ({hbm_gib(where.generation):g} GiB)"


def ask(
    config: RunConfig, where: Slice, what: str, cache_folder: Path, remat: bool | None = None
) -> dict[str, Any]:
    """The worker's answer, from the cache if the program was compiled before. UserError: the worker failed; it ends
    with the last line of the worker's error."""
    cached = cache_folder / f"{program_key(config, where, what, remat)}.json"
    if cached.exists():
        cached_answer: dict[str, Any] = read_json(cached)
        return cached_answer
    request = {
        "config": config.model_dump(mode="json"),
        "puzzles": list(sizes_of(config)),
        "slice": where.name,
        "what": what,
        "remat": remat,
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
    write_json(cached, answer)
    return answer


def fits(answer: dict[str, Any], where: Slice) -> bool:
    """Whether the program compiles and fits into the usable memory of the slice's chips."""
    return bool(answer["fits"]) and float(answer["gib"]) <= hbm_gib(where.generation)


def check(config: RunConfig, where: Slice, cache_folder: Path) -> Result:
    """Compile the run's training step for the slice. UserError: rows do not divide over the chips, there is no TPU
    environment, or libtpu rejects the program."""
    rows = config.training.batch_size // config.training.micro_batches
    if rows % where.chips:
        raise UserError(
            f"{rows} rows (training.batch_size / micro_batches) do not divide over the {where.chips} chips of "
            f"{where.name}: choose a smaller slice or a multiple of {where.chips}"
        )
    answer, sizes = ask(config, where, "train", cache_folder), sizes_of(config)
    per_chip = config.training.batch_size // where.chips
    flops = step_flops(config.model, sizes.seq_len, sizes.vocab) * per_chip
    advice = _advice(config, where, answer, cache_folder)
    memory = fits(answer, where), answer["gib"], answer["remat"]
    return Result(where.chips, per_chip, *memory, flops / 1e9, answer["collectives"], advice)


def _advice(config: RunConfig, where: Slice, answer: dict[str, Any], cache_folder: Path) -> str:
    if fits(answer, where):
        return ""
    if not answer["remat"]:
        again = ask(config, where, "train", cache_folder, remat=True)
        if fits(again, where):
            return f"TRM_XLA_REMAT=1 makes it fit ({again['gib']:.1f} GiB), with the same result"
    batch, micro = config.training.batch_size, config.training.micro_batches
    for count in range(micro + 1, batch // where.chips + 1):
        if batch % count or (batch // count) % where.chips:
            continue
        smaller = config.model_copy(
            update={"training": config.training.model_copy(update={"micro_batches": count})}
        )
        again = ask(smaller, where, "train", cache_folder)
        if fits(again, where):
            return f"training.micro_batches={count} makes it fit ({again['gib']:.1f} GiB)"
    return "nothing makes it fit on this slice: use more chips or a smaller model"


def table(rows: list[tuple[str, Result]], where: Slice) -> str:
    """A line per program: run, rows, memory and FLOPs per chip, verdict."""
    lines = [("run", "rows/chip", "GiB", "TFLOP", "remat", "verdict")]
    for name, result in rows:
        numbers = (str(result.rows_per_chip), f"{result.gib:.2f}", f"{result.gflop_per_chip / 1000:.3g}")
        verdict = _verdict(result.fits, where) + (f": {result.advice}" if result.advice else "")
        lines.append((name, *numbers, "yes" if result.remat else "no", verdict))
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """The cells as aligned columns."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
    )
