"""An emulated TPU pod from a shell: it runs until `down`, the end of the input or a signal.

    python -m snakemake_executor_plugin_tpu.emulator --dir /var/tmp/pod --accelerator-type v4-64
    . /var/tmp/pod/environment                  (in another shell)
    snakemake --profile profiles/pod

The plugin creates the pod (tpu-create: true). Commands on the standard input: status, preempt [SECONDS OF NOTICE],
outage SECONDS, and kill, restart, freeze, release with the numbers of hosts, all of them by default.
"""

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .hosts import Host
from .pod import EmulatedPod, why_not


def commands(pod: EmulatedPod) -> dict[str, Callable[..., Any]]:
    """Return what each command does with its words."""

    def each(action: Callable[[Host], None]) -> Callable[..., None]:
        def act(*numbers: str) -> None:
            for host in [pod.hosts[int(number)] for number in numbers] or pod.hosts:
                action(host)

        return act

    return {
        "status": lambda: None,
        "preempt": lambda notice="0": pod.preempt(float(notice)),
        "outage": lambda seconds: pod.gcs.proxy.outage(float(seconds)),
        "kill": each(Host.kill),
        "restart": each(Host.boot),
        "freeze": each(Host.freeze),
        "release": each(Host.release),
        "down": lambda: sys.exit(0),
    }


def state(pod: EmulatedPod) -> str:
    """Return hosts, nodes and the number of processes of jobs as JSON."""
    hosts = {f"w{number}": "up" if host.is_up else "down" for number, host in enumerate(pod.hosts)}
    nodes = {name: node.state.name for name, node in pod.api.nodes.items()}
    return json.dumps({"hosts": hosts, "nodes": nodes, "jobs": len(pod.jobs())})


def main() -> int:
    """Run a pod."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--accelerator-type", default="v4-64")
    parser.add_argument("--slices", type=int, default=1, help="size of a pool")
    parser.add_argument("--disk-mb", type=int, help="give each host its own disk of this size")
    parser.add_argument("--times", default="", help="intervals, such as 'poll=0.2 beat=1'")
    args = parser.parse_args()
    if reason := why_not(disk=bool(args.disk_mb)):
        print(f"No pod can be emulated: {reason}.", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    options = {"slices": args.slices, "disk_mb": args.disk_mb, "times": args.times}
    with EmulatedPod(args.dir, args.accelerator_type, **options) as pod:
        print(f"Bucket and TPU API are up. In another shell: . {pod.write_environment()}", flush=True)
        known = commands(pod)
        for line in sys.stdin:
            with contextlib.suppress(ValueError):
                name, *words = line.split()
                try:
                    known[name](*words)
                    print(state(pod), flush=True)
                except KeyError:
                    print(f"{name} is no command; these are: {', '.join(sorted(known))}", flush=True)
                except Exception as error:
                    print(f"{name}: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
