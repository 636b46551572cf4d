"""Faults on the emulated pod while studies run on it: the time to recover from each, and that nothing is lost.

    python -m benchmarks.pod_faults                       100 faults on one slice of four hosts
    python -m benchmarks.pod_faults --faults 8 --seed 2   a short campaign
    python -m benchmarks.pod_faults --slices 4            a pool of four slices with one host each
    python -m benchmarks.pod_faults --kinds "reboot;slow uploads"

The jobs of a generic workflow count steps and checkpoint them into the emulated bucket while the faults in
benchmarks/faults.py are inflicted on hosts, controllers, API and bucket.

The pod has recovered from a fault when every job that was running has a newer checkpoint or its result, in another
launch if the fault ends launches. At the end every study must have its table, Snakemake must not have used up a retry
except for jobs that a bad host killed, no job may have run twice at the same time, no slice may have been deleted
unless the API called it lost, and no process may be left on the hosts.

The table says for each kind how often it was inflicted and how often it struck: a job was running where a host or slice
went, a planned error was given as an answer.
"""

import argparse
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults import FAULTS, FINISHED, Scene, Study, until
from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not

STALL_MINUTES = 0.5  # longer than any other fault stops a job
SAID = re.compile(r"Trying to restart job")
OF_ONE_SLICE = ("second controller",)  # others may use the free slices of a pool


def kinds(pool: bool, disks: bool, only: str = "") -> list[str]:
    """Return the kinds of faults that can be inflicted."""
    left_out = (*(OF_ONE_SLICE if pool else ()), *(() if disks else ("full disk",)))
    found = [kind for kind in FAULTS if kind not in left_out and (not only or kind in re.split(r"[;]", only))]
    if not found:
        raise SystemExit(f"{only}: the kinds are {', '.join(FAULTS)}")
    return found


