"""python -m snakemake_executor_plugin_tpu COMMAND [--profile DIR] [--SETTING VALUE ...]    commands for people

    up        create the pod if it does not exist, and wait until every host answers
    status    state and health, load and memory of each host, running jobs
    ssh       log in to a host, or run a command there:  ssh [RANK] [-- COMMAND ...]
              or pass options to ssh:                    ssh [RANK] -- -N -L 6006:localhost:6006
    logs      show a job's log as it grows:              logs JOB [RANK]
    stop      stop a job on the pod:                     stop JOB
    down      delete the pod, unless somebody uses it (--force: anyway)
    environment  build the jobs' environment here and put it into tpu-environments, for hosts without a package index

With a pool (tpu-pool), up, status and down act on every slice, or on one: --slice N.

The settings are those of the plugin without the prefix `tpu-`, from the profile, then from the environment
(SNAKEMAKE_TPU_PROJECT and so on), then from the command line.
"""

import argparse
import asyncio
import os
import platform
import re
import shlex
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import yte
from snakemake_interface_common.exceptions import WorkflowError

from .claim import name_of
from .errors import PodError, Unreachable, red
from .google import storage
from .guarding import guard_in_words, guard_trouble
from .lifecycle import Pod, PodManager, environment_of
from .settings import ExecutorSettings
from .worker.tasks import TASK_NAME

HOSTS = "x86_64-manylinux_2_35"  # glibc of tpu-ubuntu2204-base
COMMANDS = ("up", "status", "ssh", "logs", "stop", "down", "environment")


