"""python -m snakemake_executor_plugin_tpu COMMAND [--profile DIR] [--SETTING VALUE ...]    commands for people

    up        create the pod if it does not exist, and wait until every host answers
    status    state and health, load and memory of each host, running jobs
    ssh       log in to a host, or run a command there:  ssh [RANK] [-- COMMAND ...]
              or pass options to ssh:                    ssh [RANK] -- -N -L 6006:localhost:6006
    stop      stop a job on the pod:                     stop JOB
    down      delete the pod, unless somebody uses it (--force: anyway)

With several slices (tpu-slices) up, status and down act on every one, or on one: --slice N.

The settings are those of the plugin without the prefix `tpu-`, from the profile, then from the environment
(SNAKEMAKE_TPU_PROJECT and so on), then from the command line.
"""

import asyncio
import os
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import configargparse
from snakemake.profiles import ProfileConfigFileParser
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.registry.plugin import Plugin

from .claim import name_of
from .errors import COMMAND, PodError, Unreachable, red
from .guarding import guard_in_words, guard_trouble
from .lifecycle import Pod, PodManager
from .settings import ExecutorSettings, common_settings

COMMANDS = ("up", "status", "ssh", "stop", "down")


def parse(arguments: list[str]) -> tuple[Any, ExecutorSettings]:
    """Read the command, and the settings as Snakemake does: from the profile, the environment, the command line."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    names = {f"--{item.name.replace('_', '-')}" for item in fields(ExecutorSettings)}
    ours = [f"--tpu-{w[2:]}" if w.partition("=")[0] in names else w for w in arguments[:end]]
    parser = configargparse.ArgumentParser(
        prog=COMMAND,
        usage=f"{COMMAND} COMMAND [WORD ...] [--profile DIR] [--SETTING VALUE ...]",
        description=__doc__.partition("\n\n")[2],
        formatter_class=configargparse.RawDescriptionHelpFormatter,
        config_file_parser_class=ProfileConfigFileParser,
        ignore_unknown_config_file_keys=True,
    )
    parser.error = fail
    parser.add_argument("--force", action="store_true", help="delete a pod that is in use")
    parser.add_argument("--slice", type=int, help="number of one slice of several (tpu-slices)")
    parser.add_argument("--profile", help="folder of a Snakemake profile, or its config.yaml")
    plugin = Plugin(None, common_settings, ExecutorSettings, "tpu")
    plugin.register_cli_args(parser, "executor")
    if profile := parser.parse_known_args(ours)[0].profile:
        from snakemake.cli import get_profile_dir  # here, as it takes a second

        if not (found := get_profile_dir(profile)):
            raise WorkflowError(
                f"There is no Snakemake profile at {profile}: name a folder such as profiles/tpu."
            )
        parser._default_config_files = [str(found[1])]
    args, words = parser.parse_known_args(ours)
    if not words or words[0] not in COMMANDS or any(word.startswith("-") for word in words):
        fail(f"{' '.join(words) or 'nothing'} is no command: use one of {', '.join(COMMANDS)}")
    args.command, args.words = words[0], words[1:] + arguments[end + 1 :]
    args.force = "--force" in ours  # and not in a profile, where it is Snakemake's
    return args, plugin.get_settings(args)


def fail(message: str) -> None:
    raise WorkflowError(f"{message}. `{COMMAND} --help` lists what there is.")


class Cli:
    def __init__(self, args: Any, settings: ExecutorSettings) -> None:
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
            if left := await self.manager.close(report=self.args.command != "ssh"):
                self.say(left)

    async def _existing(self) -> Pod:
        """Return the pod without creating it."""
        self.settings.create = False
        # Only jobs depend on the size of the pod.
        state = await self.manager.cloud.describe()
        self.settings.accelerator_type = state.accelerator_type or self.settings.accelerator_type
        return await self.manager.ready()

    async def up(self) -> None:
        """Create the pod, whatever tpu-create says."""
        self.settings.create = self.manager.for_jobs = True
        await self.manager.ready()

    async def status(self) -> int:
        state = await self.manager.cloud.describe()
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

    async def stop(self) -> None:
        if not self.args.words:
            raise PodError("Name a job as `status` shows it, such as train-0123456789ab.")
        pod, job = await self._existing(), self.args.words[0]
        found = [task for task in pod.found() if (task.get("slot"), task["state"]) == (job, "running")]
        if not found:
            raise PodError(f"Nothing of {job} runs on pod {self.settings.name or ''}.")
        stops = (pod.workers[task["host"]].stop([task["task"]], self.settings.grace) for task in found)
        await asyncio.gather(*stops)
        print(f"stopped {len(found)} task(s) of {job}")

    async def down(self) -> None:
        if (await self.manager.cloud.describe()).is_ready and not self.args.force:
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


async def run_on_slices(args: Any, slices: list[ExecutorSettings]) -> int:
    """Run the command on every slice; ssh and stop on one."""
    if args.slice is not None and not 0 <= args.slice < len(slices):
        raise PodError(f"There are {len(slices)} slices, numbered from 0: no slice {args.slice}.")
    chosen = slices if args.slice is None else [slices[args.slice]]
    if len(chosen) > 1 and args.command in ("ssh", "stop"):
        raise PodError(f"There are {len(chosen)} slices: say which by --slice N.")
    codes: list[int] = []
    for batch in [chosen] if args.command in ("up", "down") else [[one] for one in chosen]:
        for result in await asyncio.gather(*(Cli(args, one).run() for one in batch), return_exceptions=True):
            if isinstance(result, (WorkflowError, Unreachable)):
                print(result, file=sys.stderr)
            elif isinstance(result, BaseException):
                raise result
            codes.append(result if isinstance(result, int) else 1)
    return max(codes)


def _describe(tasks: dict[str, Any]) -> str:
    running = [task for task in tasks.values() if task["state"] == "running" and "slot" in task]
    words = [
        f"{task['slot']} ({task.get('label')}, launch {task.get('launch')}, progress {task.get('progress') or '-'}"
        + (f", {task['status']}" if task.get("status") else "")
        + (f", unattended for {task['unattended']:.0f} s)" if task.get("unattended", 0) > 30 else ")")
        for task in running
    ]
    return "; ".join(words) or "-"


def main(arguments: list[str] | None = None) -> int:
    try:
        args, settings = parse(sys.argv[1:] if arguments is None else arguments)
        return asyncio.run(run_on_slices(args, settings.of_slices()))
    except (WorkflowError, Unreachable) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
