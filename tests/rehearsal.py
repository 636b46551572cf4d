"""`make rehearsal`: the study on an emulated pod with three faults, compared with a local run of the same study.

    python -m tests.rehearsal [--dir rehearsal] [--hosts v4-64] [--slices 8 --hosts v4-8]

The hosts are groups of processes on this machine, fake-gcs-server is the bucket, and a gRPC server speaks the TPU API.
One run takes the whole slice, the others one host each. The first host kills what starts there until it is set aside.
When the whole-slice run has a checkpoint, its slice is preempted; the plugin re-creates it and the run resumes. When it
has another one, one of its ranks hangs; the plugin stops them all, and the run resumes again. Then the results are
compared with those of profiles/local. Preemption and hang are those of benchmarks/faults.py.
"""

import argparse
import contextlib
import csv
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import fmean

from benchmarks.faults import FAULTS, SNAKEMAKE, Call, Scene
from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.hosts import processes_with, send
from tests.pipeline.conftest import copy_pipeline
from tests.shell import ROOT, start
from tests.warm import Popen
from trm.backends.cpu.build import BuildError, library
from trm.compiled import FOLDER
from trm.provenance import commit_in_words

Call.popen = Popen
PREFIX = "study"
FIRST_STEPS = 5
STALL_MINUTES = 1  # also until the first checkpoint of a launch
WHOLE = r"-d16-[^/]*p300a0-[^/]*-s0-[0-9a-f]{8}"  # as in profiles/pod/workflow.yaml
ASIDE = re.compile(r"w0 of pod(-0)? is set aside")


def checkout(folder: Path, study: Path | None) -> Path:
    """Copy the pipeline without results, and a study in place of the shipped one of its name, to a new folder."""
    folder.mkdir(parents=True)
    copy_pipeline(folder)
    shutil.copytree(ROOT / "trm", folder / "trm", ignore=shutil.ignore_patterns("__pycache__"))
    if study:
        shutil.copy2(study, folder / "config")
    return folder


class PodStudy:
    """A study of the pipeline on the pod, on which faults are inflicted."""

    program = "-m trm train"

    def __init__(self, folder: Path, pod: EmulatedPod, study: Path | None, *words: str):
        self.folder, self.pod, self.words, self.calls = checkout(folder, study), pod, words, list[Call]()
        (self.folder / "profile").symlink_to("profiles/pod")
        self.environment = os.environ | pod.environment | {"TRM_BUCKET": f"gs://{pod.bucket.name}/{PREFIX}"}

    def start(self, **environment: str) -> Call:
        """Start a call of Snakemake."""
        config = ("--config", "study=config/rehearsal.yaml", f"pod_hosts={len(self.pod.groups[0])}")
        self.calls.append(Call(self, SNAKEMAKE, (*self.words, *config), environment))
        return self.calls[-1]

    def newest_checkpoint(self) -> int:
        """The newest step of the whole-slice run of which all parts are in the bucket, or 0."""
        shape = re.compile(WHOLE + r"/step-(?P<step>\d+)/part-\d+-of-(?P<parts>\d+)\.json$")
        names = [blob.name for blob in self.pod.bucket.list_blobs(prefix=f"{PREFIX}/results/checkpoints/")]
        found = Counter((int(m["step"]), int(m["parts"])) for name in names if (m := shape.search(name)))
        return max((step for (step, parts), count in found.items() if count == parts), default=0)

    def results(self, name: str) -> dict[str, str]:
        """Run -> its file of this name in the bucket."""
        blobs = self.pod.bucket.list_blobs(prefix=f"{PREFIX}/results/runs/")
        found = [blob for blob in blobs if re.search(f"/{name}$", blob.name)]
        return {blob.name.split("/")[-2]: blob.download_as_text() for blob in found}


def break_host(scene: Scene) -> None:
    """Kill what starts on the first host, except a job for a whole slice of several, until it is set aside."""
    while scene.call.process.poll() is None and not ASIDE.search(scene.output):
        alone = processes_with("TPURUN_SIZE=1")
        send(signal.SIGKILL, [pid for pid in scene.pod.hosts[0].processes("-m trm ") if pid in alone])
        time.sleep(0.5)


def aim(scene: Scene, step: int) -> int:
    """Wait until all ranks of the whole-slice run work and it has a checkpoint after `step`; the next fault hits one of
    them. Returns the checkpoint's step, or 0 if Snakemake ends before."""
    while scene.call.process.poll() is None:
        lines = [" ".join(host.processes(PodStudy.program).values()) for host in scene.pod.hosts]
        ranks = [rank for rank, line in enumerate(lines) if re.search(WHOLE, line)]
        newest = scene.study.newest_checkpoint()
        if newest > step and len(ranks) == len(scene.pod.groups[0]):
            scene.rank = ranks[-1]
            return newest
        time.sleep(0.5)
    return 0


def share_kernel(pod: EmulatedPod, folder: Path) -> None:
    """Compile the CPU kernel, which each host would do by itself, and let all hosts find it and what numba has compiled
    here; the rest of their caches stays their own."""
    place = folder / "cache" / "trm"
    place.mkdir(parents=True)
    with contextlib.suppress(BuildError):
        shutil.copy2(library(), place)
    numba = {"NUMBA_CACHE_DIR": str(FOLDER.parent)} if FOLDER else {}
    for host in pod.hosts:
        host.environment |= {
            "XDG_CACHE_HOME": str(place.parent),
            **numba,
            "TRM_CACHE": f"{host.home}/.cache/trm",
        }


