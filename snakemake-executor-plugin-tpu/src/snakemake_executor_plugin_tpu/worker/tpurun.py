"""tpurun COMMAND ARGUMENT...   run the same command on all hosts of the job, one process each.

A rule writes `{resources.mpi} python train.py ...` with `mpi="tpurun"`; inside the job this program is on PATH. It
runs the command as rank 0 and asks the controller, by a file in the task's folder, to start the other ranks. Every rank
gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The first rank that fails ends all of
them, and this program exits with its code.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

# Variables of one host or one shell, which the other ranks must not get.
LOCAL_VARIABLES = {"PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME", "TPU_TASK_FOLDER"}
LOCAL_VARIABLES |= {"TPU_PROGRESS_FILE", "TPU_STATUS_FILE", "TPU_AGAIN_FILE", "TPU_SCRATCH"}
POLL_SECONDS = 0.05


def rank_variables(rank: int, size: int, address: str, port: str) -> dict[str, str]:
    """Return the variables from which torch.distributed and others start."""
    ranks = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return {**ranks, "MASTER_ADDR": address, "MASTER_PORT": port}


def exported(base: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """Return what the job has exported since its start: the other ranks need it as well."""
    return {key: value for key, value in now.items() if base.get(key) != value and key not in LOCAL_VARIABLES}


def write(path: Path, text: str) -> None:
    """Write a file that the agent sees complete or not at all."""
    temporary = path.with_name(f".{path.name}.new")  # the agent looks for suffixes
    temporary.write_text(text)
    os.replace(temporary, path)


def end(process: subprocess.Popen[bytes], grace: float) -> None:
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_on_all(argv: list[str], size: int, folder: Path) -> int:
    """Run rank 0 here and the others elsewhere; return the exit code of the first rank that fails, or 0."""
    address, port = os.environ["TPURUN_ADDRESS"], os.environ["TPURUN_PORT"]
    base = json.loads((folder / "environment.json").read_text())
    name = f"run-{uuid.uuid4().hex[:8]}"
    request = {
        "argv": argv,
        "environment": exported(base, dict(os.environ)),
        "directory": os.path.relpath(os.getcwd(), folder / "work"),
    }
    # The supervisor signals every process of the task including rank 0; this one waits.
    signal.signal(signal.SIGTERM, lambda *_: None)
    process = subprocess.Popen(argv, env={**os.environ, **rank_variables(0, size, address, port)})
    requests = folder / "requests"
    write(requests / f"{name}.json", json.dumps(request))
    code = result = None
    answer = requests / f"{name}.result"
    while True:
        if code is None and (code := process.poll()) is not None:
            code = code if code >= 0 else 128 - code
            write(requests / f"{name}.rank0", str(code))
        if code:
            break
        if result is None and answer.exists():
            result = json.loads(answer.read_text())
        if result and result["code"]:
            if code is None:
                end(process, float(os.environ.get("TPURUN_GRACE", "10")))
            code = result["code"]
            print(f"[tpurun] rank {result['rank']} failed with exit code {code}", file=sys.stderr)
            break
        if code is not None and result is not None:
            break
        time.sleep(POLL_SECONDS)
    return code


def main(argv: list[str]) -> int:
    """Run the command; on one host this process becomes the command itself."""
    if not argv:
        print(__doc__, file=sys.stderr)
        return 2
    folder = os.environ.get("TPU_TASK_FOLDER")
    size = int(os.environ.get("TPURUN_SIZE", "1"))
    if size == 1 or folder is None:
        address, port = os.environ.get("TPURUN_ADDRESS", "localhost"), os.environ.get("TPURUN_PORT", "29500")
        os.environ.update(rank_variables(0, 1, address, port))
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            print(f"[tpurun] cannot run {argv[0]}: {error.strerror}", file=sys.stderr)
            return 127
    return run_on_all(argv, size, Path(folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
