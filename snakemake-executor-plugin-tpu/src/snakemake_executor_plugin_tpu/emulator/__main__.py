"""An emulated TPU pod from a shell: up, down, status, and faults (all take --dir DIR).

    python -m snakemake_executor_plugin_tpu.emulator up --dir /var/tmp/pod --accelerator-type v4-64
    . /var/tmp/pod/environment
    snakemake --profile profiles/pod
    python -m snakemake_executor_plugin_tpu.emulator preempt --dir /var/tmp/pod
    python -m snakemake_executor_plugin_tpu.emulator down --dir /var/tmp/pod

`up` starts the bucket and the TPU API; the plugin creates the pod (tpu-create: true). `kill`, `restart`, `freeze` and
`release` take the numbers of hosts, or mean all of them; `outage` takes seconds.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from .hosts import Host
from .pod import EmulatedPod, why_not


def serve(args: argparse.Namespace) -> None:
    """Run the pod in this process and execute the other commands until `down` or a signal."""
    kind = args.accelerator_type
    pod = EmulatedPod(args.dir, kind, slices=args.slices, disk_mb=args.disk_mb, times=args.times)
    stop = signal.SIGTERM, signal.SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    with Listener(str(args.dir / "control")) as listener, pod:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stop)
        for number in stop:
            signal.signal(number, lambda *_: sys.exit(0))
        pod.write_environment()
        command = ""
        while command != "down":
            with contextlib.suppress(OSError, EOFError), listener.accept() as connection:
                request = connection.recv()
                command = request["command"]
                try:
                    answer = execute(pod, **request)
                except Exception as error:
                    answer = {"error": str(error)}
                connection.send(answer)


def execute(
    pod: EmulatedPod, command: str, ranks: list[int] | None = None, notice: float = 0.0, seconds: float = 0.0
) -> dict[str, Any]:
    """Execute one command and return the state of the pod."""
    hosts = [pod.hosts[rank] for rank in ranks] if ranks else pod.hosts
    actions = {"kill": Host.kill, "restart": Host.boot, "freeze": Host.freeze, "release": Host.release}
    if command == "preempt":
        pod.preempt(notice)
    elif command == "outage":
        pod.gcs.proxy.outage(seconds)
    elif command in actions:
        for host in hosts:
            actions[command](host)
    return {
        "hosts": {f"w{number}": "up" if host.is_up else "down" for number, host in enumerate(pod.hosts)},
        "nodes": {name: node.state.name for name, node in pod.api.nodes.items()},
        "jobs": len(pod.jobs()),
    }


def send(folder: Path, request: dict[str, Any]) -> Any:
    """Send a command to the process that runs the pod and return the answer."""
    with Client(str(folder / "control")) as connection:
        connection.send(request)
        return connection.recv()


def up(args: argparse.Namespace) -> int:
    """Start the pod in the background and return once it is up."""
    args.dir.mkdir(parents=True, exist_ok=True)
    for name in ("control", "environment"):
        (args.dir / name).unlink(missing_ok=True)
    program = [sys.executable, "-m", "snakemake_executor_plugin_tpu.emulator", "serve"]
    with open(args.dir / "log", "ab") as log:
        process = subprocess.Popen(
            [*program, *sys.argv[2:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while not (args.dir / "environment").exists():
        if process.poll() is not None:
            print((args.dir / "log").read_text()[-2000:], file=sys.stderr)
            return 1
        time.sleep(0.05)
    print(f"Bucket and TPU API are up. Now: . {args.dir}/environment")
    return 0


def down(folder: Path) -> None:
    """Stop the pod; the control socket disappears with it."""
    with contextlib.suppress(OSError, EOFError):
        send(folder, {"command": "down"})
    deadline = time.monotonic() + 20
    while (folder / "control").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def main() -> int:
    """Run one command."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in (
        "up",
        "serve",
        "down",
        "status",
        "preempt",
        "kill",
        "restart",
        "freeze",
        "release",
        "outage",
    ):
        command = commands.add_parser(name)
        command.add_argument("--dir", type=Path, required=True)
        if name in ("up", "serve"):
            command.add_argument("--accelerator-type", default="v4-64")
            command.add_argument("--slices", type=int, default=1, help="size of a pool")
            command.add_argument("--disk-mb", type=int, help="give each host its own disk of this size")
            command.add_argument("--times", default="", help="intervals, such as 'poll=0.2 beat=1'")
        if name == "preempt":
            command.add_argument(
                "--notice", type=float, default=0.0, help="seconds between SIGTERM and the end"
            )
        if name == "outage":
            command.add_argument("seconds", type=float)
        if name in ("kill", "restart", "freeze", "release"):
            command.add_argument("ranks", nargs="*", type=int)
    args = parser.parse_args()
    args.dir = args.dir.resolve()
    if args.command in ("up", "serve"):
        if reason := why_not(disk=bool(args.disk_mb)):
            print(f"No pod can be emulated: {reason}.", file=sys.stderr)
            return 1
        if args.command == "up":
            return up(args)
        serve(args)
    elif args.command == "down":
        down(args.dir)
    else:
        request = {key: value for key, value in vars(args).items() if key != "dir"}
        try:
            print(json.dumps(send(args.dir, request), indent=1))
        except (OSError, EOFError):
            print(f"No emulated pod runs in {args.dir}: start it with `up`.", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
