"""`python -m MODULE` in forks of a process that has imported the libraries of Snakemake and of the command line.

Most of a dry run is imports; a fork takes about a quarter of its time. Nothing of this project is imported in advance,
so a fork reads the code under test as any process does.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from trm.pipeline.forkserver import READ_AT_IMPORT

MODULES = ("snakemake", "trm")
LIBRARIES = (
    "snakemake.cli", "snakemake.api", "snakemake.workflow", "snakemake.scheduling.milp", "pandas", "pydantic", "torch",
    "scipy.stats", "matplotlib.figure", "matplotlib.backends.backend_agg", "google.cloud.storage",
)  # fmt: skip
AT_START = (*READ_AT_IMPORT, "HOME", "MPL", "XDG_")
"""Variables that Python or a library reads when it starts."""
OURS = dict(os.environ)
"""Of this process before any test changed them: those of the server."""
MAX_REQUEST = 1 << 17


def accepts(words: tuple[str, ...], env: Mapping[str, str]) -> bool:
    """Whether a fork runs `python WORDS` with the variables `env` besides ours as a new process would."""
    # the environment of the TPU backend lacks some of these libraries
    able = sys.platform == "linux" and find_spec("torch_xla") is None
    return (
        able
        and words[0] == "-m"
        and words[1] in MODULES
        and _at_start({**os.environ, **env}) == _at_start(OURS)
    )


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


def run(
    words: tuple[str, ...], env: Mapping[str, str], cwd: object, timeout: float
) -> subprocess.CompletedProcess:
    """`python WORDS` in a fork, as `subprocess.run` runs it."""
    request = json.dumps(
        {"words": words[1:], "env": {**os.environ, **env}, "cwd": str(cwd or os.getcwd())}
    ).encode()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull) as nothing:
        channel = _server()
        socket.send_fds(channel, [request], [nothing.fileno(), out.fileno(), err.fileno()])
        child = int(channel.recv(20))
        channel.settimeout(timeout)
        try:
            code = int(channel.recv(20))
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, timeout, _text(out), _text(err)) from None
        finally:
            channel.settimeout(None)
        return subprocess.CompletedProcess(words, code, _text(out), _text(err))


def _text(file) -> str:
    file.seek(0)
    return file.read().decode()


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
    """Fork a child for each request, one at a time; in a child: run it."""
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    while True:
        request, files, _, _ = socket.recv_fds(channel, MAX_REQUEST, 3)
        if not request:
            return
        child = os.fork()
        if not child:
            channel.close()
            return _run(files=files, **json.loads(request))
        for file in files:
            os.close(file)
        channel.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        with suppress(BrokenPipeError):
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())


def _run(words: list[str], env: dict[str, str], cwd: str, files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    sys.path[0] = cwd
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "trm")]:
        del sys.modules[name]
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=os.dup(0)))
