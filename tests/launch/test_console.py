"""What a user sees of `trm study run`: a quiet panel on a terminal, a line for each run elsewhere."""

import io
import json
import os
import pty
import re
import signal
import sys
import threading

import pytest
from rich.console import Console

from tests import warm
from tests.pipeline.conftest import STUDY, new_project, one_run
from trm.launch import console
from trm.launch.console import Progress, View, replaces_output
from trm.training.history import progress_line

ROW = {
    "step": 42, "train/loss": 1.25, "train/exact_accuracy": 0.5,
    "perf/rows_per_second": 1234.0, "perf/flops_per_second": 5e9,
}  # fmt: skip
LINE = progress_line([ROW | {"step": 40, "eval/exact_accuracy": 0.125}, ROW], 100, 3723)
"""Two steps after a validation: 12.5 % of the validation puzzles, half of those trained on."""


def job(number, run="", rule="train", log="", text=None):
    facts = {"event": "job", "id": number, "rule": rule, "run": run, "log": str(log), "output": ""}
    return facts | {"text": text or rule}


@pytest.fixture
def log(tmp_path):
    """The log of a run whose last line is LINE."""
    path = tmp_path / "log"
    path.write_text(LINE + "\n")
    return path


@pytest.fixture
def clock(monkeypatch):
    """The console's time, in a list."""
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


class Told:
    """A console on a file that is told events; `text` is all that it has written."""

    def __init__(self):
        self.file = io.StringIO()
        self.view = View(Console(file=self.file, highlight=False, soft_wrap=True))

    def __call__(self, *events):
        with console.EVENTS.open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)
        self.view.update()

    @property
    def text(self):
        return self.file.getvalue()


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A console."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "EVENTS", tmp_path / "events")
    monkeypatch.setattr(console, "OUTPUT", tmp_path / "output")
    return Told()


STARTED = {"event": "started"}
RUN = "restarts, Nsup 4, d 32, seed 0"
NAMES = {"a": [*RUN.split(", ", 1), "4"]}
PLAN = {
    "event": "plan",
    "runs": {"a": 10.0, "b": 30.0},
    "names": NAMES,
    "others": 3,
    "at_once": 1,
    "start": 2.0,
}


def test_the_last_line_of_a_runs_log_is_its_progress(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        f"--- before\n100 %  step 100/100  loss 9  validation -  1 rows/s  0:00:00 left\n--- now\n{LINE}\n{LINE[:9]}"
    )
    study = Progress()
    study.take(job(1, "a", log=log))
    assert study.running[1].progress() == (42, "1.2500", "12.5 %", 3723.0)
    study.running[1].read -= console.AGE
    log.write_text(f"{LINE}\n--- another attempt\n")
    assert study.running[1].progress() is None
    log.write_text(f"{LINE}\n")  # in less than AGE: a finished run shows its last line
    assert study.take({"event": "finished", "id": 1}).progress() == (42, "1.2500", "12.5 %", 3723.0)


def test_the_time_left_counts_what_is_planned_and_follows_what_was_measured(log, clock):
    study = Progress()
    study.take(dict(STARTED))
    study.take(dict(PLAN))
    assert study.left() == 10 + 30 + 3 * 2
    study.take(job(1, "a"))
    clock[0] = 20.0  # twice as long as planned
    assert study.take({"event": "finished", "id": 1}).run == "a"
    assert study.left() == 30 * (20 + 2) / (10 + 2) + 3 * 2  # the plan weighs a twentieth of 10 + 30
    study.take(job(2, "b", log=log))
    assert study.left() == 3723 + 3 * 2


def test_it_ends_with_the_answers_of_the_figures(told, tmp_path):
    (tmp_path / "a.json").write_text('{"answer": "Exact accuracy is 5.0 points higher."}')
    told(STARTED, PLAN)
    drawn = job(1, rule="plot") | {"output": str(tmp_path / "a.pdf")}
    told(drawn, {"event": "finished", "id": 1}, job(2, rule="table"), {"event": "finished", "id": 2})
    told.view.conclude(0)
    lines = told.text.splitlines()
    assert "Exact accuracy is 5.0 points higher." in lines
    assert lines[-1] == f"0 runs trained, all done in 0 s: {tmp_path / 'a.pdf'}"


def test_elsewhere_than_on_a_terminal_it_is_never_silent_for_long(clock, told, log):
    """A finished run has no line of its own, and a run without a validation shows none."""
    for events in ([], [STARTED, PLAN], [job(1, "a", log=log), job(2, rule="table")], []):
        clock[0] += console.SILENCE
        told(*events)
    log.write_text(progress_line([ROW], 100, 3723) + "\n")
    clock[0] += console.SILENCE
    told()
    told({"event": "finished", "id": 1}, {"event": "message", "text": "the slice was preempted"})
    told.view.interrupt(15, None)
    assert told.text.splitlines() == [
        "looking for what is to be done (30 s)",
        "2 runs to train, about 46 s left",
        *[f"0/2 runs, {RUN}, 42 %, validation 12.5 % (4 steps), 1 other job, about 63 min left"] * 2,
        f"0/2 runs, {RUN}, 42 %, 1 other job, about 63 min left",
        "the slice was preempted",
        "Stopping: each run writes its checkpoint.",
    ]


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_failed_job_is_named_with_its_reason(told, log, interrupted):
    log.write_text("much\ntrm train: training stopped\n\n")
    told.view.interrupted = interrupted
    told(STARTED, PLAN, job(1, "a", log=log), {"event": "failed", "id": 1})
    told.view.conclude(1)
    sentence = f"Failed: a\n  trm train: training stopped\n  {log}\n1 job failed after 0 s"
    assert (sentence in told.text, "Failed" in told.text) == (not interrupted,) * 2


