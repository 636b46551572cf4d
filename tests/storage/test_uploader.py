"""The background uploader: submitting never waits, closing does."""

import subprocess
import sys
import threading

import pytest

from trm.errors import UserError
from trm.storage.uploader import Uploader


def test_submit_returns_while_an_upload_hangs_and_close_waits_for_it():
    uploader, begun, release, done = Uploader(), threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        assert release.wait(30)
        done.append("slow")

    uploader.submit("a", slow)
    assert begun.wait(30)
    uploader.submit("b", lambda: done.append("next"))  # returns though the first upload hangs
    assert done == []
    release.set()
    uploader.close()
    assert done == ["slow", "next"]


def test_a_newer_job_replaces_one_that_waits():
    uploader, begun, release, done = Uploader(), threading.Event(), threading.Event(), []
    uploader.submit("busy", lambda: (begun.set(), release.wait(30)))
    assert begun.wait(30)
    uploader.submit("ckpt", lambda: done.append(1), drop=lambda: done.append("dropped 1"))
    uploader.submit("ckpt", lambda: done.append(2))
    release.set()
    uploader.close()
    assert done == ["dropped 1", 2]


def test_failures_warn_and_close_raises_unless_made_good():
    def fail() -> None:
        raise UserError("the bucket is on fire: pour water.")

    uploader = Uploader()
    uploader.submit("a", fail)
    uploader.wait()
    uploader.submit("a", lambda: None)
    uploader.close()

    uploader = Uploader()
    uploader.submit("a", fail)
    with pytest.raises(UserError, match="on fire"):
        uploader.close()


FORGETFUL = """
import threading
from trm.storage.uploader import Uploader
go = threading.Event()
threading.Timer(0, go.set).start()
Uploader().submit("a", lambda: (go.wait(30), print("uploaded", flush=True)))
"""


def test_the_end_of_the_program_awaits_uploads():
    done = subprocess.run([sys.executable, "-c", FORGETFUL], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (0, "uploaded\n")
