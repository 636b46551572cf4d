"""Running Snakemake so that a killed run never needs hand-work: `python -m trm study run`.

An advisory lock of the operating system, which dies with its process, tells whether another run is alive; if none is,
a lock that Snakemake left behind is stale and is removed. Each launch leaves one JSON in results/launches/.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from trm.io import write_json
from trm.pipeline import lock
from trm.pipeline.settings import parse_overrides


def with_overrides(arguments: list[str], pairs: list[str]) -> list[str]:
    """Snakemake's arguments with `--set` pairs as its `--config set=...`, joined with a `--config` that is there
    (Snakemake heeds only the last one).

    Raises:
        UserError: if a pair is no section.key=value.
    """
    if not pairs:
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
    others = [word for word in config if not word.startswith("set=")]
    return [*kept, "--config", *others, "set=" + " ".join([*own, *pairs])]


def launch(arguments: list[str]) -> int:
    """Run `snakemake ARGUMENTS` and record how it ended; returns its exit code. Waits for another launch that is
    still alive in this folder, be it one whose terminal was closed or whose `make` was killed.

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
                "runs": trained_since(started, _logs_folder(arguments)),
            },
        )
    return code if code >= 0 else 128 - code


def trained_since(started: float, logs: str) -> list[dict[str, Any]]:
    """Runs whose training was at work since `started` (seconds since 1970): run, state, seconds, log."""
    found = []
    for log in sorted(Path(logs, "train").glob("*.log")):
        if log.stat().st_mtime < started:
            continue
        result = Path("results/runs", log.stem, "training.json")
        entry: dict[str, Any] = {"run": log.stem, "state": "unfinished", "seconds": None, "log": str(log)}
        if result.exists():
            facts = json.loads(result.read_text(encoding="utf-8"))
            seconds = round(facts["wall_seconds"] + facts.get("setup_seconds", 0.0), 1)
            entry |= {"state": "finished", "seconds": seconds}
        found.append(entry)
    return found


def _logs_folder(arguments: list[str]) -> str:
    """The folder that `--config logs=...` names."""
    return next((word[5:] for word in reversed(arguments) if word.startswith("logs=")), "logs")


def _newest_log() -> str:
    logs = sorted(Path(".snakemake/log").glob("*.log"))
    return str(logs[-1]) if logs else ""
