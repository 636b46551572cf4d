"""Seeded faults on an emulated pod while studies run on it: the time to recover, and that nothing is lost.

    python -m benchmarks.pod_faults                       100 faults on one slice of four hosts
    python -m benchmarks.pod_faults --faults 8 --seed 2   a short campaign
    python -m benchmarks.pod_faults --slices 4            a pool of four slices with one host each
    python -m benchmarks.pod_faults --kinds "reboot;slow uploads"

The jobs of a generic workflow count steps and checkpoint them into the emulated bucket while faults are inflicted on
hosts, controllers, API and bucket. What a single refusal of the API does is in the plugin's tests.

The pod has recovered from a fault when every job that was running has a newer checkpoint or its result, in another
launch if the fault ends launches. At the end every study must have its table, Snakemake must not have used up a retry,
no job may have run twice at the same time, no slice may have been deleted unless the API called it lost, and no process
may be left on the hosts.

The table says for each kind how often it was inflicted and how often it struck: a job was running where a host or slice
went, a planned error was given as an answer.
"""

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.hosts import Host, send

sys.path.insert(0, str(Path(__file__).parents[1] / "snakemake-executor-plugin-tpu" / "tests"))
from study import FINISHED, Call, Study, default_signals, until

__all__ = ["FAULTS", "campaign", "default_signals", "until"]
SILENCE = 10.0  # seconds: longer than hosts and controllers of an emulated pod count as fresh
STALL_MINUTES = 0.5  # longer than any other fault stops a job
PROGRAM = "scripts/count.py --"


