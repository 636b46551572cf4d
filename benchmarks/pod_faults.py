"""Faults on the emulated pod while studies run on it: the time to recover from each, and that nothing is lost.

    python -m benchmarks.pod_faults                       100 faults on one slice of four hosts, as root
    python -m benchmarks.pod_faults --faults 8 --seed 2   a short campaign
    python -m benchmarks.pod_faults --slices 4            a pool of four slices with one host each
    python -m benchmarks.pod_faults --kinds offline,"slow uploads"

The jobs of a generic workflow count steps and checkpoint them into the emulated bucket while the faults in KINDS are
inflicted on hosts, controllers, network, API and bucket.

The pod has recovered from a fault when every job that was running has a newer checkpoint or its result. At the end
every study must have its table, Snakemake must not have used up a retry except for jobs that a bad host killed, no job
may have run twice at the same time, no slice may have been deleted unless the API called it lost, and no process may be
left on the hosts.

The table says for each kind how often it was inflicted and how often it really struck: a job was running where a host
or slice went, a connection or controller was there to lose, a planned error was given as an answer.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.hosts import Host, make_key
from snakemake_executor_plugin_tpu.emulator.pod import BUCKET
from snakemake_executor_plugin_tpu.emulator.study import Call, Study

PREEMPTIONS = tuple(
    "preempt" + how
    for how in (
        *("", " with notice", ", no capacity", ", late host keys", ", slow states", ", quota text"),
        *(", deletion refused", " during an upload"),
    )
)
QUOTA = "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 64 in region us-central2"
INTRUDERS = ("second controller", "wrong key")
CUTS = ("cut network", "cut all networks")
ASLEEP = ("controller asleep", "preempt while the controller sleeps")
ENDED = "ended while the controller sleeps"  # its jobs and then, by its own idle rule, the pod
BAD = "bad host"
REFUSED = "403 on checkpoint writes"
HALT = """stopping = False
if os.path.exists(os.path.expanduser("~/bad")):
    sys.exit("RuntimeError: TPU core halted")