def parse(arguments: list[str]) -> tuple[argparse.Namespace, ExecutorSettings]:
    parser = argparse.ArgumentParser(
        prog="python -m snakemake_executor_plugin_tpu",
        description=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("words", nargs="*", metavar="WORD", help="job, rank or command: see above")
    parser.add_argument("--force", action="store_true", help="delete a pod that is in use")
    parser.add_argument("--slice", type=int, help="number of one slice of a pool (tpu-pool)")
    parser.add_argument("--profile", type=Path, help="folder of a Snakemake profile, or its config.yaml")
    for item in fields(ExecutorSettings):
        option = {"action": "store_true"} if item.type is bool else {"type": item.metadata.get("type", str)}
        option |= {"nargs": nargs} if (nargs := item.metadata.get("nargs")) else {}
        name = f"--{item.name.replace('_', '-')}"
        parser.add_argument(name, dest=item.name, default=None, help=argparse.SUPPRESS, **option)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before, command = arguments[:end], arguments[end + 1 :]
    args = parser.parse_intermixed_args(before)
    args.words += command
    values = read_profile(args.profile) if args.profile else {}
    for item in fields(ExecutorSettings):
        variable = os.environ.get(f"SNAKEMAKE_TPU_{item.name.upper()}")
        if item.metadata["env_var"] and variable:
            values[item.name] = typed(item, variable, f"SNAKEMAKE_TPU_{item.name.upper()}")
        if (given := getattr(args, item.name)) is not None:
            values[item.name] = given
    return args, ExecutorSettings(**values)


def typed(item: Any, value: Any, where: str) -> Any:
    """Convert a value as Snakemake's command line does: a date or a number may stand where a text is expected."""
    kind = item.metadata.get("type", lambda given: given)
    try:
        return kind(os.path.expandvars(value) if isinstance(value, str) else value)
    except ValueError:
        raise WorkflowError(f"{where} is {value!r}: write a number.") from None


def read_profile(path: Path) -> dict[str, Any]:
    from snakemake.cli import get_profile_dir

    _, file = get_profile_dir(str(path)) or (None, None)
    if file is None:
        raise WorkflowError(f"There is no Snakemake profile at {path}: give a folder such as profiles/tpu.")
    try:
        content = yte.process_yaml(file.read_text(), require_use_yte=True) or {}  # like Snakemake
    except Exception as error:  # a profile's own code may raise anything
        raise WorkflowError(f"The profile {file} cannot be read: {error}") from None
    settings = {}
    for item in fields(ExecutorSettings):
        name = f"tpu-{item.name.replace('_', '-')}"
        if (value := content.get(name)) is not None:
            settings[item.name] = typed(item, value, f"{file}: {name}")
    return settings


class Cli:
    def __init__(self, args: argparse.Namespace, settings: ExecutorSettings) -> None:
        self.args, self.settings = args, settings
        settings.check_pod()
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        folder = cache / "snakemake-executor-plugin-tpu" / str(settings.name)
        self.manager = PodManager(settings, folder, self.say)

    def say(self, sentence: str) -> None:
        """Print progress to stderr: other programs may read stdout."""
        print(sentence, file=sys.stderr, flush=True)

    async def run(self) -> int:
        try:
            return await getattr(self, self.args.command)() or 0
        finally:
            # Above all after an error, such as hosts that do not answer.
            if left := await self.manager.close(report=self.args.command not in ("ssh", "logs")):
                self.say(left)

    async def _existing(self) -> Pod:
        """Return the pod without creating it."""
        self.settings.create = False
        # Only jobs depend on the size of the pod.
        state = await self.manager.capacity.locate()
        self.settings.accelerator_type = state.accelerator_type or self.settings.accelerator_type
        return await self.manager.ready()

    async def up(self) -> None:
        """Create the pod, whatever tpu-create says."""
        self.settings.create = self.manager.for_jobs = True
        await self.manager.ready()

    async def status(self) -> int:
        state = await self.manager.capacity.locate()
        print(f"{self.settings.name}: {state} {state.accelerator_type} {state.health}".rstrip())
        if not state.is_ready:
            return 1
        pod = await self._existing()
        if owner := pod.status[0]["owner"]:
            print(f"driven by {name_of(owner)}, heard {owner['silent']:.0f} s ago")
        print(guard_in_words(pod.status[0].get("guard")))
        if trouble := guard_trouble(pod.status):
            print(red(trouble))
        print(f"{'host':6} {'load':>6} {'cpus':>5} {'memory':>14} {'disk':>9}   tasks")
        for rank, (worker, status) in enumerate(zip(pod.workers, pod.status, strict=True)):
            if rank in pod.silent:
                print(f"{worker.host:6} does not answer")
                continue
            used, total = status["memory"] - status["memory_free"], status["memory"]
            print(
                f"{worker.host:6} {status['load']:6.1f} {status['cpus']:5d} {used / 2**30:6.1f}/{total / 2**30:5.1f} G "
                f"{status['disk_free'] / 2**30:7.1f} G   {_describe(status['tasks'])}"
                + (f"; set aside: {status['aside']}" if status.get("aside") else "")
            )
        return 0

    async def ssh(self) -> int:
        rank, *command = self.args.words or ["0"]
        if not rank.isdigit():
            rank, command = "0", self.args.words
        pod = await self._existing()
        if int(rank) >= len(pod.workers):
            raise PodError(f"The pod has {len(pod.workers)} hosts, numbered from 0: there is no host {rank}.")
        options, command = (command, []) if command and command[0].startswith("-") else ([], command)
        process = await asyncio.create_subprocess_exec(
            *("ssh", "-F", str(pod.ssh.config), "-o", "ControlPath=none", *options),
            *(pod.workers[int(rank)].host, *([shlex.join(command)] if command else [])),
        )
        return await process.wait()

    async def logs(self) -> int:
        pod = await self._existing()
        rank = int(self.args.words[1]) if len(self.args.words) > 1 else 0
        found = [task for task in self._named(pod) if task.get("rank", 0) == rank]
        if not found:
            raise PodError(
                f"No rank {rank} of {self.args.words[0]} is on the pod; ended jobs' logs are here."
            )
        task = max(found, key=lambda task: task["launch"])
        folder = shlex.quote(f"{self.settings.folder}/tasks/{task['task']}")
        command = f"exec tail -n +1 -f --pid=$(cat {folder}/pid) {folder}/log"
        connection = await pod.ssh.connect(pod.workers[task["host"]].host, command)
        try:
            while block := await connection.process.stdout.read(1 << 16):
                sys.stdout.buffer.write(block)
                sys.stdout.flush()
        finally:
            await connection.close()
        return 0

    def _named(self, pod: Pod) -> list[dict[str, Any]]:
        if not self.args.words or not TASK_NAME.fullmatch(self.args.words[0]):
            raise PodError("Name a job as `status` shows it, such as train-0123456789ab.")
        return [task for task in pod.found() if task.get("slot") == self.args.words[0]]

    async def stop(self) -> None:
        pod = await self._existing()
        found = [task for task in self._named(pod) if task["state"] == "running"]
        if not found:
            raise PodError(f"Nothing of {self.args.words[0]} runs on pod {self.settings.name or ''}.")
        stops = (pod.workers[task["host"]].stop([task["task"]], self.settings.grace) for task in found)
        await asyncio.gather(*stops)
        print(f"stopped {len(found)} task(s) of {self.args.words[0]}")

    async def down(self) -> None:
        if (await self.manager.capacity.locate()).is_ready and not self.args.force:
            await self._check_free()
        await self.manager.cloud.delete()
        print(f"TPU pod {self.settings.name} is deleted and costs nothing any more.")

    async def _check_free(self) -> None:
        force = "`down --force` deletes the pod anyway."
        try:
            pod = await self._existing()
        except (PodError, Unreachable) as error:
            raise PodError(f"It is unknown whether somebody uses the pod: {error} {force}") from None
        if owner := pod.status[0]["owner"]:
            raise PodError(f"The pod is in use by the Snakemake of {name_of(owner)}. Stop it first; {force}")
        if others := [task["slot"] for task in pod.found() if task.get("role") == "other"]:
            raise PodError(f"The pod runs {', '.join(others)}, which somebody else has started. {force}")

    async def environment(self) -> None:
        """Build the jobs' environment for the hosts here, and upload it."""
        from .worker.environment import build, pack

        store = self.settings.environments or ""
        if not self.settings.requirements or not re.fullmatch(r"gs://[^/]+/.+", store):
            raise PodError("Set tpu-requirements to a lock file and tpu-environments to gs://BUCKET/FOLDER.")
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise PodError("The hosts run Linux on x86-64: build their environment on such a machine.")
        name, lock, python = environment_of(self.settings)
        with tempfile.TemporaryDirectory() as place:
            os.environ["TPU_AGENT_ROOT"] = place
            folder, archive = Path(place, "environments", name), Path(place, f"{name}.tar")
            try:
                build(folder, lock, python, self.say, platform=HOSTS)
            except RuntimeError as error:
                raise PodError(str(error)) from None
            pack(folder, archive)
            bucket, _, prefix = store.removeprefix("gs://").rstrip("/").partition("/")
            self.say(f"Uploading {archive.stat().st_size >> 20} MB to {store}")
            blob = storage.Client().bucket(bucket).blob(f"{prefix}/{archive.name}")
            blob.upload_from_filename(str(archive), timeout=600)


async def run_on_slices(args: argparse.Namespace, slices: list[ExecutorSettings]) -> int:
    """Run the command on every slice of the pool; ssh, logs and stop on the first slice that succeeds."""
    if args.slice is not None:
        if not 0 <= args.slice < len(slices):
            raise PodError(f"The pool has {len(slices)} slices, numbered from 0: no slice {args.slice}.")
        slices = [slices[args.slice]]
    if len(slices) == 1:
        return await Cli(args, slices[0]).run()
    codes: list[int] = []
    for batch in [slices] if args.command in ("up", "down") else [[one] for one in slices]:
        for result in await asyncio.gather(*(Cli(args, one).run() for one in batch), return_exceptions=True):
            if isinstance(result, (WorkflowError, Unreachable)):
                print(result, file=sys.stderr)
            elif isinstance(result, BaseException):
                raise result
            elif args.command in ("ssh", "logs", "stop"):
                return result
            codes.append(result if isinstance(result, int) else 1)
    return max(codes)


def _describe(tasks: dict[str, Any]) -> str:
    running = [task for task in tasks.values() if task["state"] == "running" and "slot" in task]
    words = [
        f"{task['slot']} ({task['label']}, launch {task['launch']}, progress {task['progress'] or '-'}"
        + (f", {task['status']}" if task["status"] else "")
        + (f", unattended for {task['unattended']:.0f} s)" if task["unattended"] > 30 else ")")
        for task in running
    ]
    return "; ".join(words) or "-"


def main(arguments: list[str] | None = None) -> int:
    try:
        args, settings = parse(sys.argv[1:] if arguments is None else arguments)
        return asyncio.run(run_on_slices(args, settings.slices()))
    except (WorkflowError, Unreachable) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
