"""Uploads in the background: submitting never waits, the program's end does."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from trm.errors import UserError


@dataclass
class _Job:
    run: Callable[[], object]
    drop: Callable[[], object] | None


class Uploader:
    """One thread that runs upload jobs in the order they came.

    A job that has not started is replaced by a newer one of the same key, so a slow bucket never builds up a
    backlog. A failed job warns and is forgotten as soon as a later job of its key succeeds; `close` raises
    what is left over.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: dict[str, _Job] = {}
        self._failed: dict[str, Exception] = {}
        self._busy = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(self, key: str, run: Callable[[], object], drop: Callable[[], object] | None = None) -> None:
        """Queue a job and return at once; `drop` is called instead of `run` when a newer job replaces it."""
        with self._condition:
            if self._closing:
                raise RuntimeError("the uploader is closed")
            replaced = self._waiting.pop(key, None)
            self._waiting[key] = _Job(run, drop)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="trm-upload", daemon=True)
                self._thread.start()
                atexit.register(self._finish)
            self._condition.notify_all()
        if replaced and replaced.drop:
            replaced.drop()

    def wait(self) -> None:
        """Return once nothing is queued or running."""
        with self._condition:
            self._condition.wait_for(lambda: not self._waiting and not self._busy)

    def close(self) -> None:
        """Finish what is queued, end the thread, and raise the error of a job that no later one made good."""
        self._finish()
        for error in self._failed.values():
            raise error

    @property
    def failures(self) -> dict[str, Exception]:
        """Last error of each key whose latest job failed."""
        with self._condition:
            return dict(self._failed)

    def _finish(self) -> None:
        with self._condition:
            self._closing = True
            thread = self._thread
            self._condition.notify_all()
        if thread is not None:
            thread.join()
            atexit.unregister(self._finish)

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                key = next(iter(self._waiting))
                job = self._waiting.pop(key)
                self._busy = True
            error: Exception | None = None
            try:
                job.run()
            except Exception as caught:
                error = caught
            with self._condition:
                self._failed.pop(key, None)
                if error is not None:
                    self._failed[key] = error
                self._busy = False
                self._condition.notify_all()
            if error is not None:
                self._warn(key, error)

    def _warn(self, key: str, error: Exception) -> None:
        sentence = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        try:
            warnings.warn(f"upload of {key} failed: {sentence}", RuntimeWarning, stacklevel=2)
        except RuntimeWarning:
            pass  # warnings are errors here: `close` raises it anyway
