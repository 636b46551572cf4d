"""`make rehearsal`: the study on an emulated pod with three faults, compared with a local run of the same study.

    python -m tests.rehearsal [--dir rehearsal] [--hosts v4-64] [--slices 8 --hosts v4-8]

The hosts are groups of processes on this machine, fake-gcs-server is the bucket, and a gRPC server speaks the TPU API.
One run takes the whole slice, the others one host each. The first host kills what starts there until it is set aside.
When the whole-slice run has a checkpoint, its slice is preempted; the plugin re-creates it and the run resumes. When it
has another one, two of its ranks hang; the plugin stops them all, and the run resumes again. Then the results are
compared with those of profiles/local.
"""

import argparse
import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.hosts import Host, processes_with, send
from trm.backends.cpu.build import BuildError, library
from trm.provenance import commit_in_words

ROOT = Path(__file__).parents[1]
PREFIX = "study"
STUDY = "study=config/rehearsal.yaml"
FIRST_STEPS = 5
STALL_MINUTES = 1  # also until the first checkpoint of a launch
WHOLE = r"-d16-[^/]*p300a0-[^/]*-s0-[0-9a-f]{8}"  # as in profiles/pod/workflow.yaml
FAULTS = ("bad host", "preemption", "hang")
ASIDE = re.compile(r"w0 of pod(-0)? is set aside")


@dataclass
class Outcome:
    """The results of the rehearsal; `failures` is empty if all is well."""

    seconds: float = 0.0
    preempted_at: int = 0
    hung_at: int = 0
    rows: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def check(self, holds: bool, sentence: str) -> None:
        """Add a statement that must hold."""
        self.rows.append(f"{'ok  ' if holds else 'FAIL'}  {sentence}")
        if not holds:
            self.failures.append(sentence)


def checkout(folder: Path, study: Path | None) -> Path:
    """Copy the pipeline without results, and a study in place of the shipped one of its name, to a new folder."""
    folder.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("Snakefile", "workflow", "profiles", "config", "envs", "trm"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignore)
        else:
            shutil.copy2(source, folder / name)
    if study:
        shutil.copy2(study, folder / "config")
    return folder


def snakemake(folder: Path, environment: dict[str, str], log: Path, *words: str) -> int:
    """Run Snakemake in a checkout with its output in a log."""
    with log.open("ab") as out:
        command = [sys.executable, "-m", "snakemake", *words]
        return subprocess.run(
            command, cwd=folder, env=os.environ | environment, stdout=out, stderr=out, check=False
        ).returncode


def newest_checkpoint(pod: EmulatedPod) -> int:
    """The newest step of the whole-pod run of which all parts are in the bucket, or 0."""
    shape = re.compile(WHOLE + r"/step-(?P<step>\d+)/part-\d+-of-(?P<parts>\d+)\.json$")
    names = [blob.name for blob in pod.bucket.list_blobs(prefix=f"{PREFIX}/results/checkpoints/")]
    found = Counter((int(m["step"]), int(m["parts"])) for name in names if (m := shape.search(name)))
    return max((step for (step, parts), count in found.items() if count == parts), default=0)


def programs(host: Host, words: str = "-m trm ", hosts: int = 0) -> list[int]:
    """The programs on a host whose command line matches, of jobs for so many hosts (0: for any number)."""
    jobs = host.jobs()
    sized = processes_with(f"TPURUN_SIZE={hosts}") if hosts else jobs
    return [pid for pid, line in jobs.items() if re.search(words, line) and pid in sized]


def break_host(pod: EmulatedPod, log: Path, done: threading.Event) -> None:
    """Kill what starts on the first host, except a job for a whole slice of several, until it is set aside."""
    while not done.wait(0.5) and not (log.exists() and ASIDE.search(log.read_text(errors="replace"))):
        send(signal.SIGKILL, programs(pod.hosts[0], hosts=1))


def interrupt_whole_run(
    pod: EmulatedPod, faults: tuple[str, ...], outcome: Outcome, done: threading.Event
) -> None:
    """Preempt the slice of the whole-slice run at its first checkpoint, and stop two of its ranks at a later one."""
    command = f"-m trm train .*{WHOLE}"
    while not done.wait(0.5):
        step = newest_checkpoint(pod)
        taken = [host for host in pod.hosts if programs(host, command)]
        if step > 0 and not outcome.preempted_at and taken:
            pod.preempt(name=taken[0].metadata.node.name.rpartition("/")[2])
            outcome.preempted_at = newest_checkpoint(pod)
        elif step > outcome.preempted_at and "hang" in faults and len(taken) == len(pod.groups[0]):
            outcome.hung_at = step
            send(signal.SIGSTOP, [pid for host in taken[:3][-2:] for pid in programs(host, command)])
            return


