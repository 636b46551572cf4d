"""What a user sees of `trm study run`: a panel on a terminal, a line each half minute elsewhere, and the answer.

Snakemake's own output and that of its jobs go to `OUTPUT`; each job has its log besides.
"""

import json
import math
import re
import sys
import termios
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trm.io import tail
from trm.study.text import count
from trm.study.text import seconds_text as exact_text

OUTPUT, EVENTS = Path(".snakemake/console.log"), Path(".snakemake/console.jsonl")
RAW = re.compile(
    r"-[npqSDlhv]|--(dry-?run|printshellcmds|verbose|quiet|logger|(detailed-)?summary|dag|rulegraph|filegraph|d3dag|lint|"
    r"list|report|unlock|archive|delete-all-output|help|version|cleanup-metadata|generate-unit-tests|containerize)(=.*)?"
)
"""Options under which Snakemake's own output is shown: the user wants all of it, or no jobs run."""
SHOWN = 8
"""Running jobs in the panel."""
AGE = 1.0
"""Seconds until a log is read again."""
SILENCE = 30.0
"""Seconds between two lines of progress where the output is no terminal."""
PROGRESS = re.compile(
    r"^ *(\d+) %  step \d+/\d+  loss (\S+)  validation +(-|[\d.]+ %).*  (\d+):(\d\d):(\d\d) left$",
    re.MULTILINE,
)
"""A line of `trm.training.history.progress_line`."""
ERROR = re.compile(r"^\w+(Error|Exception)\b.*:$(?!\nAt least one job did not)", re.MULTILINE)
"""Start of an error in Snakemake's output; the closing `At least one job did not...` gives no reason."""


def seconds_text(seconds: float) -> str:
    """A duration in whole seconds, so that it does not flicker."""
    return exact_text(float(round(seconds)))


def replaces_output(arguments: list[str]) -> bool:
    """Whether the console replaces Snakemake's output for these arguments."""
    return not any(map(RAW.fullmatch, arguments))


class LastLine(NamedTuple):
    """What the last line of a run's log says."""

    percent: int
    loss: str
    validation: str
    """Exact accuracy on the validation puzzles after the supervision steps of training."""
    left: float
    """Seconds."""


@dataclass
class Job:
    """A job that has begun."""

    rule: str
    run: str
    """Of a training or an evaluation, else empty."""
    text: str
    log: str
    output: str
    started: float = field(default_factory=lambda: time.monotonic())
    read: float = -math.inf
    known: LastLine | None = None

    @property
    def name(self) -> str:
        """The name shown to the user."""
        return self.run if self.rule == "train" else self.text

    def progress(self) -> LastLine | None:
        """By the last line of the log, which is reread after `AGE` seconds; None: none yet."""
        now = time.monotonic()
        if now - self.read >= AGE:
            self.read, self.known = now, None
            found = PROGRESS.findall(tail(Path(self.log)).rpartition("\n--- ")[2])  # of the last attempt
            if found:
                percent, loss, validation, hours, minutes, seconds = found[-1]
                left = 3600.0 * int(hours) + 60 * int(minutes) + int(seconds)
                self.known = LastLine(int(percent), loss, validation, left)
        return self.known


def answers(outputs: Iterable[str]) -> list[str]:
    """What the figures among some files found, a sentence for each that found something."""
    found = [Path(output).with_suffix(".json") for output in outputs if output.endswith(".pdf")]
    texts = [json.loads(path.read_text(encoding="utf-8")).get("answer") for path in found if path.exists()]
    return list(dict.fromkeys(filter(None, texts)))


