"""Jobs of one machine as forks of a process that has imported torch already, which saves two CPU seconds a job.

Snakemake starts a process for every job. Where the jobs are short, most of such a process is imports. So the controller
starts servers (`Servers`), and `python -m trm COMMAND` (`forkclient.py`) passes its arguments, folder, environment and
standard files to one of them instead of running the command itself. The server forks a child that runs it; signals and
the exit code pass between the two. Whatever differs from the server's own start (another interpreter, variables that
libraries read when they are imported) is run as if there were no server.
"""

import ast
import gc
import importlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trm.launch.forkclient import FOLDER, FORWARDED, start
from trm.provenance import loaded_commit

IMPORTS = {
    "training": (
        "trm.cli.train", "trm.training.loop", "trm.training.setup", "trm.training.checkpoints.remote",
        "trm.training.optim.adam_atan2", "trm.backends.cuda.gpus", "trm.backends.tpu.chips", "trm.storage.folders",
        "trm.study.grid", "trm.tasks.sudoku.task", "trm.evaluation.evaluate", "trm.cli.evaluate", "trm.slurm.requeue",
        "trm.cli.configuration", "trm.cli.log", "trm.pipeline.settings", "trm.storage.local", "trm.tasks.sudoku.spec",
        "encodings.utf_8_sig", "numpy.ctypeslib", "numpy.ma", "numpy.random",
    ),
    "analysis": (
        "trm.cli.study", "trm.pipeline.estimates", "trm.pipeline.project", "trm.analysis.drawing",
        "trm.analysis.report", "matplotlib.backends.backend_pdf", "matplotlib.backends.backend_svg", "fontTools.subset",
        "PIL.PngImagePlugin",
    ),
}  # fmt: skip
"""What each server imports when its first job comes."""
MAX_REQUEST = 1 << 20
"""Bytes; a longer one is cut, so that it is no literal and is refused."""


class Server:
    """Forks a child for every connection. Ends when its standard input is closed and all children have ended.

    Args:
        kind: of IMPORTS.
        address: path of the socket.
        main: runs a command line and returns its exit code.
    """

    def __init__(self, kind: str, address: str, main: Callable[[list[str]], int]):
        self._kind, self._address, self._main = kind, address, main
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(address)
        self._listening.listen(64)
        woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking)
        self._woken, self._waking = woken, waking
        for file, name in ((self._listening, "client"), (0, "parent"), (woken, "child")):
            self._selector.register(file, selectors.EVENT_READ, name)

    def serve(self) -> int | None:
        """Serve until the end (None), or in a child: the exit code of its command."""
        while self._children or self._listening.fileno() >= 0:
            for key, _ in self._selector.select():
                if key.data == "client" and self._listening.fileno() >= 0:
                    connection, _ = self._listening.accept()
                    request = self._fork(connection)
                    if request is not None:
                        return self._run(request)
                elif key.data == "parent":
                    self._selector.unregister(0)
                    self._selector.unregister(self._listening)
                    self._listening.close()
                    Path(self._address).unlink(missing_ok=True)
                    with suppress(OSError):  # the other server's socket is still there
                        Path(self._address).parent.rmdir()
                elif key.data == "child":
                    os.read(self._woken, 1 << 16)
                    self._reap()
                elif key.data in self._children:  # not reaped just now; its client is gone: it was killed
                    self._selector.unregister(key.fileobj)
                    with suppress(ProcessLookupError):
                        os.kill(key.data, signal.SIGKILL)
        return None

    def _fork(self, connection: socket.socket) -> dict[str, Any] | None:
        """In the child: the request."""
        try:
            length, files, _, _ = socket.recv_fds(connection, 4, 3)
            with connection.makefile("rb") as stream:
                text = stream.read(min(MAX_REQUEST, int.from_bytes(length, "big")))
            request: dict[str, Any] = ast.literal_eval(text.decode())
            wanted = request["start"]
        except (OSError, SyntaxError, ValueError, LookupError, TypeError):
            connection.close()
            return None
        child = None
        if wanted == start(dict(os.environ)):
            for name in IMPORTS[self._kind]:
                importlib.import_module(name)
            loaded_commit()  # for the children: later edits are not in these modules
            gc.freeze()  # what a child's collector marks is copied first
            with suppress(OSError):  # no memory or processes left: the job tries by itself
                child = os.fork()
        if child is None:
            with suppress(OSError):  # the client is gone
                connection.sendall(b"0\n")
        else:
            if child == 0:
                self._leave(connection)
                return request | {"files": files}
            with suppress(OSError):  # a client that was killed meanwhile is noticed like any other
                connection.sendall(f"{child}\n".encode())
            self._children[child] = connection
            self._selector.register(connection, selectors.EVENT_READ, child)
        for file in files:
            os.close(file)
        if connection not in self._children.values():
            connection.close()
        return None

    def _leave(self, connection: socket.socket) -> None:
        """Close what belongs to the server."""
        signal.set_wakeup_fd(-1)
        for number in (*FORWARDED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        for file in (self._listening, connection, *self._children.values()):
            file.close()
        os.close(self._woken)
        os.close(self._waking)

    def _run(self, request: dict[str, Any]) -> int:
        for number, file in enumerate(request["files"]):
            os.dup2(file, number)
            os.close(file)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None  # that of the server's environment
        sys.argv = ["trm", *request["arguments"]]
        try:
            return self._main(request["arguments"])
        except SystemExit as ending:
            if isinstance(ending.code, int | None):
                return ending.code or 0
            print(ending.code, file=sys.stderr)
            return 1

    def _reap(self) -> None:
        for child in list(self._children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                continue
            connection = self._children.pop(child)
            with suppress(KeyError):
                self._selector.unregister(connection)
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError), connection:
                connection.sendall(f"{code if code >= 0 else 128 - code}\n".encode())


class Servers:
    """The servers of a controller on Linux; `close` lets them end with their last job.

    Sets the variable by which the jobs that this process starts find them.

    Args:
        threads: of each job; other jobs run by themselves.
    """

    def __init__(self, threads: int):
        self._folder = tempfile.mkdtemp(prefix="trm-")
        # as Snakemake sets them for a job
        names = ("OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR")
        environment = os.environ | {f"{name}_NUM_THREADS": str(threads) for name in names}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "trm", "fork-server", kind, str(Path(self._folder, kind))],
                stdin=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal reaches the clients, which forward it
            )
            for kind in IMPORTS
        ]
        os.environ[FOLDER] = self._folder

    def close(self) -> None:
        """Accept no further jobs."""
        os.environ.pop(FOLDER, None)
        for process in self.processes:
            if process.stdin:
                process.stdin.close()