class Campaign:
    """Runs studies and inflicts faults on them until the planned faults are used up."""

    def __init__(self, pod: EmulatedPod, folder: Path, seed: int, planned: list[str], steps: int, limit: int):
        self.pod, self.folder, self.steps, self.limit = pod, folder, steps, limit
        self.random, self.planned = random.Random(seed), planned
        self.pool = len(pod.groups) > 1
        self.profile = {
            "retries": 20,  # more than there may be bad hosts
            "tpu-stall": STALL_MINUTES,
            "tpu-accelerator-type": pod.accelerator_type,
        }
        self.profile |= {"resources": {"tpu_hosts": len(pod.hosts)}, "jobs": len(pod.hosts)}
        self.profile |= {"tpu-slices": len(pod.groups)} if self.pool else {}
        self.recoveries: dict[str, list[float]] = {kind: [] for kind in planned}
        self.struck: dict[str, int] = dict.fromkeys(planned, 0)
        self.studies = self.preempted = 0

    def run(self) -> None:
        """Run one study after another until all faults are done."""
        shared = {"seconds": 0.05}
        jobs = {f"j{number}": {"steps": self.steps, **shared} for number in range(4)}
        if not self.pool:
            jobs["whole"] = {"steps": self.steps // 2, "hosts": len(self.pod.hosts), **shared}
        while self.planned:
            self.studies += 1
            study = Study(self.folder / f"study{self.studies}", self.pod, jobs, **self.profile)
            scene = Scene(study, self.random)
            try:
                while self.planned and self._wait_for_jobs(scene):
                    self._fault(scene)
                assert scene.call.wait(600) == 0, scene.call.output[-3000:]
                self._check(scene)
            finally:
                self.preempted += scene.preempted
                study.end()

    def _wait_for_jobs(self, scene: Scene) -> bool:
        """Wait until a job is well under way; return False if there are none left."""
        while scene.call.process.poll() is None:
            before = scene.study.steps()
            scene.pause(0.3, 1.5)
            for job, (step, _) in scene.study.steps().items():
                if before.get(job, (0, 0))[0] < step < scene.study.jobs[job]["steps"] - 20:
                    return True
        return False

    def _fault(self, scene: Scene) -> None:
        kind = self.planned.pop()
        fault, study, where = FAULTS[kind], scene.study, scene.where()
        scene.rank = self.random.choice([rank for ranks in where.values() for rank in ranks] or [0])
        reached = {
            "host": {scene.rank},
            "slice": set(range(len(self.pod.hosts))) if not self.pool else {scene.rank},
            "pod": set(range(len(self.pod.hosts))),
        }[fault.reach]
        hit = {
            job: (step, launch)
            for job, (step, launch) in study.steps().items()
            if reached & set(where[job]) and step < study.jobs[job]["steps"] - 3
        }
        begin = time.monotonic()

        def recovered() -> bool:
            now = study.steps()
            return all(
                now[job][0] > step + 1 and (not fault.deadly or now[job][1] > launch)
                for job, (step, launch) in hit.items()
            )

        struck = fault.inflict(scene)
        deadline = time.monotonic() + self.limit
        while not recovered():
            goes_on = time.monotonic() < deadline and scene.call.process.poll() in (None, 0)
            assert goes_on, f"{kind}: {scene.call.output[-4000:]}"
            time.sleep(0.05)
        api, proxy = self.pod.api, self.pod.gcs.proxy
        asked = time.monotonic() + 10  # in which the planned errors may be asked for
        while (left := api.planned() + proxy.failures) and time.monotonic() < asked:
            time.sleep(0.05)
        api.clear_faults()
        proxy.clear_faults()
        did = bool(hit) and struck is not False and not left
        self.struck[kind] += did
        self.recoveries[kind].append(time.monotonic() - begin)
        resumed = f"{len(hit)} job(s) resumed after {self.recoveries[kind][-1]:5.1f} s"
        print(
            f"{len(self.planned):3d} to go: {kind:40} {resumed}{'' if did else ', did not strike'}",
            flush=True,
        )

    def _check(self, scene: Scene) -> None:
        study, retries = scene.study, len(SAID.findall(scene.output))
        assert retries <= scene.failures, f"Snakemake used up a retry: {scene.output[-5000:]}"
        expected = {
            f"{job} counted to {options['steps']} with seed 7 on {options.get('hosts', 1)}"
            for job, options in study.jobs.items()
        }
        assert set(study.table) == expected, study.table
        assert not study.duplicates, f"{study.duplicates}\n{scene.output}"
        most = len(self.pod.groups) * (1 + self.preempted + scene.preempted)
        assert self.pod.api.created_nodes <= most, "a healthy slice was deleted"
        until(lambda: not self.pod.jobs())
        for job in () if self.pool else study.jobs:  # the slices of a pool number their launches alike
            first = {int(k[:-2]): seen["from"] for k, seen in study.launches(job).items() if k.endswith("-0")}
            begins = [first[launch] for launch in sorted(first)]
            assert begins == sorted(begins), f"{job} went back: {begins}"
        assert study.steps() == dict.fromkeys(study.jobs, FINISHED)

    def report(self) -> None:
        """Print the table of recovery times."""
        print(f"\n{'fault':40} {'times':>5} {'struck':>6} {'median s':>9} {'worst s':>8}")
        every = [second for seconds in self.recoveries.values() for second in seconds]
        for kind, seconds in {**self.recoveries, "all": every}.items():
            if seconds:
                struck = self.struck.get(kind, sum(self.struck.values()))
                middle, worst = statistics.median(seconds), max(seconds)
                print(f"{kind:40} {len(seconds):5d} {struck:6d} {middle:9.1f} {worst:8.1f}")
        print(f"{self.studies} studies")


def campaign(
    folder: Path, faults: int, seed: int, slices: int = 1, only: str = "", **options: int
) -> Campaign:
    """Run a campaign to its end and return it; AssertionError if anything was lost."""
    disk_mb = None if why_not(disk=True) else 160
    accelerator = "v4-32" if slices == 1 else "v4-8"
    possible = kinds(slices > 1, bool(disk_mb), only)
    planned = [possible[number % len(possible)] for number in range(faults)]
    random.Random(seed).shuffle(planned)
    with EmulatedPod(folder / "pod", accelerator, slices=slices, disk_mb=disk_mb) as pod:
        one = Campaign(pod, folder, seed, planned, **{"steps": 400, "limit": 180, **options})
        try:
            one.run()
        finally:
            one.report()
    return one


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="only these kinds, separated by semicolons")
    parser.add_argument("--slices", type=int, default=1, help="a pool of this many slices with one host each")
    parser.add_argument("--steps", type=int, default=400, help="steps of 0.05 s that each job counts")
    parser.add_argument("--limit", type=int, default=180, help="seconds to recover; more beside other work")
    args = parser.parse_args()
    if reason := why_not():
        print(f"The campaign cannot run: {reason}.", file=sys.stderr)
        return 1
    options = {"steps": args.steps, "limit": args.limit}
    with tempfile.TemporaryDirectory() as folder:
        campaign(Path(folder), args.faults, args.seed, args.slices, args.kinds, **options)
    print("\nEvery study finished: no retry used up, no job run twice at a time, no process left.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
