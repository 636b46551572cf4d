"""`--log FILE`: what a command prints also goes to a file.

The command writes the file itself. With `command | tee FILE` a signal to the whole job, as Slurm and a closed terminal
send it, ends the shell and `tee` at once, and the command loses the time it needs for its checkpoint.
"""

import io
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

from trm.provenance import now


class _Both(io.TextIOBase):
    """A text stream that writes to the console and to a file, and to the file alone once the console is gone."""

    def __init__(self, console: TextIO, file: TextIO):
        self._console: TextIO | None = console
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(text)
        if self._console is not None:
            try:
                self._console.write(text)
            except OSError:
                self._console = None
        return len(text)

    def flush(self) -> None:
        self._file.flush()
        if self._console is not None:
            try:
                self._console.flush()
            except OSError:
                self._console = None

    def isatty(self) -> bool:
        return self._console is not None and self._console.isatty()


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Within the block, what Python prints goes to the console and to the end of `path`.

    Snakemake deletes a job's log before each attempt. The text is therefore kept in a hidden file beside it, and
    `path` is a second name (a hard link) of that file: the log of a resumed run holds every attempt.
    """
    kept = path.with_name(f".{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        file = stack.enter_context(kept.open("a", encoding="utf-8", buffering=1))
        if os.environ.get("RANK", "0") == "0":
            path.unlink(missing_ok=True)
            try:
                os.link(kept, path)
            except OSError:  # a file system without hard links
                with suppress(FileExistsError):
                    path.symlink_to(kept.name)
            job = f", Slurm job {number}" if (number := os.environ.get("SLURM_JOB_ID")) else ""
            file.write(f"--- {now()} on {socket.gethostname()}, process {os.getpid()}{job}\n")
        stack.enter_context(redirect_stdout(_Both(sys.stdout, file)))
        stack.enter_context(redirect_stderr(_Both(sys.stderr, file)))
        yield