def test_the_panel_has_runs_and_times(log):
    text = io.StringIO()
    view = View(Console(file=text, width=100))
    view.study = Progress()
    for event in (STARTED, PLAN, job(1, "a", log=log), job(2, rule="table", text="Table t")):
        view.study.take(dict(event))
    view.console.print(view.panel())
    shown, run = text.getvalue(), "42 %  loss 1.2500  validation 12.5 % (4 steps)  62 min left"
    for words in ("about 63 min left", "0 of 2 runs", run, "Table t"):
        assert words in shown
    assert len(shown.splitlines()) == 5


def test_a_refusal_is_said_once(told, capsys):
    """Snakemake's process reports it and writes it to its output, too."""
    console.OUTPUT.write_text("Using profile profiles/local.\nthe study has no experiment 'bach'\n")
    told({"event": "message", "text": "the study has no experiment 'bach'"})
    told.view.conclude(1)
    assert told.text == "the study has no experiment 'bach'\n"
    assert capsys.readouterr().err == "Using profile profiles/local.\n"


def test_without_a_start_the_last_error_is_shown(told, capsys):
    console.OUTPUT.write_text('host: x\nWorkflowError in file "Snakefile", line 3:\nno experiment bach\n')
    told.view.conclude(1)
    assert capsys.readouterr().err == 'WorkflowError in file "Snakefile", line 3:\nno experiment bach\n'
    reason = "WorkflowError in rule train:\nOutput a has older modification time than input b.\n"
    last = "WorkflowError:\nAt least one job did not complete successfully.\n"
    console.OUTPUT.write_text(f"Job 3\n{reason}{last}")
    told(STARTED)
    told.view.conclude(1)
    assert capsys.readouterr().err == reason + last


@pytest.mark.parametrize("words", [["-n"], ["-p"], ["--verbose"], ["--summary"], ["--quiet=rules"]])
def test_snakemake_speaks_for_itself_when_asked(words):
    assert not replaces_output(["--profile", "profiles/local", *words])
    assert replaces_output(["--profile", "profiles/local", "batch"])


class Terminal:
    """A command in a pseudo-terminal; `text`: all that it has written."""

    def __init__(self, folder, *words):
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "trm", "study", "run", "--profile", "profiles/local", *words]
        self.process = warm.Popen(
            command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        )  # fmt: skip
        os.close(theirs)
        self.text, self._news = "", threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        try:
            while part := os.read(self._ours, 65536):
                with self._news:
                    self.text += part.decode("utf-8", "replace")
                    self._news.notify()
        except OSError:
            pass  # its last user has closed it

    def wait_for(self, words):
        with self._news:
            assert self._news.wait_for(lambda: words in self.text, timeout=180), self.text[-3000:]

    def end(self):
        """Exit code and the lines that stay on the screen: those after the panel was last cleared."""
        code = self.process.wait(timeout=300)
        self._reader.join()
        os.close(self._ours)
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.text.rpartition("\x1b[2K")[2])
        return code, [line.rstrip() for line in plain.replace("\r", "").splitlines() if line.strip()]


def study_of(steps):
    """Two runs."""
    return one_run(steps) | {"experiments": {"batch": STUDY["experiments"]["batch"]}}


@pytest.mark.full
def test_a_study_on_a_terminal_ends_with_its_findings_and_the_report(tmp_path):
    project = new_project(tmp_path, study_of(4))
    terminal = Terminal(project.folder)
    code, lines = terminal.end()
    assert code == 0
    answer = "- Exact accuracy differs by 0.0 points between batch size 8 and batch size 4; "
    assert " ".join(lines[:2]) == answer + "one pair of seeds gives no interval."
    assert re.fullmatch(r"2 runs trained, all done in .*: results/report.html", lines[-1])
    assert len(lines) <= 8
    assert "of 2 runs" in terminal.text
    assert "Reason:" not in terminal.text
    assert "Building DAG of jobs" in (project.folder / ".snakemake/console.log").read_text()
    nothing = "Nothing to do: all that was asked for is there and current."
    assert Terminal(project.folder).end() == (0, [nothing])


@pytest.mark.full
def test_ctrl_c_ends_in_three_lines(tmp_path):
    terminal = Terminal(new_project(tmp_path, study_of(20_000)).folder)
    terminal.wait_for("loss")
    os.killpg(terminal.process.pid, signal.SIGINT)
    code, lines = terminal.end()
    assert code != 0
    assert len(lines) == 3
    assert re.fullmatch(r"Interrupted after .*: 0 of 2 runs trained.", lines[0])
