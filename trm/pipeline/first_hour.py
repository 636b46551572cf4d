"""The first hour on real hardware as one command: it creates a slice, tries everything on it, and deletes it.

first-hour.yaml beside the profile says what runs:

    accelerator_type: v4-16          # the smallest slice with more than one host
    hours: 1                         # how long it may take; then the slice is deleted
    estimate: python -m ... --json   # optional: runs here before anything is created
    arguments: --config study=FILE   # of every call of Snakemake
    steps:                           # in order; the slice is deleted under the first one when it has a checkpoint
      one host: TARGET ...
      whole slice: TARGET ...
    collect: gs://.../runs/*/*.json  # measurements of the jobs, here or in Cloud Storage

The results go into one JSON file, the only one to attach to a report.
"""

import fnmatch
import importlib.metadata
import json
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import yaml

from trm.errors import UserError
from trm.pipeline.cloud import slice_usd
from trm.storage import open_store

KEYS = {"accelerator_type", "hours", "estimate", "arguments", "steps", "collect"}
TAIL = 40
GRACE = 120
"""Seconds at the end of the plan's hours for stopping jobs."""
LARGEST = 1 << 20  # bytes of a collected file


def read_plan(profile: Path) -> dict[str, Any]:
    """Read first-hour.yaml beside a profile. Raises UserError: it does not exist, or has unknown keys."""
    from yte import process_yaml

    path = (profile if profile.is_dir() else profile.parent) / "first-hour.yaml"
    if not path.is_file():
        raise UserError(f"There is no {path}: it says what runs in the first hour (docs/cloud.md).")
    plan = process_yaml(path.read_text(), require_use_yte=True) or {}
    if wrong := sorted(set(plan) - KEYS):
        raise UserError(f"{path}: {wrong[0]!r} is an unknown key; the keys are {', '.join(sorted(KEYS))}.")
    if not isinstance(plan.get("steps"), dict) or not plan["steps"]:
        raise UserError(f"{path}: `steps` has to name at least one call of Snakemake.")
    profile_settings = yaml.safe_load((path.parent / "config.yaml").read_text(encoding="utf-8")) or {}
    if profile_settings.get("tpu-pool"):
        raise UserError(
            "The first hour uses one slice: give a profile without tpu-pool, which multiplies its price."
        )
    return {"accelerator_type": "v4-16", "hours": 1, "arguments": "", **plan}