"""
STALL_MINUTES = 0.5  # longer than any other fault stops a job
NEEDS_NETWORK = (*CUTS, "offline")
KINDS = (
    *("reboot host", *PREEMPTIONS, "kill controller", "hang up controller", *INTRUDERS, "drop connections"),
    *(
        *CUTS,
        "fill disk",
        "TPU API 503",
        "TPU API 429",
        "GCS 500/503",
        "offline",
        "host clock step",
        "slow uploads",
        "hang",
        "unknown state",
        *ASLEEP,
        ENDED,
        BAD,
        REFUSED,
    ),
)
DEADLY = ("reboot host", *PREEMPTIONS, "fill disk", "hang", BAD)  # jobs need another launch after these
LOCAL = (
    "reboot host",
    "fill disk",
    "cut network",
    "hang",
    BAD,
)  # these hit one host, preemptions one slice of a pool
FINISHED = (sys.maxsize, sys.maxsize)


class Campaign:
    """Runs studies and inflicts faults on them until the planned faults are used up."""

    def __init__(
        self, pod: EmulatedPod, folder: Path, seed: int, faults: int, steps: int, only: str, limit: int
    ):
        self.pod, self.folder, self.steps, self.limit = pod, folder, steps, limit
        self.client = pod.client()  # bypasses the proxy that injects faults
        self.random = random.Random(seed)
        self.pool = len(pod.groups) > 1
        self.profile = {"retries": 3, "tpu-recovery": 60, "tpu-stall": STALL_MINUTES}
        kinds = [kind for kind in KINDS if kind not in NEEDS_NETWORK or pod.network.separate]
        kinds = [kind for kind in kinds if not only or kind in only.split(",")]
        if self.pool:
            # Others may use the free slices of a pool.
            kinds = [kind for kind in kinds if kind not in INTRUDERS]
            self.profile["tpu-accelerator-type"] = pod.accelerator_type
            self.profile["tpu-slices"] = len(pod.groups)
        self.kinds = [kinds[number % len(kinds)] for number in range(faults)]
        self.random.shuffle(self.kinds)
        self.recoveries: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.struck: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.studies = self.preempted = 0
        self.call: Call | None = None
        self.output: list[str] = []
        self.failures = 0  # of jobs on bad hosts, which are retries

    def run(self) -> None:
        """Run one study after another until all faults are done."""
        shared = {"seconds": 0.05, "options": "--verbose"}
        jobs = {f"j{number}": {"steps": self.steps, **shared} for number in range(4)}
        if not self.pool:
            jobs["whole"] = {"steps": self.steps // 2, "hosts": len(self.pod.hosts), **shared}
        while self.kinds:
            self.studies += 1
            study = Study(self.folder / f"study{self.studies}", self.pod, jobs, **self.profile)
            self.output, self.failures = [], 0
            script = study.folder / "scripts" / "count.py"
            script.write_text(script.read_text().replace("stopping = False\n", HALT, 1))
            self.call = study.start()
            while self.kinds and self._wait_for_jobs(study):
                self._fault(study)
            assert self.call.wait(600) == 0, self.call.output[-3000:]
            self._check(study)
            self.call.end()

    def _steps(self, study: Study) -> dict[str, tuple[int, int]]:
        """Return the step and launch of each job that has started."""
        blobs = self.client.list_blobs(BUCKET, prefix=f"{study.prefix}/")
        names = {blob.name.removeprefix(f"{study.prefix}/"): blob for blob in blobs}
        steps = {}
        for job in study.jobs:
            step, owner = (names.get(f"checkpoints/{job}/{name}") for name in ("step", "owner"))
            if f"counts/{job}.txt" in names:
                steps[job] = FINISHED
            elif step and owner:
                steps[job] = (int(step.download_as_bytes()), int(owner.download_as_bytes()))
        return steps

    def _wait_for_jobs(self, study: Study) -> bool:
        """Wait until a job is well under way; return False if there are none left."""
        while self.call.process.poll() is None:
            before = self._steps(study)
            time.sleep(self.random.uniform(0.3, 1.5))
            for job, (step, _) in self._steps(study).items():
                if before.get(job, (0, 0))[0] < step < study.jobs[job]["steps"] - 20:
                    return True
        return False

    def _fault(self, study: Study) -> None:
        kind = self.kinds.pop()
        lines = {host.rank: list(host.jobs().values()) for host in self.pod.hosts}
        where = {
            job: [rank for rank in lines if any(f"checkpoints/{job} " in line for line in lines[rank])]
            for job in study.jobs
        }
        rank = self.random.choice([rank for ranks in where.values() for rank in ranks] or [0])
        local = kind in LOCAL or (self.pool and kind in PREEMPTIONS)
        hit = {
            job: (step, launch)
            for job, (step, launch) in self._steps(study).items()
            if (rank in where[job] if local else where[job]) and step < study.jobs[job]["steps"] - 3
        }
        begin = time.monotonic()

        def recovered() -> bool:
            now = self._steps(study)
            return all(
                now[job][0] > step + 1 and (kind not in DEADLY or now[job][1] > launch)
                for job, (step, launch) in hit.items()
            )

        try:
            struck = self._inflict(kind, study, rank)
            deadline = time.monotonic() + self.limit
            while not recovered():
                assert time.monotonic() < deadline, f"{kind}: {self.call.output[-4000:]}"
                time.sleep(0.05)
            while (
                self._planned() and time.monotonic() - begin < 20
            ):  # seconds in which the error may be asked for
                time.sleep(0.05)
        finally:
            self.pod.api.key_seconds, self.pod.api.seconds_per_state = 0.0, 0.05
            self.pod.gcs.proxy.latency, self.pod.gcs.proxy.refused = 0.0, ""
        did = bool(hit) and struck is not False and not self._planned()
        self.pod.api.clear_faults()
        self.pod.gcs.proxy.failures = 0
        self.struck[kind] += did
        self.recoveries[kind].append(time.monotonic() - begin)
        resumed = f"{len(hit)} job(s) resumed after {self.recoveries[kind][-1]:5.1f} s"
        resumed += "" if did else ", did not strike"
        print(f"{len(self.kinds):3d} to go: {kind:26} {resumed}", flush=True)

    def _planned(self) -> int:
        """Return how many planned errors nobody has been answered with yet."""
        api = self.pod.api
        return len(api.failures) + sum(map(len, api.refusals.values())) + self.pod.gcs.proxy.failures

    def _inflict(self, kind: str, study: Study, rank: int) -> bool | None:
        """Inflict a fault; False: there was nothing to hit."""
        pod = self.pod
        if kind == "reboot host":
            pod.hosts[rank].kill()
            time.sleep(self.random.uniform(0.5, 5))
            pod.hosts[rank].boot()
        elif kind in PREEMPTIONS:
            return self._preempt(kind, rank)
        elif kind in INTRUDERS:
            return self._intrude(kind, study)
        elif kind.endswith(" controller"):
            if self.call.process.poll() is not None:
                return False
            self.call.signal(signal.SIGKILL if kind.startswith("kill") else signal.SIGHUP)
            self.call.wait()
            self.output.append(self.call.output)
            study.run("--unlock")
            self.call = study.start()
            self.call.wait_for("re-attaching|Nothing to be done|rule ")
        elif kind == "drop connections":
            return sum(host.drop_connections() for host in pod.hosts) > 0
        elif kind == "offline":
            pod.connect(False)
            time.sleep(self.random.uniform(4, 12))  # longer than tpu-reconnect
            pod.connect(True)
        elif kind == "host clock step":
            # The clock goes forward by a day: whatever is there looks a day older.
            leases = list(pod.folder.glob("w*/home/.snakemake-tpu/tasks/*/lease")) if not pod.disk_mb else []
            for host in pod.hosts if pod.disk_mb else ():
                script = f"find {host.home}/.snakemake-tpu/tasks -name lease -exec touch -d '1 day ago' {{}} + -print"
                leases += host.enter("sh", "-c", script).stdout.split()
            return bool(leases)
        elif kind == "slow uploads":
            before = len(pod.gcs.proxy.uploads)
            pod.gcs.proxy.latency = 2.0  # forty times the interval of the checkpoints
            time.sleep(self.random.uniform(4, 8))
            pod.gcs.proxy.latency = 0.0
            return len(pod.gcs.proxy.uploads) > before
        elif kind in CUTS:
            cut = [rank] if kind == "cut network" else range(len(pod.hosts))
            for each in cut:
                pod.network.cable(each, False)
            time.sleep(self.random.uniform(1, 8))
            for each in cut:
                pod.network.cable(each, True)
        elif kind == "fill disk":
            host, old = pod.hosts[rank], ".snakemake-tpu/tasks/ended-long-ago"
            host.enter("mkdir", "-p", f"{host.home}/{old}")
            host.fill_disk(f"{old}/copy")
        elif kind == "hang":
            stopped = [pid for pid, line in pod.hosts[rank].jobs().items() if "scripts/count.py --" in line]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            return bool(stopped)
        elif kind == "unknown state":
            for node in pod.api.nodes.values():
                node._pb.state = 99
            pod.hosts[rank].drop_connections()
            time.sleep(self.random.uniform(1, 5))
            for node in pod.api.nodes.values():
                node._pb.state = 2  # READY
        elif kind in ASLEEP:
            self.call.signal(signal.SIGSTOP)
            for host in pod.hosts:
                host.drop_connections()
            time.sleep(self.random.uniform(2, 12))
            if kind.startswith("preempt"):
                self.preempted += 1
                pod.preempt()
            self.call.signal(signal.SIGCONT)
        elif kind == ENDED:
            return self._end_itself(study)
        elif kind == BAD:
            return self._break(pod.hosts[rank])
        elif kind == REFUSED:
            return self._refuse_checkpoints(study)
        elif kind == "GCS 500/503":
            pod.gcs.proxy.failures = 3
        else:
            quota = ("RESOURCE_EXHAUSTED", "Quota exceeded for requests per minute per user")
            pod.api.fail(3, *(quota if kind.endswith("429") else ()))
            pod.hosts[rank].drop_connections()
        return None

    def _end_itself(self, study: Study) -> bool:
        """Let a job end and then the pod delete itself, as its guard does, unseen by the controller."""
        api, ended = self.pod.api, list(self._steps(study).values()).count(FINISHED)
        self.call.signal(signal.SIGSTOP)
        for host in self.pod.hosts:
            host.drop_connections()
        deadline = time.monotonic() + 100
        while (
            now := list(self._steps(study).values()).count(FINISHED)
        ) == ended and time.monotonic() < deadline:
            time.sleep(0.2)
        for name, node in list(api.nodes.items()):
            word = f".snakemake-tpu/{name.rpartition('/')[2]}-{node.id}.json"
            self.client.bucket(BUCKET).blob(word).upload_from_string('{"why": "it has been idle for 1800 s"}')
            api.delete_by_rest(name.replace("/nodes/", "/queuedResources/"), True)
        self.preempted += 1
        self.call.signal(signal.SIGCONT)
        return now > ended

    def _break(self, host: Host) -> bool:
        """Let every job die early on a host for some seconds, beginning with the one that runs there."""
        host.enter("touch", f"{host.home}/bad")
        running = [pid for pid, line in host.jobs().items() if "scripts/count.py --" in line]
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        time.sleep(self.random.uniform(3, 8))
        host.enter("rm", "-f", f"{host.home}/bad")
        self.failures += bool(running)
        return bool(running)

    def _refuse_checkpoints(self, study: Study) -> bool:
        """Refuse checkpoints for some seconds, in which no job may call a step its progress that the bucket lacks."""
        proxy, before = self.pod.gcs.proxy, len(self.pod.gcs.proxy.uploads)
        proxy.refused = "checkpoints"
        time.sleep(self.random.uniform(4, 8))
        said = self._progress()
        published = self._steps(study)
        proxy.refused = ""
        for job, step in said.items():
            assert step <= published.get(job, (0, 0))[0], f"{job} says {step}, published is {published}"
        return bool(said) and any("checkpoints" in path for path in proxy.uploads[before:])

    def _progress(self) -> dict[str, int]:
        """Return what each running job has reported as its progress."""
        said = {}
        script = (
            "for f in .snakemake-tpu/tasks/*/progress; do cat $f; echo; cat ${f%/*}/spec.json; echo; done"
        )
        for host in self.pod.hosts:
            lines = host.enter("sh", "-c", f"cd {host.home} && {script}").stdout.splitlines()
            for step, spec in zip(lines[::2], lines[1::2], strict=True):
                if step.isdigit():  # not where there is no such file, nor while it is written
                    said[json.loads(spec)["about"]["label"].partition("job=")[2]] = int(step)
        return said

    def _preempt(self, kind: str, rank: int) -> bool | None:
        api, proxy = self.pod.api, self.pod.gcs.proxy
        if kind.endswith("no capacity"):
            api.fail_requests(2)
        elif kind.endswith("late host keys"):
            api.key_seconds = 3.0
        elif kind.endswith("slow states"):
            api.seconds_per_state = 1.0
        elif kind.endswith("quota text"):
            for _ in range(2):
                api.refuse(8, QUOTA)
        elif kind.endswith("deletion refused"):
            api.fail(2, "FAILED_PRECONDITION", "is in state SUSPENDING", method="DeleteQueuedResource")
        elif kind.endswith("upload"):
            proxy.latency, before = 1.0, len(proxy.uploads)
            deadline = time.monotonic() + 20
            while len(proxy.uploads) == before and time.monotonic() < deadline:
                time.sleep(0.01)
        self.preempted += 1
        node = self.pod.booted.get(rank) if self.pool else None
        name = node.name.rpartition("/")[2] if node else ""
        self.pod.preempt(1.0 if kind.endswith("notice") else 0.0, name)
        proxy.latency = 0.0
        return not kind.endswith("upload") or len(proxy.uploads) > before

    def _intrude(self, kind: str, study: Study) -> bool:
        """Start somebody else's Snakemake on the same pod: it must be refused, and nothing else may happen."""
        key = self.folder / "other-key"
        make_key(key)
        folder = self.folder / f"other{len(list(self.folder.glob('other*')))}"
        other = Study(folder, self.pod, {"x": {}}, **{**self.profile, "tpu-recovery": 2})
        call = other.start(**({"SNAKEMAKE_TPU_SSH_KEY": str(key)} if kind == "wrong key" else {}))
        code = call.wait()
        refusal = "The pod does not let" if kind == "wrong key" else "is in use by the Snakemake of"
        # A second controller may succeed if the study has ended meanwhile.
        if code or kind == "wrong key" or any(each != FINISHED for each in self._steps(study).values()):
            assert refusal in call.output, call.output
        other.end()
        return code != 0

    def _check(self, study: Study) -> None:
        output = "".join([*self.output, self.call.output])
        assert self.failures or "Trying to restart job" not in output, (
            f"Snakemake used up a retry: {output[-5000:]}"
        )
        expected = {
            f"{job} counted to {options['steps']} with seed 7 on {options.get('hosts', 1)}"
            for job, options in study.jobs.items()
        }
        assert set(study.table) == expected, study.table
        names = [blob.name for blob in self.client.list_blobs(BUCKET, prefix=study.prefix)]
        assert not any("/duplicates/" in name for name in names), names
        most = len(self.pod.groups) * (1 + self.preempted)
        assert self.pod.api.created_nodes <= most, "a healthy slice was deleted"
        assert not self.pod.jobs(), self.pod.jobs()
        for job in study.jobs:
            first = {int(k[:-2]): seen["from"] for k, seen in study.launches(job).items() if k.endswith("-0")}
            begins = [first[launch] for launch in sorted(first)]
            assert begins == sorted(begins), f"{job} went back: {begins}"

    def report(self) -> None:
        """Print the table of recovery times."""
        print(f"\n{'fault':26} {'times':>5} {'struck':>6} {'median s':>9} {'worst s':>8}")
        every = [second for seconds in self.recoveries.values() for second in seconds]
        for kind, seconds in {**self.recoveries, "all": every}.items():
            if seconds:
                struck = self.struck.get(kind, sum(self.struck.values()))
                middle, worst = statistics.median(seconds), max(seconds)
                print(f"{kind:26} {len(seconds):5d} {struck:6d} {middle:9.1f} {worst:8.1f}")
        print(f"{self.studies} studies")


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="only these kinds, separated by commas")
    parser.add_argument("--slices", type=int, default=1, help="a pool of this many slices with one host each")
    parser.add_argument("--steps", type=int, default=400, help="steps of 0.05 s that each job counts")
    parser.add_argument("--limit", type=int, default=180, help="seconds to recover; more beside other work")
    args = parser.parse_args()
    if reason := why_not():
        print(f"The campaign cannot run: {reason}.", file=sys.stderr)
        return 1
    kind = "v4-32" if args.slices == 1 else "v4-8"
    with (
        tempfile.TemporaryDirectory() as folder,
        EmulatedPod(Path(folder) / "pod", kind, slices=args.slices, disk_mb=160) as pod,
    ):
        campaign = Campaign(pod, Path(folder), args.seed, args.faults, args.steps, args.kinds, args.limit)
        try:
            campaign.run()
            print("\nEvery study finished: no retry used up, no job run twice at a time, no process left.")
        finally:
            if campaign.call is not None:
                campaign.call.end()
            campaign.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
