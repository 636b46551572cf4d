"""An emulated TPU pod from a shell: up, down, status, preempt, kill, restart, drop (all take --dir DIR).

    python -m snakemake_executor_plugin_tpu.emulator up --dir /var/tmp/pod --accelerator-type v4-64
    . /var/tmp/pod/environment
    snakemake --profile profiles/pod
    python -m snakemake_executor_plugin_tpu.emulator preempt --dir /var/tmp/pod
    python -m snakemake_executor_plugin_tpu.emulator down --dir /var/tmp/pod

`up` creates the pod as well; with --empty that is left to the plugin (tpu-create: true).
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .pod import EmulatedPod, why_not


def serve(args: argparse.Namespace) -> None:
    """Run the pod in this process, and obey the other commands, until told to end."""
    pod = EmulatedPod(args.dir, args.accelerator_type, slices=args.slices, disk_mb=args.disk_mb)
    stop = signal.SIGTERM, signal.SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    path = args.dir / "control"
    path.unlink(missing_ok=True)
    with pod, socket.socket(socket.AF_UNIX) as server:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stop)
        for number in stop:
            signal.signal(number, lambda *_: sys.exit(0))
        if not args.empty:
            pod.create()
        pod.write_environment()
        server.bind(str(path))
        server.listen()
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rw") as stream:
                request = json.loads(stream.readline())
                try:
                    answer = obey(pod, request)
                except Exception as error:
                    answer = {"error": str(error)}
                with contextlib.suppress(OSError):
                    stream.write(json.dumps(answer) + "\n")
                    stream.flush()
                if request["command"] == "down":
                    return


def obey(pod: EmulatedPod, request: dict[str, Any]) -> dict[str, Any]:
    """Do one command."""
    ranks = request.get("ranks") or list(range(len(pod.hosts)))
    command = request["command"]
    if command == "preempt":
        pod.preempt(request["notice"])
    elif command == "kill":
        for rank in ranks:
            pod.kill_host(rank)
    elif command == "restart":
        for rank in ranks:
            pod.restart_host(rank)
    elif command == "drop":
        return {"dropped": sum(pod.hosts[rank].drop_connections() for rank in ranks)}
    return {
        "hosts": {f"w{host.rank}": "up" if host.is_up else "down" for host in pod.hosts},
        "nodes": {name: node.state.name for name, node in pod.api.nodes.items()},
        "jobs": len(pod.jobs()),
    }


def ask(folder: Path, **request: Any) -> dict[str, Any]:
    """Send a command to the process that runs the pod."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "control"))
        with client.makefile("rw") as stream:
            stream.write(json.dumps(request) + "\n")
            stream.flush()
            answer: dict[str, Any] = json.loads(stream.readline() or "{}")
            return answer


def up(args: argparse.Namespace) -> int:
    """Start the pod in the background and return once it is up."""
    args.dir.mkdir(parents=True, exist_ok=True)
    (args.dir / "control").unlink(missing_ok=True)
    options = ["--accelerator-type", args.accelerator_type, *(["--empty"] if args.empty else [])]
    options += ["--slices", str(args.slices)]
    options += ["--disk-mb", str(args.disk_mb)] if args.disk_mb else []
    with open(args.dir / "log", "ab") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "snakemake_executor_plugin_tpu.emulator",
                "serve",
                "--dir",
                str(args.dir),
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while not (args.dir / "control").exists():
        if process.poll() is not None:
            print((args.dir / "log").read_text()[-2000:], file=sys.stderr)
            return 1
        time.sleep(0.05)
    (args.dir / "pid").write_text(str(process.pid))
    print(f"The pod is up. Now: . {args.dir}/environment")
    return 0


def down(args: argparse.Namespace) -> int:
    """End the pod."""
    with contextlib.suppress(OSError):
        ask(args.dir, command="down")
    with contextlib.suppress(OSError, ValueError):
        pid = int((args.dir / "pid").read_text())
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.05)
    return 0


def main() -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "serve", "down", "status", "preempt", "kill", "restart", "drop"):
        command = commands.add_parser(name)
        command.add_argument("--dir", type=Path, required=True)
        if name in ("up", "serve"):
            command.add_argument("--accelerator-type", default="v4-64")
            command.add_argument(
                "--slices", type=int, default=1, help="room for a pool of so many slices (with --empty)"
            )
            command.add_argument("--empty", action="store_true", help="leave creating the pod to the plugin")
            command.add_argument("--disk-mb", type=int, help="give each host a disk of its own of this size")
        if name == "preempt":
            command.add_argument(
                "--notice", type=float, default=0.0, help="seconds between SIGTERM and the end"
            )
        if name in ("kill", "restart", "drop"):
            command.add_argument("ranks", nargs="*", type=int)
    args = parser.parse_args()
    args.dir = args.dir.resolve()
    if args.command in ("up", "serve"):
        if reason := why_not():
            print(f"No pod can be emulated: {reason}.", file=sys.stderr)
            return 1
        if args.command == "up":
            return up(args)
        serve(args)
        return 0
    if args.command == "down":
        return down(args)
    request = {key: value for key, value in vars(args).items() if key != "dir"}
    print(json.dumps(ask(args.dir, **request), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