class FirstHour:
    """Runs the steps and writes the record; the slice is deleted at the end in any case."""

    def __init__(self, profile: Path, name: str, say: Callable[[str], None]):
        from snakemake_executor_plugin_tpu.allocation import slice_of

        self.profile, self.say, self.plan = profile, say, read_plan(profile)
        self.name = f"{name}-first-hour"
        self.type = self.plan["accelerator_type"]
        self.hosts = slice_of(self.type).hosts
        self.began = time.time()
        last = self.began + 3600 * float(self.plan["hours"])
        self.end = last - GRACE
        self.last = time.strftime("%FT%TZ", time.gmtime(last))
        packages = ("snakemake", "snakemake-executor-plugin-tpu", "google-cloud-tpu", "google-cloud-storage")
        self.record: dict[str, Any] = {
            "accelerator_type": self.type,
            "started": time.strftime("%F %T UTC", time.gmtime(self.began)),
            "versions": {"python": platform.python_version(), **{item: _version(item) for item in packages}},
            "steps": [],
        }

    def announce(self) -> str:
        """What will happen and what it will cost at most."""
        cost, hours = slice_usd(self.type), float(self.plan["hours"])
        steps = ", ".join(self.plan["steps"])
        return (
            f"The first hour creates a slice, {self.name} ({self.type}, {self.hosts} hosts, {cost:.2f} USD an hour on "
            f"demand, spot less), and runs: {steps}. It deletes the slice under the first job to see it resume, and "
            f"again at the end, after {hours:g} h at the latest: {cost * hours:.0f} USD at most."
        )

    def run(self, out: Path) -> bool:
        """Run everything and write the record; whether all went well."""
        ok = False
        try:
            if self.plan.get("estimate"):
                done = self._step("estimate", shlex.split(self.plan["estimate"]))
                self.record["estimate"] = _json(done["output"])
            self._step("create", self._command("up"))
            facts = "python3 --version; uname -r; nproc; ls -d /dev/accel* /dev/vfio 2>/dev/null; head -1 /proc/meminfo"
            self._step("hosts", self._command("ssh", "0", "--", "sh", "-c", facts))
            for number, (step, targets) in enumerate(self.plan["steps"].items()):
                if number == 0:
                    self._interrupted(step, targets)
                self._step(step, self._snakemake(targets))
                self._step(f"status after {step}", self._command("status"))
            self.record["collected"] = self._collect()
            ok = True
        except StepFailed as failure:
            self.say(str(failure))
        finally:
            ok = self._end() and ok
            self.record["ok"] = ok
            hours = (time.time() - self.began) / 3600
            cost = self.record["usd_at_most"] = round(hours * slice_usd(self.type), 2)
            out.write_text(json.dumps(self.record, indent=1) + "\n")
            self.say(
                f"{'All went well' if ok else 'Something went wrong'}, in {60 * hours:.0f} minutes, for {cost:.2f} USD "
                f"at most: send the file {out.absolute()}, it holds everything."
            )
        return ok

    def _end(self) -> bool:
        try:
            self._step("delete", self._command("down", "--force"), limited=False)
        except StepFailed as failure:
            self.say(f"{failure}\nThe slice {self.name} may still cost money: look at the console.")
            return False
        return True

    def _command(self, command: str, *words: str) -> list[str]:
        program = [sys.executable, "-m", "snakemake_executor_plugin_tpu", command]
        pod = ["--profile", str(self.profile), "--name", self.name, "--accelerator-type", self.type]
        # This computer may die: then the hosts keep the promise about the hours.
        return [*program, *pod, "--end", self.last, *words]

    def _snakemake(self, targets: str) -> list[str]:
        program = [sys.executable, "-m", "snakemake", "--profile", str(self.profile)]
        hosts = str(self.hosts)
        size = ["--jobs", hosts, "--resources", f"tpu_hosts={hosts}"]
        pod = ["--tpu-accelerator-type", self.type, "--tpu-name", self.name, "--tpu-end", self.last]
        return [*program, *shlex.split(targets), *size, *pod, *shlex.split(self.plan["arguments"])]

    def _interrupted(self, step: str, targets: str) -> None:
        """Delete the slice under a running job as soon as the job has a checkpoint."""
        jobs, down = Path(".snakemake/tpu/jobs"), list[subprocess.CompletedProcess[str]]()
        before = _progress(jobs)

        def watch(process: subprocess.Popen[str]) -> None:
            while process.poll() is None:
                if any(value != before.get(name) for name, value in _progress(jobs).items()):
                    self.say(f"{step} has a checkpoint: deleting the slice under it")
                    down.append(
                        subprocess.run(self._command("down", "--force"), capture_output=True, text=True)
                    )
                    return
                time.sleep(0.2)

        done = self._step(f"{step}, interrupted", self._snakemake(targets), watch=watch, codes=(0, 1))
        if not down:
            raise StepFailed(f"{step} ended before it had a checkpoint: {_last(done['output'])}")
        if down[0].returncode:
            raise StepFailed(
                f"The slice could not be deleted under {step}: {_last(down[0].stderr.splitlines())}"
            )

    def _step(
        self,
        name: str,
        argv: list[str],
        watch: Callable[[subprocess.Popen[str]], None] | None = None,
        codes: tuple[int, ...] = (0,),
        limited: bool = True,
    ) -> dict[str, Any]:
        """Run a program, show its output, and record code, seconds and last lines.

        `limited`: stop it when the hours of the plan are over.
        """
        self.say(f"[{time.strftime('%T')}] {name}")
        began, lines = time.time(), []
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        watcher = threading.Thread(target=watch, args=(process,)) if watch else None
        if watcher:
            watcher.start()
        assert process.stdout
        try:
            with self._stopped_in_time(process) if limited else nullcontext(), process.stdout as output:
                for line in output:
                    lines.append(line.rstrip())
                    self.say(f"    {lines[-1]}")
        finally:
            code = process.wait()
            if watcher:
                watcher.join()
            seconds = round(time.time() - began, 1)
            entry = {"name": name, "code": code, "seconds": seconds, "last_lines": lines[-TAIL:]}
            self.record["steps"].append(entry)
        if limited and time.time() >= self.end:
            raise StepFailed(f"The {float(self.plan['hours']):g} h of the plan were over during {name}")
        if code not in codes:
            raise StepFailed(f"{name} ended with exit code {code}: {_last(lines)}")
        return {**entry, "output": lines}

    @contextmanager
    def _stopped_in_time(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """Stop the process when the hours of the plan are over, as by Ctrl-C, and kill it if it goes on."""
        left = max(0.0, self.end - time.time())
        timers = [threading.Timer(left, process.send_signal, (signal.SIGINT,))]
        timers += [threading.Timer(left + GRACE, process.kill)]
        for timer in timers:
            timer.start()
        try:
            yield
            process.wait()
        finally:
            for timer in timers:
                timer.cancel()

    def _collect(self) -> dict[str, Any]:
        """The JSON files named in the plan."""
        found: dict[str, Any] = {}
        for pattern in shlex.split(self.plan.get("collect") or ""):
            for name, text in _files(pattern):
                found[name] = _json(text.splitlines())
        return found


class StepFailed(Exception):
    """A step failed."""


def _files(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield addresses and texts of the small files that match a pattern, here or in a bucket."""
    folder = pattern.partition("*")[0].rpartition("/")[0] or "."
    store = open_store(folder)
    for info in store.list():
        if fnmatch.fnmatchcase(f"{folder}/{info.name}", pattern) and info.size < LARGEST:
            yield store.url(info.name), store.get_bytes(info.name).decode()


def _progress(jobs: Path) -> dict[str, str | None]:
    found = {}
    for path in jobs.glob("*.json"):
        try:
            found[path.name] = json.loads(path.read_text()).get("progress")
        except (OSError, ValueError):
            continue  # just being written
    return {name: value for name, value in found.items() if value}


def _json(lines: list[str]) -> Any:
    text = "\n".join(lines)
    try:
        return json.loads(text[min(text.index(mark) for mark in "{[" if mark in text) :])
    except ValueError:
        return text[-2000:]


def _last(lines: list[str]) -> str:
    return "\n        ".join(["", *[line for line in lines if line.strip()][-8:]])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