class Progress:
    """Of a running study, by its events."""

    def __init__(self) -> None:
        self.began, self.started = time.monotonic(), False
        self.runs: dict[str, float] = {}
        """Seconds that each run to be trained should take."""
        self.names: dict[str, list[str]] = {}
        """Of each run to be trained: its experiment, its point with the seed, and its supervision steps."""
        self.at_once, self.start, self.others = 1, 0.0, 0
        self.running: dict[int, Job] = {}
        self.done: list[Job] = []
        self.failed: list[Job] = []
        self._seconds: dict[str, list[float]] = {"train": [], "other": []}
        self._expected = 0.0

    def take(self, facts: dict[str, Any]) -> Job | None:
        """Record an event; returns the job that has finished or failed."""
        kind = facts.pop("event")
        if kind == "started":
            self.started = True
        elif kind == "plan":
            self.runs, self.others = facts["runs"], facts["others"]
            self.names = facts["names"]
            self.at_once, self.start = max(1, facts["at_once"]), facts["start"]
        elif kind == "job":
            number = facts.pop("id")
            self.running[number] = Job(**facts)
        elif kind in ("finished", "failed") and (job := self.running.pop(facts["id"], None)):
            (self.done if kind == "finished" else self.failed).append(job)
            job.read = -math.inf  # its last line counts
            trained = job.rule == "train"
            self._seconds["train" if trained else "other"].append(time.monotonic() - job.started)
            self._expected += self.runs.get(job.run, 0.0) if trained else 0.0
            return job
        return None

    def name_of(self, job: Job) -> str:
        """`restarts, Nsup 4, d 32, seed 0` for a training; other jobs keep their name."""
        return ", ".join(self.names.get(job.run, [])[:2]) or job.name if job.rule == "train" else job.text

    def validation(self, job: Job, progress: LastLine) -> str:
        """The latest validation of a training, with the supervision steps of its answers; "": none yet."""
        if progress.validation == "-":
            return ""
        steps = self.names.get(job.run, ["", "", ""])[2]
        shown = f" ({steps} step{'s' * (steps != '1')})" if steps else ""
        return f"validation {progress.validation}{shown}"

    def trained(self) -> int:
        return sum(job.rule == "train" for job in self.done)

    def left(self) -> float:
        """Seconds until the end: estimates of what has not begun, corrected by the runs that have ended."""
        # the first jobs import torch: the plan weighs as much as a twentieth of all that is to be done
        prior_seconds, prior_others = sum(self.runs.values()) / 20 or 1.0, self.others / 20 or 1.0
        others = self._seconds["other"]
        factor = (sum(self._seconds["train"]) + prior_seconds) / (self._expected + prior_seconds)
        begun = {job.run for job in (*self.running.values(), *self.done, *self.failed) if job.rule == "train"}
        waiting = sum(seconds for run, seconds in self.runs.items() if run not in begun)
        present = []
        for job in self.running.values():
            if job.rule == "train":
                progress = job.progress()
                further = self.runs.get(job.run, 0.0) * factor - (time.monotonic() - job.started)
                present.append(progress.left if progress else max(0.0, further))
        training = max((waiting * factor + sum(present)) / self.at_once, max(present, default=0.0))
        each = (sum(others) + prior_others * self.start) / (len(others) + prior_others)
        return training + each * max(0, self.others - len(others)) / self.at_once


