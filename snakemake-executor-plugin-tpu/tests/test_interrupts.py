"""Ctrl-C at moments that are hard to hit, and the test harness for it."""

import asyncio
import contextlib
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from study import ONE_HOST

from snakemake_executor_plugin_tpu import driver
from snakemake_executor_plugin_tpu.executor import Executor
from snakemake_executor_plugin_tpu.settings import ExecutorSettings

INTERRUPTED = str(Path(__file__).with_name("interrupted.py"))


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        ("driver.loop.call_soon_threadsafe", "Stopping 1 job(s) on the TPU pod"),  # a job is being submitted
        ("driver.thread.join", "Terminating processes on user request"),  # all is done, the loop has stopped
    ],
)
def test_ctrl_c_at_any_moment_ends_the_call(study, moment, said):
    one = study({"a": {}}, **ONE_HOST)
    call = one.start(program=(INTERRUPTED, moment, "--"))
    assert call.wait() == 1
    assert said in call.output
    assert "Traceback" not in call.output
    assert "does not answer" not in call.output
    assert one.pod.jobs() == {}


def test_second_ctrl_c_does_not_wait_for_the_pod(study):
    one = study({"a": {"options": "--hold 2 --stubborn"}}, **ONE_HOST | {"tpu-grace": 60})
    call = one.start()
    call.wait_for(r"job=a 0\] step 2$")
    call.signal(signal.SIGINT)
    call.wait_for(r"Stopping 1 job\(s\) on the TPU pod \(at most 60 s\)")
    call.signal(signal.SIGINT)
    assert call.wait(timeout=50) == 1
    assert "Not waiting for the pod any longer: its jobs end by themselves within" in call.output
    assert "Traceback" not in call.output
    assert call.output.splitlines()[-1].startswith("TPU pod pod (v4-8, READY) still exists and costs money")


def test_second_ctrl_c_is_noticed_while_the_first_is_logged(monkeypatch):
    """Snakemake's log handler swallows a KeyboardInterrupt that is raised while it writes."""
    output = []

    def write(message):
        output.append(message)
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    executor = Executor.__new__(Executor)
    executor.settings, executor.futures, executor.runs = ExecutorSettings(), {}, {}
    executor.driver = SimpleNamespace(ended=False)  # and it is never called
    executor.logger = SimpleNamespace(info=write, error=output.append)
    monkeypatch.setattr(sys, "exc_info", lambda: (None, KeyboardInterrupt(), None))
    executor.cancel_jobs([])
    monkeypatch.undo()
    assert "Not waiting for the pod any longer" in output[-1]
    assert signal.getsignal(signal.SIGINT) is before


def test_the_polling_interval_holds_from_the_first_poll():
    # The polling thread starts before the executor is complete and would use Snakemake's 10 s.
    assert Executor.__new__(Executor).next_seconds_between_status_checks < 1


def test_driver_ends_once_and_leaves_a_stuck_loop_behind(monkeypatch):
    monkeypatch.setattr(driver, "JOIN_SECONDS", 0.0)
    one, go = driver.Driver("one"), threading.Event()
    with pytest.raises(TimeoutError):
        one.call(asyncio.sleep(3600), timeout=0)
    one.call(driver.end(*(asyncio.all_tasks(one.loop))))
    one.loop.call_soon_threadsafe(go.wait)
    one.end()
    assert one.ended
    assert one.thread.is_alive()
    go.set()
    one.thread.join()
    one.end()  # as when Ctrl-C came in between
    assert one.loop.is_closed()