def check(holds: object, sentence: str) -> None:
    """Print a statement that must hold."""
    print(f"{'ok  ' if holds else 'FAIL'}  {sentence}", flush=True)
    assert holds, sentence


def rehearse(
    folder: Path,
    accelerator: str = "v4-64",
    slices: int = 1,
    study: Path | None = None,
    faults: tuple[str, ...] = ("bad host", "preemption", "hang"),
) -> None:
    """Run the study on the emulated pod and locally, and compare; `study`: another rehearsal.yaml. Raises
    AssertionError."""
    shutil.rmtree(folder, ignore_errors=True)
    here = checkout(folder / "here", study)
    words = ("--profile", "profiles/local", "--until", "evaluate", "--config", "study=config/rehearsal.yaml")
    version, begin, struck = commit_in_words() or "0" * 40, time.monotonic(), 0
    with (
        (folder / "here.log").open("w") as log,
        start(sys.executable, "-m", "snakemake", *words, cwd=here, stdout=log) as local,
        EmulatedPod(folder / "pod", accelerator, slices=slices) as pod,
    ):
        share_kernel(pod, folder)
        count = len(pod.hosts)
        words = ("--tpu-accelerator-type", accelerator, "--tpu-slices", str(slices), "--jobs", str(count))
        words += ("--resources", f"tpu_hosts={count}", "--retries", "3")
        words += ("--set-resources", f"train:stall={STALL_MINUTES}")
        there = PodStudy(folder / "there", pod, study, *words)
        there.environment["TRM_COMMIT"] = version
        scene = Scene(there)
        try:
            if "bad host" in faults:
                threading.Thread(target=break_host, args=(scene,), daemon=True).start()
            for fault in (fault for fault in ("preemption", "hang") if fault in faults):
                struck = aim(scene, struck)
                check(struck and FAULTS[fault].inflict(scene) is not False, f"a {fault} after step {struck}")
            code = scene.call.process.wait()
        finally:
            scene.call.end()
            (folder / "there.log").write_text(scene.output)
        check(code == 0, f"the study runs on the pod ({time.monotonic() - begin:.0f} s)")
        check(local.wait() == 0, "the study runs locally")
        check_faults(scene, faults)
        compare(here, there, version)


def check_faults(scene: Scene, faults: tuple[str, ...]) -> None:
    """Check that each fault was told, and cost no more than it has to."""
    failed = re.findall(r"TPU job [^\n]*: (?:rank \d+ on )?(\w+)[^\n]* ended with exit code", scene.output)
    retries = scene.output.count("Trying to restart job")
    check({*failed} <= {"w0"} and retries <= len(failed), f"{retries} retries, all of jobs on w0")
    if "bad host" in faults:
        check(ASIDE.search(scene.output) and retries >= 2, "the bad host was set aside")
    else:
        check(not retries, "Snakemake used no retry")
    if "hang" in faults:
        said = f"it made no progress for {STALL_MINUTES} minute"
        check(said in scene.output, "the hang was noticed")
        logs = (scene.study.folder / ".snakemake/tpu/logs").glob("train-*/launch-*/rank*.log")
        shown = [path for path in logs if "most recent call first" in path.read_text(errors="replace")]
        check(len(shown) >= len(scene.pod.groups[0]), f"the logs show the stacks of {len(shown)} ranks")


def compare(here: Path, there: PodStudy, version: str) -> None:
    """Compare the results from the pod with those of the local run."""
    for name in ("results/plots/data_size.pdf", "results/plots/data_size.png", "results/report.html"):
        file = there.folder / name
        check(file.exists() and file.stat().st_size > 5000, f"{name} is on the local disk")
    trainings, histories, evaluations = map(
        there.results, ("training.json", "history.csv", r"evaluation-\w+\.json")
    )
    accuracies: dict[str, list[tuple[float, float]]] = {}
    for folder in sorted(path.parent for path in here.glob("results/runs/*/training.json")):
        run = folder.name
        check(run in trainings, f"{run} is in the bucket")
        training = json.loads(trainings[run])
        told = training["provenance"]
        names = (told["commit"], told["dirty"]) == (version.rstrip("+"), version.endswith("+"))
        check(names, f"{run} names the commit that made it ({version[:8]})")
        first = losses((folder / "history.csv").read_text()), losses(histories[run])
        worst = max(abs(a - b) for a, b in zip(*(of[:FIRST_STEPS] for of in first), strict=True))
        kind = f"{training['workers']} workers, {training['resumes']} resumes"
        check(worst < 1e-5, f"{run} ({kind}): losses of the first {FIRST_STEPS} steps agree to {worst:.1e}")
        if training["workers"] > 1:
            check(training["resumes"] >= 1, f"{run} resumed from a checkpoint after the preemption")
        (evaluation,) = folder.glob("evaluation-*.json")
        pair = accuracy(evaluation.read_text()), accuracy(evaluations[run])
        accuracies.setdefault(re.sub(r"-s\d+-[0-9a-f]{8}$", "", run), []).append(pair)
    check(len(accuracies) > 1, f"{len(accuracies)} points")
    for point, pairs in accuracies.items():
        mine, other = zip(*pairs, strict=True)
        gap = abs(fmean(mine) - fmean(other))
        said = f"{point}: accuracy {fmean(other):.3f} on the pod, {fmean(mine):.3f} locally"
        check(gap <= max(0.02, max(mine) - min(mine)), said)


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
    print(f"Rehearsing in {args.dir} (some minutes): follow here.log, then there/.snakemake/log")
    try:
        rehearse(args.dir, args.hosts, args.slices)
    except AssertionError as failure:
        print(f"{failure}: {args.dir}/there.log", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