def compiled_kernel(folder: Path) -> dict[str, str]:
    """Compile the CPU kernel, which each host would do by itself, and return the variables by which all find it, and
    what numba has compiled here."""
    from trm.compiled import FOLDER

    place = folder / "cache" / "trm"
    place.mkdir(parents=True)
    with contextlib.suppress(BuildError):
        shutil.copy2(library(), place)
    numba = {"NUMBA_CACHE_DIR": str(FOLDER.parent)} if FOLDER else {}
    return {"XDG_CACHE_HOME": str(place.parent), **numba}


def share_kernel(pod: EmulatedPod, kernel: dict[str, str]) -> None:
    """Let the hosts find the compiled kernel; the rest of their caches stays their own."""
    for host in pod.hosts:
        host.environment |= {**kernel, "TRM_CACHE": f"{host.home}/.cache/trm"}


class Background(threading.Thread):
    """A call beside this thread; `result` waits for its end."""

    def __init__(self, call: Callable[[], int]):
        super().__init__()
        self.call, self.begin = call, time.monotonic()
        self.start()

    def run(self) -> None:
        self.code, self.seconds = self.call(), time.monotonic() - self.begin

    def result(self) -> int:
        self.join()
        return self.code


def rehearse(
    folder: Path,
    accelerator: str = "v4-64",
    slices: int = 1,
    study: Path | None = None,
    least_runs: int = 3,
    faults: tuple[str, ...] = FAULTS,
) -> Outcome:
    """Run the study on the emulated pod and locally, and compare; `study`: another rehearsal.yaml."""
    outcome, started = Outcome(), time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    here, there = checkout(folder / "here", study), checkout(folder / "there", study)
    kernel = compiled_kernel(folder)
    words = ("--profile", "profiles/local", "--config", STUDY)
    local = Background(lambda: snakemake(here, kernel, folder / "here.log", *words))
    done, version = threading.Event(), commit_in_words() or "0" * 40
    with EmulatedPod(folder / "pod", accelerator, slices=slices) as pod:
        share_kernel(pod, kernel)
        environment = pod.environment | {
            "TRM_BUCKET": f"gs://{pod.bucket.name}/{PREFIX}",
            "TRM_COMMIT": version,
        }
        log = folder / "there.log"
        culprits = [threading.Thread(target=interrupt_whole_run, args=(pod, faults, outcome, done))]
        if "bad host" in faults:
            culprits.append(threading.Thread(target=break_host, args=(pod, log, done)))
        for culprit in culprits:
            culprit.start()
        try:
            count, size = str(len(pod.hosts)), len(pod.groups[0])
            words = ("--profile", "profiles/pod", "--tpu-accelerator-type", accelerator)
            words += ("--tpu-slices", str(slices)) if slices > 1 else ()
            words += ("--jobs", count, "--resources", f"tpu_hosts={count}", "--config", f"pod_hosts={size}")
            words += (STUDY, "--retries", "3", "--set-resources", f"train:stall={STALL_MINUTES}")
            code = snakemake(there, environment, log, *words)
        finally:
            done.set()
            for culprit in culprits:
                culprit.join()
        outcome.check(code == 0, f"the study runs on the pod ({time.monotonic() - started:.0f} s)")
        outcome.check(local.result() == 0, f"the study runs locally ({local.seconds:.0f} s)")
        outcome.check(
            outcome.preempted_at > 0, f"the pod was preempted after step {outcome.preempted_at}'s checkpoint"
        )
        runs = len(list((here / "results/runs").glob("*/training.json")))
        outcome.check(runs >= least_runs, f"{runs} training runs")
        text = log.read_text(errors="replace")
        check_faults(there, faults, size, text, outcome)
        compare(here, there, pod, text, outcome, version)
    outcome.seconds = time.monotonic() - started
    return outcome