@contextmanager
def _without_echo() -> Iterator[None]:
    """Switch off the terminal's echo, so that no key and no `^C` appears in the panel."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, ValueError, OSError):  # no terminal
        yield
        return
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class View:
    """Reads the events of a study and shows them on a console."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(highlight=False, soft_wrap=not sys.stdout.isatty())
        self.study = Progress()
        self.interrupted = False
        self._told: set[str] = set()
        self._read, self._stack, self._shown_at = 0, ExitStack(), time.monotonic()
        self._live = Live(
            get_renderable=self.panel, console=self.console, transient=True, auto_refresh=False,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._stack.enter_context(_without_echo())
            self._stack.enter_context(self._live)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def interrupt(self, number: int, frame: object) -> None:
        """Record Ctrl-C or SIGTERM, which Snakemake receives too."""
        if not self.interrupted and not self.console.is_terminal:
            self._line("Stopping: each run writes its checkpoint.")
        self.interrupted = True

    def update(self) -> None:
        """Process new events and redraw the panel."""
        for facts in self._new_events():
            if facts["event"] == "message":
                if not self.interrupted:
                    self._told |= {line.strip() for line in facts["text"].splitlines()}
                    self.console.print(Text(facts["text"]), style="yellow")
                continue
            failed = facts["event"] == "failed"
            job = self.study.take(facts)
            if job and failed and not self.interrupted:
                reason = next(
                    (line for line in reversed(tail(Path(job.log)).splitlines()) if line.strip()),
                    "no log",
                )
                self.console.print(Text(f"Failed: {job.name}\n  {reason}\n  {job.log}"), style="red")
            elif facts.get("runs") and not self.console.is_terminal and not self.interrupted:
                self._line(f"{count(len(self.study.runs), 'run')} to train, {self._left()}")
        if self.console.is_terminal:
            self._live.refresh()
        elif time.monotonic() - self._shown_at >= SILENCE:
            self._line(self._running())

    def _new_events(self) -> list[dict[str, Any]]:
        try:
            with EVENTS.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]  # the last line may be half written
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def _line(self, text: str) -> None:
        self._shown_at = time.monotonic()
        self.console.print(Text(text))

    def _left(self) -> str:
        return f"about {seconds_text(self.study.left())} left"

    def _running(self) -> str:
        """What is done and under way: the run that is furthest, or the first other job."""
        study, parts = self.study, []
        jobs = sorted(study.running.values(), key=lambda job: job.rule != "train")
        if not jobs and not study.done:
            return f"looking for what is to be done ({seconds_text(time.monotonic() - study.began)})"
        if study.runs:
            parts.append(f"{study.trained()}/{count(len(study.runs), 'run')}")
        if jobs:
            progress = jobs[0].progress() if jobs[0].rule == "train" else None
            parts.append(study.name_of(jobs[0]) + (f", {progress.percent} %" if progress else ""))
            measured = study.validation(jobs[0], progress) if progress else ""
            parts += [measured] if measured else []
        parts += [count(len(jobs) - 1, "other job")] if len(jobs) > 1 else []
        return ", ".join([*parts, self._left()])

    def panel(self) -> Panel:
        study = self.study
        elapsed = seconds_text(time.monotonic() - study.began)
        if self.interrupted:
            title = "stopping: each run writes its checkpoint"
        elif not study.started:
            title = "looking for what is to be done"
        else:
            title = f"about {seconds_text(study.left())} left"
        rows: list[Any] = []
        if study.runs:
            head = Table.grid(padding=(0, 1), expand=True)
            head.add_column(no_wrap=True)
            head.add_column(ratio=1)
            bar = ProgressBar(total=len(study.runs), completed=study.trained())
            head.add_row(f"{study.trained()} of {count(len(study.runs), 'run')}", bar)
            rows.append(head)
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for _ in range(4):
            table.add_column(justify="right", no_wrap=True)
        running = sorted(study.running.values(), key=lambda job: (job.rule != "train", job.started))
        for job in running[:SHOWN]:
            progress = job.progress() if job.rule == "train" else None
            name = study.name_of(job)
            if progress:
                measured = study.validation(job, progress)
                left = f"{seconds_text(progress.left)} left"
                table.add_row(name, f"{progress.percent} %", f"loss {progress.loss}", measured, left)
            else:
                table.add_row(Text(name, style="dim"), "", "", "", "")
        if len(running) > SHOWN:
            table.add_row(Text(f"and {len(running) - SHOWN} more", style="dim"), "", "", "", "")
        rows.append(table)
        subtitle = Text(f"{elapsed} · everything else: {OUTPUT}", style="dim")
        return Panel(Group(*rows), title=title, title_align="left", subtitle=subtitle, subtitle_align="right")

    def conclude(self, code: int) -> None:
        """Print the outcome: the results, or why there are none."""
        study, console = self.study, self.console
        took = seconds_text(time.monotonic() - study.began)
        trained = f"{study.trained()} of {count(len(study.runs), 'run')} trained"
        if self.interrupted:
            console.print(f"Interrupted after {took}: {trained}.")
            console.print("The same command goes on from the checkpoints.")
            console.print(f"Output of Snakemake and its jobs: {OUTPUT}")
        elif not study.started or (code and not study.failed):
            output = tail(OUTPUT, 20_000)
            errors = [found.start() for found in ERROR.finditer(output)]
            for line in output[errors[-1] if code and errors else 0 :].splitlines(keepends=True):
                if line.strip() not in self._told:
                    sys.stderr.write(line)
        elif code:
            partial = Path("results/report.partial.html")
            shown = f" {partial} shows the results so far." if partial.exists() else ""
            console.print(
                f"{count(len(study.failed), 'job')} failed after {took}{f', {trained}' if study.runs else ''}.{shown}",
                style="red",
            )
            console.print(f"The same command tries again. Output of Snakemake and its jobs: {OUTPUT}")
        else:
            self._findings(took)

    def _findings(self, took: str) -> None:
        done, console = self.study.done, self.console
        if not done:
            console.print("Nothing to do: all that was asked for is there and current.")
            return
        for job in done:
            if job.rule == "html_report":
                for line in tail(Path(job.log), 20_000).splitlines():
                    if line.startswith("- "):
                        console.print(Text(line))
        if not any(job.rule == "html_report" for job in done):
            for answer in answers([job.output for job in done]):
                console.print(Text(answer))
        shown = {rule: [job.output for job in done if job.rule == rule] for rule in ("html_report", "plot")}
        written = ", ".join(shown["html_report"] or shown["plot"])
        trained = f"{count(self.study.trained(), 'run')} trained, all done" if self.study.runs else "All done"
        console.print(f"{trained} in {took}{f': {written}' if written else '.'}", style="bold")