class Scene:
    """A study under a call of Snakemake, and the host (by its number) that the next fault hits."""

    def __init__(self, study: Study, number: random.Random):
        self.study, self.random = study, number
        self.pod: EmulatedPod = study.pod
        self.call: Call = study.start()
        self.outputs: list[str] = []
        self.rank = self.preempted = 0

    @property
    def host(self) -> Host:
        return self.pod.hosts[self.rank]

    @property
    def output(self) -> str:
        """Return what all calls have said."""
        return "".join([*self.outputs, self.call.output])

    def pause(self, least: float, most: float) -> None:
        time.sleep(self.random.uniform(least, most))

    def again(self, number: int) -> None:
        """End the call by a signal, and call Snakemake again."""
        self.call.signal(number)
        self.call.wait()
        self.outputs.append(self.call.output)
        self.study.run("--unlock")
        self.call = self.study.start()

    def where(self) -> dict[str, list[int]]:
        """Return the numbers of the hosts on which each job runs."""
        lines = ["\n".join(host.processes(PROGRAM).values()) for host in self.pod.hosts]
        return {
            job: [rank for rank, found in enumerate(lines) if f"checkpoints/{job} " in found]
            for job in self.study.jobs
        }

    def preempt(self, notice: float = 0.0) -> None:
        """Preempt the slice of the host."""
        self.preempted += 1
        node = self.pod.booted.get(self.rank // len(self.pod.groups[0]))
        self.pod.preempt(notice, node.name.rpartition("/")[2] if node else "")


@dataclass(frozen=True)
class Fault:
    """What inflicts it (False: there was nothing to hit); whether jobs lose their launch; whom it reaches."""

    inflict: Callable[[Scene], Any]
    deadly: bool
    reach: str


FAULTS: dict[str, Fault] = {}


def fault(name: str, deadly: bool = False, reach: str = "pod") -> Callable[..., Any]:
    """Register a fault whose reach is one `host`, its `slice` or the `pod`."""

    def register(inflict: Callable[[Scene], Any]) -> Callable[[Scene], Any]:
        FAULTS[name] = Fault(inflict, deadly, reach)
        return inflict

    return register


# ---- hosts


@fault("reboot", deadly=True, reach="host")
def reboot(scene: Scene) -> None:
    scene.host.kill()
    scene.pause(0.2, 3)
    scene.host.boot()


@fault("killed loops")
def kill_loops(scene: Scene) -> bool:
    return min([host.kill_loop() for host in scene.pod.hosts])


@fault("killed runner", deadly=True, reach="host")
def kill_runner(scene: Scene) -> bool:
    """As the kernel does when memory is short: its processes have nobody to end them."""
    runners = scene.host.processes("worker.runner")
    send(signal.SIGKILL, [*runners, *scene.host.jobs()])
    return bool(runners)


@fault("frozen host", reach="host")
def freeze(scene: Scene) -> None:
    """Silent, but not for as long as its jobs may run: nothing is launched elsewhere."""
    scene.host.freeze()
    scene.pause(1, 1.5 * SILENCE)
    scene.host.release()


@fault("hang", deadly=True, reach="host")
def hang(scene: Scene) -> bool:
    stopped = scene.host.processes(PROGRAM)
    send(signal.SIGSTOP, stopped)
    return bool(stopped)


@fault("no token", reach="host")
def no_token(scene: Scene) -> None:
    """The metadata server gives no token for a while, and those that were given are not accepted any more."""
    google = scene.pod.google
    google.token_status = 503
    google.tokens.clear()
    scene.pause(2, 6)
    google.token_status = 200


@fault("full disk", deadly=True, reach="host")
def fill_disk(scene: Scene) -> None:
    scene.host.fill_disk(".snakemake-tpu/tasks/ended-long-ago/copy")


# ---- preemptions and the TPU API


@fault("preemption", deadly=True, reach="slice")
def preempt(scene: Scene) -> None:
    scene.preempt()


@fault("preemption with notice", deadly=True, reach="slice")
def preempt_with_notice(scene: Scene) -> None:
    scene.preempt(notice=3.0)


@fault("preemption during an upload", deadly=True, reach="slice")
def preempt_during_upload(scene: Scene) -> bool:
    proxy = scene.pod.gcs.proxy
    proxy.latency, before = 1.0, len(proxy.uploads)
    until(lambda: len(proxy.uploads) > before)
    scene.preempt()
    proxy.latency = 0.0
    return True


@fault("preemption, bucket away", deadly=True, reach="slice")
def preempt_without_bucket(scene: Scene) -> None:
    scene.pod.gcs.proxy.down = True
    scene.preempt()
    scene.pause(3, 1.5 * SILENCE)
    scene.pod.gcs.proxy.down = False


@fault("two preemptions", deadly=True, reach="slice")
def preempt_twice(scene: Scene) -> None:
    scene.preempt()
    until(lambda: scene.host.is_up)
    scene.pause(0, 3)
    scene.preempt()


@fault("TPU API away", reach="host")
def api_away(scene: Scene) -> None:
    """While it is asked about a host that is silent."""
    scene.pod.api.offline = True
    freeze(scene)
    scene.pod.api.offline = False


# ---- controllers


@fault("killed controller")
def kill_controller(scene: Scene) -> None:
    scene.again(signal.SIGKILL)


@fault("interrupted controller", deadly=True)
def interrupt(scene: Scene) -> None:
    scene.again(signal.SIGINT)


@fault("sleeping controller")
def sleep(scene: Scene) -> None:
    scene.call.signal(signal.SIGSTOP)
    scene.pause(2, 2 * SILENCE)
    scene.call.signal(signal.SIGCONT)


@fault("preemption, sleeping controller", deadly=True, reach="slice")
def preempt_asleep(scene: Scene) -> None:
    scene.call.signal(signal.SIGSTOP)
    scene.pause(1, SILENCE)
    scene.preempt()
    scene.call.signal(signal.SIGCONT)


# ---- the bucket


@fault("outage")
def outage(scene: Scene) -> None:
    scene.pod.gcs.proxy.outage(scene.random.uniform(1, 2 * SILENCE))


@fault("lost answers")
def lossy(scene: Scene) -> bool:
    """Every second upload succeeds and is answered 503."""
    proxy = scene.pod.gcs.proxy
    before, proxy.lossy = len(proxy.uploads), True
    scene.pause(3, 8)
    proxy.lossy = False
    return len(proxy.uploads) > before


@fault("429 for each name")
def limited(scene: Scene) -> bool:
    proxy = scene.pod.gcs.proxy
    proxy.limited, proxy.limit = 0, True
    scene.pause(3, 8)
    proxy.limit = False
    return proxy.limited > 0


@fault("slow uploads")
def slow_uploads(scene: Scene) -> bool:
    proxy = scene.pod.gcs.proxy
    before, proxy.latency = len(proxy.uploads), 2.0
    scene.pause(4, 8)
    proxy.latency = 0.0
    return len(proxy.uploads) > before


class Campaign:
    """Runs studies and inflicts faults on them until the planned faults are used up."""

    def __init__(self, pod: EmulatedPod, folder: Path, seed: int, planned: list[str], steps: int, limit: int):
        self.pod, self.folder, self.steps, self.limit = pod, folder, steps, limit
        self.random, self.planned = random.Random(seed), planned
        self.pool = len(pod.groups) > 1
        self.profile = {"retries": 3, "tpu-stall": STALL_MINUTES, "tpu-slices": len(pod.groups)}
        self.profile |= {"tpu-accelerator-type": pod.accelerator_type, "jobs": len(pod.hosts)}
        self.profile |= {"resources": {"tpu_hosts": len(pod.hosts)}}
        self.recoveries: dict[str, list[float]] = {kind: [] for kind in planned}
        self.struck: dict[str, int] = dict.fromkeys(planned, 0)
        self.studies = self.preempted = 0

    def run(self) -> None:
        """Run one study after another until all faults are done."""
        jobs = {f"j{number}": {"steps": self.steps, "seconds": 0.05} for number in range(4)}
        if not self.pool:
            jobs["whole"] = {"steps": self.steps // 2, "hosts": len(self.pod.hosts), "seconds": 0.05}
        while self.planned:
            self.studies += 1
            study = Study(self.folder / f"study{self.studies}", self.pod, jobs, **self.profile)
            scene = Scene(study, self.random)
            try:
                while self.planned and self._wait_for_jobs(scene):
                    self._fault(scene)
                assert scene.call.wait(600) == 0, scene.call.output[-3000:]
                self.preempted += scene.preempted
                self._check(scene)
            finally:
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
        alone = fault.reach == "host" or (fault.reach == "slice" and self.pool)
        reached = {scene.rank} if alone else set(range(len(self.pod.hosts)))
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
        self.pod.gcs.proxy.clear_faults()
        did = bool(hit) and struck is not False
        self.struck[kind] += did
        self.recoveries[kind].append(time.monotonic() - begin)
        resumed = f"{len(hit)} job(s) resumed after {self.recoveries[kind][-1]:5.1f} s"
        end = "" if did else ", did not strike"
        print(f"{len(self.planned):3d} to go: {kind:40} {resumed}{end}", flush=True)

    def _check(self, scene: Scene) -> None:
        study = scene.study
        assert "Trying to restart job" not in scene.output, f"a retry was used: {scene.output[-5000:]}"
        expected = {
            f"{job} counted to {options['steps']} with seed 7 on {options.get('hosts', 1)}"
            for job, options in study.jobs.items()
        }
        assert set(study.table) == expected, study.table
        assert not study.duplicates, study.duplicates
        most = len(self.pod.groups) * (1 + self.preempted)
        assert self.pod.api.created_nodes <= most, "a healthy slice was deleted"
        until(lambda: not self.pod.jobs())
        for job in study.jobs:
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
    possible = [kind for kind in FAULTS if disk_mb or kind != "full disk"]
    possible = [kind for kind in possible if not only or kind in only.split(";")]
    if not possible:
        raise SystemExit(f"{only}: the kinds are {', '.join(FAULTS)}")
    planned = [possible[number % len(possible)] for number in range(faults)]
    random.Random(seed).shuffle(planned)
    accelerator = "v4-32" if slices == 1 else "v4-8"
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
