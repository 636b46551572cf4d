"""`python -m MODULE` in forks of a process that has imported the libraries of Snakemake and of the command line, or of
the TPU backend.

Most of a dry run is imports; a fork takes about a quarter of its time. Nothing of this project is imported in advance,
so a fork reads the code under test as any process does.
"""

import atexit
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trm.launch.forkclient import read_at_import

TPU = find_spec("torch_xla") is not None
MODULES = ("snakemake", "snakemake_executor_plugin_tpu", "trm", "tests.training.worker", "tests.script")
MODULES += ("tests.xla.ranks", "tests.xla.steps") if TPU else ()
LIBRARIES = ("torch", "torch_xla", "safetensors.numpy", "pydantic") if TPU else (
    "snakemake.cli", "snakemake.api", "snakemake.workflow", "snakemake.scheduling.milp", "pandas", "pydantic", "torch",
    "scipy.stats", "matplotlib.figure", "matplotlib.backends.backend_agg", "google.cloud.storage", "boto3", "grpc",
    "snakemake_executor_plugin_slurm", "snakemake_storage_plugin_gcs", "snakemake_storage_plugin_s3",
)  # fmt: skip
AT_START = ("HOME", "MPL", "XDG_CONFIG", "XDG_DATA", "PJRT_DEVICE", "XLA_FLAGS")
"""Variables that Python or a library reads when it starts, besides those that a command's own forks heed."""
OURS = dict(os.environ)
"""Of this process before any test changed them: those of the server."""
MAX_REQUEST = 1 << 17


class Popen(subprocess.Popen):
    """`subprocess.Popen`; `python [-u] [-X faulthandler] -m MODULE ...` is started as a fork where that is the same."""

    _end: socket.socket | None = None  # says the process id, then the exit code

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        _, _, _, _, cwd, env, _, _, _, *pipes, _, _, _, _, _, session, _ = rest
        options, words = _parts(args)
        if not words or not _accepts(words, os.environ if env is None else env):
            return super()._execute_child(args, *rest)
        given = (pipes[0], pipes[3], pipes[5])
        files = [number if pipe == -1 else pipe for number, pipe in enumerate(given)]
        request = {"options": options, "words": words, "cwd": str(cwd or os.getcwd()), "session": session}
        request["env"] = dict(os.environ if env is None else env)
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(_server(), [json.dumps(request).encode()], [*files, theirs.fileno()])
        self.pid = int(self._end.recv(20))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:
        if self._end is None:
            return super()._internal_poll(*args, **options)
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._end is None:
            return super()._wait(timeout)
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._end.recv(20))
            self._end.close()
        return self.returncode


def _parts(args: Any) -> tuple[list[str], list[str]]:
    """Options of the interpreter, and MODULE and what follows; nothing if the command is another one."""
    words = [os.fspath(word) for word in args] if isinstance(args, (list, tuple)) else []
    if "-m" not in words or words[0] != sys.executable:
        return [], []
    at = words.index("-m")
    known = set(words[1:at]) <= {"-u", "-X", "faulthandler"}
    return words[1:at], words[at + 1 :] if known else []


def _accepts(words: list[str], env: Mapping[str, str]) -> bool:
    """Whether a fork runs `python -m WORDS` with the variables `env` as a new process would."""
    # `tpu-check` itself does not import torch_xla, which sets variables that its workers would inherit
    able = sys.platform == "linux" and words[0] in MODULES and "tpu-check" not in words
    return able and _at_start(env) == _at_start(OURS)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if read_at_import(name) or name.startswith(AT_START)
    }


@cache
def _server() -> socket.socket:
    """The server of this process. It ends with us, when our end of the channel is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm"], stdin=theirs, cwd=Path(__file__).parents[1], env=OURS
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(channel: socket.socket) -> None:
    """Fork for each request a process that waits for the one that runs it."""
    before = dict(os.environ)
    for name in LIBRARIES:
        importlib.import_module(name)
    changed = {name: (before.get(name), now) for name, now in os.environ.items() if now != before.get(name)}
    gc.freeze()
    sys.stdout.reconfigure(errors="replace")  # as trm does, which cannot in forks: their files may not seek
    waiting: set[int] = set()
    while True:
        request, files, _, _ = socket.recv_fds(channel, MAX_REQUEST, 4)
        waiting -= {pid for pid in waiting if os.waitpid(pid, os.WNOHANG)[0]}
        if not request:
            return None
        child = os.fork()
        if not child:
            channel.close()
            asked = json.loads(request)
            env = asked["env"]
            env |= {name: now for name, (old, now) in changed.items() if env.get(name) == old}
            return _wait_for(*files, **asked)
        waiting.add(child)
        for file in files:
            os.close(file)


def _wait_for(*files: int, session: bool, **request: Any) -> None:
    *standard, end = files
    child = os.fork()
    if child:
        for file in standard:
            os.close(file)
        _, status = os.waitpid(child, 0)
        with suppress(BrokenPipeError):
            os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    if session:
        os.setsid()
    os.write(end, str(os.getpid()).encode())
    os.close(end)
    _run(standard, **request)


def _run(files: list[int], options: list[str], words: list[str], env: dict[str, str], cwd: str) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        signal.signal(number, handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    sys.path[0] = cwd
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "trm")]:
        del sys.modules[name]
    sys.stdout.reconfigure(write_through="-u" in options)
    if "faulthandler" in options:
        faulthandler.enable()
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=os.dup(0)))
