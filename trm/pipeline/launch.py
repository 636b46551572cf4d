"""`python -m trm study run`: Snakemake, after any other run in this folder, with a record of how it ended.

Each launch leaves one JSON in results/launches/.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from trm.errors import UserError
from trm.io import write_json
from trm.pipeline import lock
from trm.pipeline.places import Place
from trm.pipeline.settings import parse_overrides, split
from trm.study.grid import load_study
from trm.study.reading import parse_yaml


def with_config(arguments: list[str], pairs: list[str], point: str | None = None) -> list[str]:
    """Snakemake's arguments with `--set` pairs and `--point` in its `--config`, joined with a `--config` that is there
    already (Snakemake takes only the last one).

    Raises:
        UserError: if a pair is not section.key=value.
    """
    if not pairs and not point:
        return arguments
    parse_overrides(pairs)  # refused here, before Snakemake starts
    kept, config, inside = [], [], False
    for word in arguments:
        if word == "--config":
            inside = True
        elif inside and "=" in word and not word.startswith("-"):
            config.append(word)
        else:
            inside = False
            kept.append(word)
    own = [word.removeprefix("set=") for word in config if word.startswith("set=")]
    added = [word for word in config if not word.startswith("set=")]
    if own or pairs:
        added.append("set=" + " ".join([*own, *pairs]))
    if point:
        added.append(f"point={point}")
    return [*kept, "--config", *added]


def expand_patterns(arguments: list[str]) -> list[str]:
    """Replace targets such as `data_*` by the experiments that they match at the profile's scale.

    Raises:
        UserError: a pattern that matches no experiment.
    """
    is_pattern = [
        not word.startswith("-") and "=" not in word and bool(set(word) & set("*?[")) for word in arguments
    ]
    if not any(is_pattern):
        return arguments
    config: dict[str, Any] = {}
    for option, value in itertools.pairwise(arguments):
        path = Path(value, "workflow.yaml")
        if option == "--profile" and path.exists():
            config |= parse_yaml(path.read_text(encoding="utf-8"), str(path)) or {}
    config |= dict(word.split("=", 1) for word in arguments if "=" in word and not word.startswith("-"))
    settings, _ = split(config)
    study = load_study(settings.study, settings.scale, settings.set, config)
    found: list[str] = []
    for word, pattern in zip(arguments, is_pattern):
        hits = fnmatch.filter([name for name, item in study.experiments.items() if not item.skip], word)
        if pattern and not hits:
            raise UserError(f"no experiment matches {word!r} at scale {settings.scale} (`trm study list`)")
        found += hits if pattern else [word]
    return found


def launch(arguments: list[str]) -> int:
    """Run `snakemake ARGUMENTS` and record how it ended; returns its exit code. Waits for another run that is still
    alive in this folder, even if its terminal was closed.

    Raises:
        UserError: if the folder cannot be written.
    """
    with lock.wait_and_join() as handle:
        return _run(arguments, handle)


def _run(arguments: list[str], handle: TextIO) -> int:
    snakemake = Path(sys.executable).with_name("snakemake")
    started = time.time()
    record = Path("results/launches") / time.strftime("%Y%m%dT%H%M%SZ.json", time.gmtime(started))
    log_before = _newest_log()
    # Ctrl-C reaches Snakemake by itself (same terminal group); it stops its jobs, and we wait for it.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            [str(snakemake), *arguments],
            pass_fds=[handle.fileno()],  # Snakemake shares the lock: it may outlive this process
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
    log = _newest_log()
    if log and log != log_before:
        state = "finished" if code == 0 else "failed"
        seconds = round(time.time() - started, 1)
        write_json(
            record,
            {
                "arguments": arguments,
                "state": state,
                "code": code,
                "seconds": seconds,
                "log": log,
                "runs": trained_since(
                    started, _setting(arguments, "logs", "logs"), _setting(arguments, "storage_prefix", "")
                ),
            },
        )
    return code if code >= 0 else 128 - code


def trained_since(started: float, logs: str, prefix: str = "") -> list[dict[str, Any]]:
    """Runs that were trained since `started` (seconds since 1970): run, state, seconds, log.

    Args:
        logs: folder of the jobs' logs.
        prefix: gs:// prefix of the results; empty: this disk.
    """
    place = Place(prefix)
    found = []
    for log in sorted(Path(logs, "train").glob("*.log")):
        if log.stat().st_mtime < started:
            continue
        result = f"results/runs/{log.stem}/training.json"
        entry: dict[str, Any] = {"run": log.stem, "state": "unfinished", "seconds": None, "log": str(log)}
        if place.exists(result):
            entry |= {"state": "finished", "seconds": None if prefix else _seconds(Path(result))}
        found.append(entry)
    return found


def _seconds(result: Path) -> float | None:
    """Seconds of training; None if the file is damaged, which the job that reads it next says."""
    try:
        facts = json.loads(result.read_text(encoding="utf-8"))
        return round(float(facts["wall_seconds"]) + float(facts.get("setup_seconds", 0.0)), 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _setting(arguments: list[str], key: str, default: str) -> str:
    """Value of `--config KEY=...`."""
    start = f"{key}="
    return next((word.removeprefix(start) for word in reversed(arguments) if word.startswith(start)), default)


def _newest_log() -> str:
    logs = sorted(Path(".snakemake/log").glob("*.log"))
    return str(logs[-1]) if logs else ""
