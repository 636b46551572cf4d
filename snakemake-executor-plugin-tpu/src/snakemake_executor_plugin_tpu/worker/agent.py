"""The agent: answers the controller on a worker. Each command reads one JSON line from standard input.

    follow   start a task unless it exists, then send its log, progress and end as frames
    stop     stop tasks: SIGTERM, a grace period, SIGKILL
    status   describe this worker and its tasks
    reply    answer a request that `tpurun` made inside a task
    remove   delete the folders of tasks that have ended
    aside    note why this host gets no jobs, for later controllers and `status`
    prune    delete the folders of all tasks that have ended, on a full disk

The output is MAGIC (a login shell may have printed something before it), then frames: a JSON line each, followed by as
many bytes as its `bytes` says.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import tasks
from .start import create

MAGIC = b"\x1etpu-agent\n"
POLL_SECONDS = 0.1
CONTROLLER_SILENCE_SECONDS = 60.0


def send(frame: dict[str, Any], payload: bytes = b"") -> None:
    view = memoryview(json.dumps(frame).encode() + b"\n" + payload)
    while view:
        view = view[os.write(1, view) :]


def follow(request: dict[str, Any]) -> None:
    """Start the task if a spec is given and it does not exist, then send frames until it or the controller ends."""
    folder, spec = tasks.task_folder(request["task"]), request.get("spec")
    started = spec is not None and create(request["task"], spec)
    send({"hello": "started" if started else tasks.state_of(folder)})
    if not folder.is_dir():
        return
    tasks.renew_lease(folder, request.get("lease"))
    sent: dict[str, Any] = {}
    heard = time.monotonic()
    with open(folder / "log", "rb") as log:
        log.seek(int(request.get("offset", 0)))
        while True:
            state = tasks.state_of(folder)
            while block := log.read(1 << 16):
                send({"bytes": len(block)}, block)
            _send_updates(folder, sent)
            if state != "running":
                send({"exit": tasks.read_exit(folder)} if state == "exited" else {"vanished": True})
                return
            if select.select([0], [], [], POLL_SECONDS)[0]:
                if not os.read(0, 4096):
                    return
                # Only the controller's heartbeat renews the lease: a half-open connection must not.
                heard = time.monotonic()
                tasks.renew_lease(folder)
            elif time.monotonic() - heard > CONTROLLER_SILENCE_SECONDS:
                return


def _send_updates(folder: Path, sent: dict[str, Any]) -> None:
    progress = tasks.read_line(folder, "progress")
    if progress and sent.get("progress") != progress:
        sent["progress"] = progress
        send({"progress": progress})
    for path in sorted((folder / "requests").glob("*.json")):
        # The supervisor deletes requests when the job ends.
        if path.name not in sent and (text := tasks.read(path)):
            sent[path.name] = True
            started = path.with_suffix(".started").exists()
            send({"request": path.stem, "started": started, **json.loads(text)})
    if "stalled" not in sent and (folder / "stalled").exists():
        sent["stalled"] = True
        send({"stalled": True})
    for path in sorted((folder / "requests").glob("*.rank0")):
        if path.name not in sent:
            sent[path.name] = True
            send({"rank0": path.stem, "code": int(path.read_text())})


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """Stop the named tasks (or all) and return their states once they have ended."""
    grace, lease = float(request.get("grace", 10)), request.get("lease")
    names = request.get("tasks")
    folders = tasks.task_folders() if names is None else [tasks.task_folder(name) for name in names]
    for folder in folders:
        _block(folder)
    running = [folder for folder in folders if tasks.state_of(folder) == "running"]
    for folder in running:
        number = signal.SIGUSR1
        try:
            # If this process dies now, the shortened lease still ends the task.
            if lease is not None:
                tasks.write_atomically(folder / "lease", str(lease))
            if request.get("stacks"):
                (folder / "stacks").touch()
            tasks.write_atomically(folder / "stop", str(grace))
        except OSError:
            number = signal.SIGTERM  # the disk is full
        if pid := tasks.read(folder / "pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)
    deadline = time.monotonic() + grace + 10
    while time.monotonic() < deadline and any(tasks.state_of(folder) == "running" for folder in running):
        time.sleep(0.05)
    return {folder.name: tasks.state_of(folder) for folder in folders}


def _block(folder: Path) -> None:
    """Reserve the name of a task that does not exist: a request to start it may still be on its way."""
    with contextlib.suppress(OSError):
        folder.mkdir()
        (folder / "blocked").touch()
        (folder / "log").touch()
        (folder / "exit").write_bytes(b"\0" * tasks.EXIT_BYTES)
        tasks.write_exit(folder, {"code": 143, "reason": "stopped"})


def status(_request: dict[str, Any]) -> dict[str, Any]:
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {
        "load": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        "memory_free": int(memory["MemAvailable"].split()[0]) << 10,
        "memory": int(memory["MemTotal"].split()[0]) << 10,
        "owner": tasks.owner_of_pod(),
        "guard": json.loads(tasks.read(tasks.ACTIVE.with_name("guard.json")) or "null"),
        "aside": tasks.read(tasks.aside_path()) or "",
        "disk_free": shutil.disk_usage(tasks.root()).free,
        "tasks": {folder.name: _describe(folder) for folder in tasks.task_folders()}
        | tasks.tasks_of_others(),
    }


def _describe(folder: Path) -> dict[str, Any]:
    about = json.loads(tasks.read(folder / "spec.json") or "{}").get("about", {})
    state = {"state": tasks.state_of(folder), "exit": tasks.read_exit(folder)}
    reported = {name: tasks.read_line(folder, name) for name in ("progress", "status")}
    return {**about, **state, **reported, "unattended": round(time.time() - _touched(folder / "lease"), 1)}


def _touched(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def reply(request: dict[str, Any]) -> dict[str, Any]:
    """Pass the controller's answer to the `tpurun` that waits for it inside a task."""
    if not tasks.TASK_NAME.fullmatch(request["request"]) or request["kind"] not in ("started", "result"):
        raise ValueError("a reply names a request and is `started` or `result`")
    folder = tasks.task_folder(request["task"]) / "requests"
    tasks.write_atomically(
        folder / f"{request['request']}.{request['kind']}", json.dumps(request.get("value"))
    )
    return {}


