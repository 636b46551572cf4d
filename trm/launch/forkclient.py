"""The part of a job that asks a fork server (`forkserver.py`) to run it.

A study starts it hundreds of times, so it imports next to nothing: of `signal` and `socket` the C modules alone, since
their enumerations take longer than all that is done here, and a request is a Python literal instead of JSON.
"""

import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import os
import sys

FOLDER = "TRM_FORK_SERVER"
"""Environment variable: the folder of the servers' sockets. Empty or unset: no server."""
COMMANDS = {"training": ("train", "evaluate"), "analysis": ("fit", "plot", "report", "table")}
"""What each server runs."""
READ_AT_IMPORT = (
    "ATEN_", "GOTO_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHON", "TORCH",
)  # fmt: skip
"""Variables that libraries read when they are imported."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def read_at_import(name: str) -> bool:
    """Whether a variable has its effect when libraries are imported. Every command sets torch's cache by itself."""
    return name.startswith(READ_AT_IMPORT) and name != "TORCHINDUCTOR_CACHE_DIR"


def start(environment: dict[str, str]) -> dict[str, object]:
    """What a child inherits from the server and cannot change."""
    variables = {name: value for name, value in environment.items() if read_at_import(name)}
    mask = os.umask(0)
    os.umask(mask)
    return {"python": sys.executable, "trm": __file__, "variables": variables, "mask": mask}


def encoded(arguments: list[str], folder: str, environment: dict[str, str]) -> bytes:
    """A request to run `trm ARGUMENTS` in a folder."""
    request = {
        "arguments": arguments,
        "folder": folder,
        "environment": environment,
        "start": start(environment),
    }
    return ascii(request).encode()


def send(connection: socket.socket, request: bytes) -> None:
    """Send a request, its length before it, with the standard files of this process."""
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    connection.sendmsg([len(request).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    connection.sendall(request)


def run_elsewhere(arguments: list[str]) -> int | None:
    """Run `trm ARGUMENTS` in a child of a server and return its exit code; None if no server accepts it."""
    folder = os.environ.get(FOLDER)
    kind = next(
        (kind for kind, commands in COMMANDS.items() if arguments[:1] and arguments[0] in commands), None
    )
    if not folder or not kind or "--workers" in arguments:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"{folder}/{kind}")
        send(connection, encoded(arguments, os.getcwd(), dict(os.environ)))
    except OSError:
        connection.close()
        return None
    with open(connection.detach(), encoding="ascii") as answers:

        def line() -> str:
            """The server's next line; empty if the server has ended."""
            try:
                return answers.readline()
            except ConnectionError:  # with a request that it had not read
                return ""

        child = int(line() or 0)
        if not child:
            return None  # the server would not, or has ended

        def forward(number: int, _: object) -> None:
            try:
                os.kill(child, number)
            except ProcessLookupError:
                pass  # it has just ended

        for number in FORWARDED:
            signal.signal(number, forward)
        ended = line()
    if not ended:
        print("trm: the server of this job has ended, and the job with it", file=sys.stderr)
        return 1
    return int(ended)
