"""Checks runs against a slice: verdicts and tables from compiled programs, which are cached.

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
from collections import Counter
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
LINK_BYTES_PER_SECOND = 100e9
"""Assumed all-reduce bandwidth of a chip's links; not measured."""
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
    ms: float | None
    """The compiler's estimate, plus communication at an assumed 100 GB/s."""
    collectives: dict[str, dict[str, int]]


class Result(NamedTuple):
    """A training step on one slice; times in milliseconds, memory in GiB per chip."""

    chips: int
    rows_per_chip: int
    fits: bool
    gib: float
    """The peak, or if the program does not fit the memory that libtpu says it needs."""
    remat: bool
    step_ms: float | None
    """Cycles of XLA's operations and the kernels at the chip's clock, plus communication at an assumed 100 GB/s."""
    utilisation: float | None
    """Model FLOPs utilisation by the estimated time."""
    gflop_per_chip: float
    """Model FLOPs as in `plan`."""
    collectives: dict[str, dict[str, int]]
    parts_ms: dict[str, float]
    """Breakdown of the step: kernels by name, XLA's operations by kind."""
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
    results = []
    for answer in ask(config, where, "run", cache_folder)["programs"]:
        ms = 1e3 * _chip_seconds(answer, where) if answer["fits"] else None
        phase, collectives = answer["phase"], answer.get("collectives", {})
        results.append(Program(phase, fits(answer, where), _gib(answer), ms, collectives))
    return results


def programs_table(programs: list[Program], where: Slice) -> str:
    """A line per phase: number of programs, the largest one's memory, total time and communication, verdict."""
    lines = [("phase", "programs", "GiB", "ms", "sent MiB", "verdict")]
    for phase in dict.fromkeys(program.phase for program in programs):
        group = [program for program in programs if program.phase == phase]
        lines.append(
            (
                phase,
                str(len(group)),
                f"{max(program.gib for program in group):.2f}",
                f"{sum(program.ms or 0.0 for program in group):.2f}",
                _sent([program.collectives for program in group]) or "-",
                _verdict(all(program.fits for program in group), where),
            )
        )
    return _aligned(lines)


def _verdict(fit: bool, where: Slice) -> str:
    return "fits" if fit else f"DOES NOT FIT ({hbm_gib(where.generation):g} GiB)"


def _sent(programs: Sequence[dict[str, dict[str, int]]]) -> str:
    """MiB sent by kind of collective."""
    sent: Counter[str] = Counter()
    for collectives in programs:
        sent.update({kind: item["bytes"] for kind, item in collectives.items()})
    return " ".join(f"{kind} {count / 2**20:.1f}" for kind, count in sorted(sent.items()))


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
    write_json(cached, answer)
    return answer


def fits(answer: dict[str, Any], where: Slice) -> bool:
    """Whether the program compiles and fits into the usable memory of the slice's chips."""
    return bool(answer["fits"]) and float(answer["peak_gib"]) <= hbm_gib(where.generation)


def step_seconds(config: RunConfig, where: Slice, cache_folder: Path) -> float | None:
    """Estimated seconds of a training step from the cache. None: it was not checked with this code, or does not fit."""
    cached = cache_folder / f"{program_key(config, where, 'train')}.json"
    if not cached.exists():
        return None
    answer = read_json(cached)
    return _chip_seconds(answer, where) if fits(answer, where) else None


def _gib(answer: dict[str, Any]) -> float:
    return float(answer["peak_gib"] if answer["fits"] else answer["needs_gib"])


def _chip_seconds(answer: dict[str, Any], where: Slice) -> float:
    """Estimated time of a program on the chips; its all-reduces send each byte twice."""
    sent: int = sum(item["bytes"] for item in answer["collectives"].values())
    return float(answer["cycles"]) / where.generation.clock_hz + 2 * sent / LINK_BYTES_PER_SECOND


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
    seconds = _chip_seconds(answer, where) if answer["fits"] else None
    return Result(
        where.chips,
        per_chip,
        fits(answer, where),
        _gib(answer),
        answer["remat"],
        seconds and seconds * 1e3,
        seconds and flops / seconds / where.generation.peak_flops,
        flops / 1e9,
        answer.get("collectives", {}),
        {
            kind: cycles / where.generation.clock_hz * 1e3
            for kind, cycles in answer.get("cycles_by_kind", {}).items()
        },
        _advice(config, where, answer, cache_folder),
    )


def _advice(config: RunConfig, where: Slice, answer: dict[str, Any], cache_folder: Path) -> str:
    if fits(answer, where):
        return ""
    if not answer["remat"]:
        again = ask(config, where, "train", cache_folder, remat=True)
        if fits(again, where):
            return f"TRM_XLA_REMAT=1 makes it fit ({again['peak_gib']:.1f} GiB), with the same result"
    batch, micro = config.training.batch_size, config.training.micro_batches
    for count in range(micro + 1, batch // where.chips + 1):
        if batch % count or (batch // count) % where.chips:
            continue
        smaller = config.model_copy(
            update={"training": config.training.model_copy(update={"micro_batches": count})}
        )
        again = ask(smaller, where, "train", cache_folder)
        if fits(again, where):
            return f"training.micro_batches={count} makes it fit ({again['peak_gib']:.1f} GiB)"
    return "nothing makes it fit on this slice: use more chips or a smaller model"


def table(rows: list[tuple[str, Result]], where: Slice) -> str:
    """A line per program: run, rows, memory and FLOPs per chip, time, utilisation, communication, verdict."""
    titles = "run|rows/chip|GiB|TFLOP|remat|ms|util|sent MiB|verdict"
    lines = [tuple(titles.split("|"))]
    for name, result in rows:
        lines.append(
            (
                name,
                str(result.rows_per_chip),
                f"{result.gib:.2f}",
                f"{result.gflop_per_chip / 1000:.3g}",
                "yes" if result.remat else "no",
                "-" if result.step_ms is None else f"{result.step_ms:.1f}",
                "-" if result.utilisation is None else f"{100 * result.utilisation:.0f} %",
                _sent([result.collectives]) or "-",
                _verdict(result.fits, where) + (f": {result.advice}" if result.advice else ""),
            )
        )
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """The cells as aligned columns."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
    )
