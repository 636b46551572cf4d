"""python -m snakemake_executor_plugin_tpu COMMAND [--profile DIR] [--SETTING VALUE ...]    commands for people

    up        create the pod if it does not exist, and wait until every host is ready for jobs
    status    state and health, load and memory of each host, running jobs
    ssh       print the command that logs in to a host:  ssh [RANK]
    hold      keep an idle pod for some time:            hold 4h   (hold 0 ends it)
    stop      stop a job on the pod:                     stop JOB
    down      delete the pod, unless it runs a job or somebody drives it (--force: anyway)

With several slices (tpu-slices) up, status, hold and down act on every one, or on one: --slice N.

The settings are those of the plugin without the prefix `tpu-`, from the profile, then from the environment
(SNAKEMAKE_TPU_PROJECT and so on), then from the command line.
"""

import asyncio
import math
import os
import re
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import configargparse
from snakemake.profiles import ProfileConfigFileParser
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.registry.plugin import Plugin

from .allocation import slice_of
from .cloud import PodState
from .control import NOBODY, Control
from .errors import COMMAND, PodError, red
from .google import check_libraries
from .guarding import guard_in_words, guard_trouble, may_exist
from .settings import ExecutorSettings, common_settings
from .slice import Slice, describe_beat, key_of
from .worker.bucket import Document, Forged, Refused, sign, verify
from .worker.idle import held_for