def check_faults(there: Path, faults: tuple[str, ...], hosts: int, log: str, outcome: Outcome) -> None:
    """Check that each fault struck, was told, and cost no more than it has to."""
    failed = re.findall(r"TPU job [^\n]*: (?:rank \d+ on )?(\w+)[^\n]* ended with exit code", log)
    retries = log.count("Trying to restart job")
    outcome.check(set(failed) <= {"w0"} and retries <= len(failed), f"{retries} retries, all of jobs on w0")
    if "bad host" in faults:
        outcome.check(bool(ASIDE.search(log)) and retries >= 2, "the bad host was set aside")
    else:
        outcome.check(not retries, "Snakemake used no retry")
    if "hang" in faults:
        said = f"it made no progress for {STALL_MINUTES} minute" in log
        outcome.check(outcome.hung_at > 0 and said, f"a hang after step {outcome.hung_at} was noticed")
        logs = (there / ".snakemake/tpu/logs").glob("train-*/launch-*/rank*.log")
        shown = [path for path in logs if "most recent call first" in path.read_text(errors="replace")]
        outcome.check(len(shown) >= hosts, f"the logs show the stacks of {len(shown)} ranks")


def compare(here: Path, there: Path, pod: EmulatedPod, log: str, outcome: Outcome, version: str) -> None:
    """Compare the results from the pod with those of the local run."""
    for name in ("results/plots/data_size.pdf", "results/plots/data_size.png", "results/report.html"):
        file = there / name
        outcome.check(file.exists() and file.stat().st_size > 5000, f"{name} is on the local disk")
    resumed = [int(step) for step in re.findall(r"resumed from \S*step-0*(\d+)", log)]
    outcome.check(any(resumed), f"the log shows a resume at step {max(resumed, default=0)}")
    runs = sorted(path.parent.name for path in (here / "results/runs").glob("*/training.json"))
    accuracies: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        base = f"{PREFIX}/results/runs/{run}"
        blob = pod.bucket.blob(f"{base}/training.json")
        if not blob.exists():
            outcome.check(False, f"{run} is in the bucket")
            continue
        training = json.loads(blob.download_as_bytes())
        told = training["provenance"]
        outcome.check(
            told["commit"] == version.rstrip("+") and told["dirty"] == version.endswith("+"),
            f"{run} names the commit that made it ({version[:8]})",
        )
        history = pod.bucket.blob(f"{base}/history.csv").download_as_text()
        ours, theirs = losses((here / f"results/runs/{run}/history.csv").read_text()), losses(history)
        worst = max(abs(a - b) for a, b in zip(ours[:FIRST_STEPS], theirs[:FIRST_STEPS], strict=True))
        kind = f"{training['workers']} workers, {training['resumes']} resumes"
        outcome.check(
            worst < 1e-5, f"{run} ({kind}): losses of the first {FIRST_STEPS} steps agree to {worst:.1e}"
        )
        if training["workers"] > 1:
            outcome.check(training["resumes"] >= 1, f"{run} resumed from a checkpoint after the preemption")
        point = re.sub(r"-s\d+-[0-9a-f]{8}$", "", run)
        seeds = accuracies.setdefault(point, {"here": [], "there": []})
        (evaluation,) = (here / f"results/runs/{run}").glob("evaluation-*.json")
        seeds["here"].append(accuracy(evaluation.read_text()))
        seeds["there"].append(accuracy(pod.bucket.blob(f"{base}/{evaluation.name}").download_as_text()))
    for point, seeds in accuracies.items():
        mine, other = seeds["here"], seeds["there"]
        spread = max(0.02, max(mine) - min(mine))
        gap = abs(fmean(mine) - fmean(other))
        outcome.check(
            gap <= spread, f"{point}: accuracy {fmean(other):.3f} on the pod, {fmean(mine):.3f} locally"
        )


def losses(history: str) -> list[float]:
    """The training loss of every step in a history.csv."""
    return [float(row["train/loss"]) for row in csv.DictReader(history.splitlines()) if row["train/loss"]]


def accuracy(evaluation: str) -> float:
    """The exact accuracy on unseen puzzles in an evaluation."""
    results = json.loads(evaluation)["results"]
    return next(
        row["exact_accuracy"] for row in results if row["split"] == "test" and row["policy"] == "fixed"
    )


def main() -> int:
    """Run the rehearsal and print its results."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--dir", type=Path, default=Path("rehearsal"))
    parser.add_argument("--hosts", default="v4-64", help="slice to emulate (default: %(default)s, 8 hosts)")
    parser.add_argument("--slices", type=int, default=1, help="a pool of so many slices")
    args = parser.parse_args()
    if reason := why_not():
        print(f"No rehearsal is possible: {reason}.", file=sys.stderr)
        return 1
    print(f"Rehearsing in {args.dir}: follow {args.dir}/here.log, then {args.dir}/there.log (some minutes)")
    outcome = rehearse(args.dir, args.hosts, args.slices)
    print("\n".join(outcome.rows))
    print(f"\n{len(outcome.failures)} failures, {outcome.seconds:.0f} s")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