def remove(request: dict[str, Any]) -> dict[str, Any]:
    for folder in [tasks.task_folder(name) for name in request["tasks"]]:
        deadline = time.monotonic() + 5
        # A supervisor that has just written the exit record needs a moment to end.
        while (
            tasks.state_of(folder) == "exited" and tasks.is_supervised(folder) and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        if folder.is_dir() and not tasks.is_supervised(folder) and not (folder / "blocked").exists():
            shutil.rmtree(folder, ignore_errors=True)
    return {}


def aside(request: dict[str, Any]) -> dict[str, Any]:
    tasks.write_atomically(tasks.aside_path(), request["why"])
    return {}


def prune(_request: dict[str, Any]) -> dict[str, Any]:
    """Delete the folders of all tasks that have ended."""
    ended = [folder for folder in tasks.task_folders() if not tasks.is_supervised(folder)]
    for folder in ended:
        shutil.rmtree(folder, ignore_errors=True)
    return {"removed": [folder.name for folder in ended]}


def serve(command: Callable[[dict[str, Any]], dict[str, Any] | None]) -> int:
    """Read the request, run the command, and send its answer, if it returns one, or its error."""
    os.umask(0o077)
    # Not buffered: the controller's heartbeats follow, and `select` has to see them.
    with open(0, "rb", buffering=0, closefd=False) as stream:
        request = json.loads(stream.readline() or b"{}")
    (tasks.root() / "tasks").mkdir(exist_ok=True)
    try:
        os.write(1, MAGIC)
        if (answer := command(request)) is not None:
            send({"answer": answer})
    except BrokenPipeError:
        os._exit(0)
    except Exception as error:
        kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
        send({"error": f"{kind}{error}"})
        return 1
    return 0


if __name__ == "__main__":
    commands = (follow, stop, status, reply, remove, aside, prune)
    sys.exit(serve({command.__name__: command for command in commands}[sys.argv[1]]))