COMMANDS = ("up", "status", "ssh", "hold", "stop", "down")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


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
    """The commands on one slice."""

    def __init__(self, args: Any, settings: ExecutorSettings) -> None:
        self.args, self.settings = args, settings
        settings.check_pod()
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        self.slice = Slice(settings, cache / "snakemake-executor-plugin-tpu", self.say)

    def say(self, sentence: str) -> None:
        """Print progress to stderr: other programs may read stdout."""
        print(sentence, file=sys.stderr, flush=True)

    async def run(self) -> int:
        check_libraries()  # before anything that would have to be reported at the end
        try:
            return await getattr(self, self.args.command)() or 0
        finally:
            # Above all after an error, such as hosts that do not answer; a second Ctrl-C ends `close`.
            report = self.args.command != "ssh"
            left = may_exist(self.settings) if report else ""
            try:
                left = await self.slice.close(report)
            finally:
                if left:
                    self.say(left)

    async def _look(self, state: PodState) -> tuple[Control, Document, float]:
        """Read what the hosts say without driving them; return the controller's lease and its age as well."""
        key = key_of(state, self.settings)
        self.settings.accelerator_type = state.accelerator_type or self.settings.accelerator_type
        bucket = await asyncio.to_thread(self.slice.bucket, key)
        hosts = slice_of(self.settings.accelerator_type).hosts
        control = Control(bucket, hosts, {"node": state.orders["node"]}, state.orders["times"])
        try:
            await asyncio.to_thread(control.hear)
            found = await asyncio.to_thread(bucket.get, "controller")
        finally:
            control.close()
        lease = verify(key, "controller", found.data) if found else {"who": NOBODY}
        return control, lease, found.age if found else 0.0

    async def _existing(self) -> tuple[PodState, Control, Document, float]:
        state = await self.slice.cloud.describe()
        if not state.is_ready:
            raise PodError(f"TPU pod {self.settings.name} is not up: {state}.")
        return (state, *await self._look(state))

    async def up(self) -> None:
        """Create the pod, whatever tpu-create says, and wait until every host is ready or runs a job."""
        self.settings.create = True
        task = self.slice.start()
        while not task.done():
            if control := self.slice.control:
                running = {
                    rank for rank, beat in control.beats.items() if control.is_fresh(rank) and beat["job"]
                }
                if running.union(control.free()) == set(range(self.slice.hosts)):
                    break
            await self.slice.news()
        if self.slice.error:
            raise self.slice.error

    async def status(self) -> int:
        state = await self.slice.cloud.describe()
        print(f"{self.settings.name}: {state} {state.accelerator_type} {state.health}".rstrip())
        if not state.is_ready:
            return 1
        control, lease, age = await self._look(state)
        if lease["who"] != NOBODY:
            print(f"driven by {lease['who']}, heard {age:.0f} s ago")
        beats = control.beats.values()
        guards = [beat["guard"] for beat in beats]
        print(guard_in_words(next(iter(guards), None), min((beat["idle"] for beat in beats), default=0.0)))
        if held := await asyncio.to_thread(held_for, control.bucket):
            print(f"held for another {math.ceil(held / 60)} minutes (`hold 0` ends it)")
        if trouble := guard_trouble(guards):
            print(red(trouble))
        print(f"{'host':6} {'load':>6} {'cpus':>5} {'memory':>14} {'disk':>9}   job")
        for rank in range(control.hosts):
            beat = control.beats.get(rank)
            if beat is None or not control.is_fresh(rank):
                silent = f"has been silent for {beat['age']:.0f} s" if beat else "is not up"
                print(f"w{rank:<5} {silent}")
                continue
            used, total = beat.get("memory", 0) - beat.get("memory_free", 0), beat.get("memory", 0)
            print(
                f"w{rank:<5} {beat['load']:6.1f} {beat['cpus']:5d} {used / 2**30:6.1f}/{total / 2**30:5.1f} G "
                f"{beat['disk_free'] / 2**30:7.1f} G   {describe_beat(beat, age)}"
                + (f"; {beat['error']}" if beat["error"] else "")
            )
        return 0

    async def ssh(self) -> None:
        """Print the command that logs in: the plugin itself needs no login."""
        rank, settings = (self.args.words or ["0"])[0], self.settings
        if not rank.isdigit():
            raise PodError(f"{rank!r} is no host: `ssh RANK` prints the command for one, numbered from 0.")
        if int(rank) >= (hosts := slice_of(settings.accelerator_type).hosts):
            raise PodError(
                f"A {settings.accelerator_type} has {hosts} hosts, numbered from 0: no host {rank}."
            )
        tunnel = " --tunnel-through-iap" * settings.internal_ips
        where = f"--zone={settings.zone} --project={settings.project}"
        print(f"gcloud compute tpus tpu-vm ssh {settings.name} {where} --worker={rank}{tunnel}")

    async def hold(self) -> None:
        """Keep the pod although it is idle."""
        match = re.fullmatch(r"(\d+)([smhd]?)", "".join(self.args.words))
        if not match:
            raise PodError("Say for how long the pod is kept: `hold 4h`, `hold 30m`, `hold 0`.")
        seconds = int(match[1]) * UNITS[match[2] or "s"]
        _, control, *_ = await self._existing()
        document = sign(control.bucket.key, "hold", {"seconds": seconds})
        await asyncio.to_thread(control.bucket.put, "hold", document)
        print(f"{self.settings.name} is kept for {seconds} s although it is idle; tpu-end still holds")

    async def stop(self) -> None:
        if not self.args.words:
            raise PodError("Name a job as `status` shows it, such as train-0123456789ab.")
        job, (_, control, *_) = self.args.words[0], await self._existing()
        launches = {
            beat["job"][1] for beat in control.beats.values() if beat["job"] and beat["job"][0] == job
        }
        if not launches:
            raise PodError(f"Nothing of {job} runs on pod {self.settings.name}.")
        for launch in launches:
            path = f"jobs/{job}/{launch}/stop"
            await asyncio.to_thread(control.bucket.create, path, {"why": "stopped"})
        print(f"{job} is told to stop")

    async def down(self) -> None:
        state = await self.slice.cloud.describe()
        if state.is_ready and not self.args.force:
            await self._check_free(state)
        await self.slice.cloud.delete()
        print(f"TPU pod {self.settings.name} is deleted and costs nothing any more.")

    async def _check_free(self, state: PodState) -> None:
        force = "`down --force` deletes the pod anyway."
        try:
            control, lease, age = await self._look(state)
        except (PodError, OSError, Refused, Forged) as error:
            raise PodError(f"It is unknown whether somebody uses the pod: {error} {force}") from None
        running = [
            f"w{rank} runs {describe_beat(beat, age)}"
            for rank, beat in control.beats.items()
            if beat["job"] and beat["age"] < control.times["fence"] + control.times["silence"]
        ]
        if running:
            raise PodError(f"The pod is in use: {'; '.join(running)}. {force}")
        if lease["who"] != NOBODY and lease["busy"] and age < control.times["silence"]:
            raise PodError(f"The pod is in use by the Snakemake of {lease['who']}. Stop it first; {force}")


async def run_on_slices(args: Any, slices: list[ExecutorSettings]) -> int:
    """Run the command on every slice; ssh and stop on one."""
    if args.slice is not None and not 0 <= args.slice < len(slices):
        are, plural = ("is", "") if len(slices) == 1 else ("are", "s")
        raise PodError(f"There {are} {len(slices)} slice{plural}, numbered from 0: no slice {args.slice}.")
    chosen = slices if args.slice is None else [slices[args.slice]]
    if len(chosen) > 1 and args.command in ("ssh", "stop"):
        raise PodError(f"There are {len(chosen)} slices: say which by --slice N.")
    codes: list[int] = []
    for batch in [chosen] if args.command in ("up", "down") else [[one] for one in chosen]:
        for result in await asyncio.gather(*(Cli(args, one).run() for one in batch), return_exceptions=True):
            if isinstance(result, (WorkflowError, OSError, Refused, Forged)):
                print(result, file=sys.stderr)
            elif isinstance(result, BaseException):
                raise result
            codes.append(result if isinstance(result, int) else 1)
    return max(codes)


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        args, settings = parse(sys.argv[1:] if arguments is None else arguments)
        return asyncio.run(run_on_slices(args, settings.of_slices()))
    except (WorkflowError, OSError, Refused, Forged) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
