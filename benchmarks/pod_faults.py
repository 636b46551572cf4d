"""Faults on the emulated pod while studies run on it: how long each costs, and that nothing is lost.

    python -m benchmarks.pod_faults                       100 faults on one slice of four hosts, as root
    python -m benchmarks.pod_faults --faults 8 --seed 2   a short one
    python -m benchmarks.pod_faults --slices 4            a pool of four slices of one host

Jobs of a generic workflow count steps and checkpoint them into the emulated bucket. Meanwhile hosts reboot, slices
are preempted (with and without notice; the zone may have no capacity then, host keys may come late, states may take
their time), controllers are killed or hung up, a second one starts, somebody comes with a wrong key, connections
drop, cables are pulled, disks fill, the TPU API answers 429 and 503 and Cloud Storage 500 or 503.

A fault counts as recovered when every job that was running has a newer checkpoint, or its result. In the end every
study must have its table, no attempt of Snakemake may be used up, no job may have run twice at a time, no slice may
have been deleted that the API did not call lost, and no process may be left on the hosts.
"""

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.hosts import make_key
from snakemake_executor_plugin_tpu.emulator.pod import BUCKET, PROJECT
from snakemake_executor_plugin_tpu.emulator.study import Call, Study

KINDS = (
    "reboot host",
    "preempt",
    "preempt with notice",
    "preempt, no capacity",
    "preempt, late host keys",
    "preempt, slow states",
    "kill controller",
    "hang up controller",
    "second controller",
    "wrong key",
    "drop connections",
    "cut network",
    "cut all networks",
    "fill disk",
    "TPU API 503",
    "TPU API 429",
    "GCS 500/503",
)
# After these a job has to come back in another launch; the others it survives.
DEADLY = (*tuple(kind for kind in KINDS if kind.startswith(("preempt", "reboot"))), "fill disk")
LOCAL = ("reboot host", "fill disk", "cut network")
LIMIT_SECONDS = 180


class Campaign:
    """Does faults to studies until there were enough of them."""

    def __init__(self, pod: EmulatedPod, folder: Path, seed: int, faults: int, steps: int):
        self.pod, self.folder, self.steps = pod, folder, steps
        self.random = random.Random(seed)
        kinds = [kind for kind in KINDS if not kind.startswith("cut") or pod.network.separate]
        if len(pod.groups) > 1:
            # Of a pool somebody else may well have the slices that are free.
            kinds = [kind for kind in kinds if kind not in ("second controller", "wrong key")]
        self.kinds = [kinds[number % len(kinds)] for number in range(faults)]
        self.random.shuffle(self.kinds)
        self.recoveries: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.studies = 0
        self.preempted = 0
        self.call: Call | None = None
        self.said: list[str] = []

    def run(self) -> None:
        """Run studies one after the other until all faults are done."""
        while self.kinds:
            self.studies += 1
            jobs = {
                f"j{number}": {"steps": self.steps, "seconds": 0.05, "options": "--verbose"}
                for number in range(4)
            }
            profile = {"retries": 1, "tpu-recovery": 60}
            if len(self.pod.groups) > 1:
                profile["tpu-pool"] = f"{self.pod.accelerator_type} x {len(self.pod.groups)}"
                profile["tpu-accelerator-type"] = self.pod.accelerator_type
            else:
                jobs["whole"] = {
                    "steps": self.steps // 2,
                    "seconds": 0.05,
                    "options": "--verbose",
                    "hosts": len(self.pod.hosts),
                }
            self.profile = profile
            study = Study(self.folder / f"study{self.studies}", self.pod, jobs, **profile)
            self.said = []
            self.call = study.start()
            while self.kinds and self._wait_for_jobs(study):
                self._fault(study)
            assert self.call.wait(600) == 0, self.call.said[-3000:]
            self._check(study)
            self.call.end()

    def _steps(self, study: Study) -> dict[str, tuple[int, int]]:
        """Return for each job that has begun its step and its launch; those of ended ones are beyond all others."""
        blobs = self.client.list_blobs(BUCKET, prefix=f"{study.prefix}/")
        names = {blob.name.removeprefix(f"{study.prefix}/"): blob for blob in blobs}
        steps = {}
        for job in study.jobs:
            step, owner = names.get(f"checkpoints/{job}/step"), names.get(f"checkpoints/{job}/owner")
            if f"counts/{job}.txt" in names:
                steps[job] = (sys.maxsize, sys.maxsize)
            elif step and owner:
                steps[job] = (int(step.download_as_bytes()), int(owner.download_as_bytes()))
        return steps

    @property
    def client(self):
        """Return a client that goes past the proxy: what it sees is no part of the campaign."""
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        if not hasattr(self, "_client"):
            self._client = storage.Client(
                project=PROJECT,
                credentials=AnonymousCredentials(),
                client_options={"api_endpoint": self.pod.gcs.backend_url},
            )
        return self._client

    def _wait_for_jobs(self, study: Study) -> bool:
        """Wait until a job is well under way; return False when there are none any more."""
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
        local = kind in LOCAL
        before = self._steps(study)
        hit = {
            job: before[job]
            for job, ranks in where.items()
            if job in before
            and (rank in ranks if local else ranks)
            and before[job][0] < study.jobs[job]["steps"] - 3
        }
        begin = time.monotonic()
        undo = self._strike(kind, study, rank)

        def recovered() -> bool:
            now = self._steps(study)
            return all(
                now[job][0] > step + 1
                and (kind not in DEADLY or len(self.pod.groups) > 1 or now[job][1] > launch)
                for job, (step, launch) in hit.items()
            )

        try:
            while not recovered():
                assert time.monotonic() - begin < LIMIT_SECONDS, f"{kind}: {self.call.said[-4000:]}"
                time.sleep(0.05)
        finally:
            undo()
        seconds = time.monotonic() - begin
        self.recoveries[kind].append(seconds)
        print(
            f"{len(self.kinds):3d} to go: {kind:20} {len(hit)} job(s) went on after {seconds:5.1f} s",
            flush=True,
        )

    def _strike(self, kind: str, study: Study, rank: int):
        """Do one fault, and return what undoes it."""
        pod = self.pod
        if kind == "reboot host":
            pod.kill_host(rank)
            time.sleep(self.random.uniform(0.5, 5))
            pod.restart_host(rank)
        elif kind.startswith("preempt"):
            return self._preempt(kind)
        elif kind.endswith(" controller") and kind != "second controller":
            self.call.signal(signal.SIGKILL if kind.startswith("kill") else signal.SIGHUP)
            self.call.wait()
            self.said.append(self.call.said)
            unlock = study.start("--unlock")
            assert unlock.wait() == 0, unlock.said
            self.call = study.start()
            self.call.wait_for("re-attaching|Nothing to be done|rule ")
        elif kind in ("second controller", "wrong key"):
            self._intrude(kind, study)
        elif kind == "drop connections":
            for host in pod.hosts:
                host.drop_connections()
        elif kind.startswith("cut"):
            cut = [rank] if kind == "cut network" else range(len(pod.hosts))
            for each in cut:
                pod.cut_network(each)
            time.sleep(self.random.uniform(1, 8))
            for each in cut:
                pod.mend_network(each)
        elif kind == "fill disk":
            host = pod.hosts[rank]
            old = ".snakemake-tpu/tasks/ended-long-ago"
            host.enter("mkdir", "-p", f"{host.home}/{old}")
            host.fill_disk(f"{old}/copy")
        elif kind == "TPU API 503":
            pod.api.fail(3)
            pod.hosts[rank].drop_connections()
        elif kind == "TPU API 429":
            pod.api.fail(3, "RESOURCE_EXHAUSTED", "Quota exceeded for requests per minute per user")
            pod.hosts[rank].drop_connections()
        elif kind == "GCS 500/503":
            pod.gcs.proxy.failures = 3
        return lambda: None

    def _preempt(self, kind: str):
        api = self.pod.api
        if kind.endswith("no capacity"):
            api.fail_requests(2)
        elif kind.endswith("late host keys"):
            api.key_seconds = 3.0
        elif kind.endswith("slow states"):
            api.seconds_per_state = 1.0
        name = ""
        if len(self.pod.groups) > 1:
            name = f"pod-{self.random.randrange(len(self.pod.groups))}"
        self.preempted += 1
        self.pod.preempt(1.0 if kind.endswith("notice") else 0.0, name)

        def undo() -> None:
            api.key_seconds, api.seconds_per_state = 0.0, 0.05

        return undo

    def _intrude(self, kind: str, study: Study) -> None:
        """Have somebody else use the same pod: they must be told, and nothing else may happen."""
        key = self.folder / "other-key"
        make_key(key)
        folder = self.folder / f"other{len(list(self.folder.glob('other*')))}"
        other = Study(folder, self.pod, {"x": {}}, **{**self.profile, "tpu-recovery": 2})
        call = other.start(**({"SNAKEMAKE_TPU_SSH_KEY": str(key)} if kind == "wrong key" else {}))
        code = call.wait()
        wanted = "The pod does not let" if kind == "wrong key" else "is in use by the Snakemake of"
        if code or kind == "wrong key" or any(step < sys.maxsize for step, _ in self._steps(study).values()):
            assert wanted in call.said, call.said  # unless the study has ended meanwhile
        other.end()

    def _check(self, study: Study) -> None:
        said = "".join([*self.said, self.call.said])
        before, restarted, _ = said.partition("Trying to restart job")
        assert not restarted, f"an attempt of Snakemake was used up: {before[-5000:]}"
        expected = {
            f"{job} counted to {given['steps']} with seed 7 on {given.get('hosts', 1)}"
            for job, given in study.jobs.items()
        }
        assert set(study.table) == expected, study.table
        duplicates = [
            blob.name
            for blob in self.client.list_blobs(BUCKET, prefix=study.prefix)
            if "/duplicates/" in blob.name
        ]
        assert not duplicates, duplicates
        created = self.pod.api.created_nodes
        assert created <= len(self.pod.groups) + self.preempted * len(self.pod.groups), (
            "a healthy slice was deleted"
        )
        assert not self.pod.jobs(), self.pod.jobs()
        launches = {job: study.launches(job) for job in study.jobs}
        for job, seen in launches.items():
            begins = [
                seen[f"{number}-0"]["from"]
                for number in sorted({int(key.split("-")[0]) for key in seen})
                if f"{number}-0" in seen
            ]
            assert begins == sorted(begins), f"{job} went back: {begins}"

    def report(self) -> None:
        """Print the table of recovery times."""
        print(f"\n{'fault':22} {'times':>5} {'median s':>9} {'worst s':>8}")
        for kind, seconds in self.recoveries.items():
            if seconds:
                print(f"{kind:22} {len(seconds):5d} {statistics.median(seconds):9.1f} {max(seconds):8.1f}")
        every = [second for seconds in self.recoveries.values() for second in seconds]
        print(f"{'all':22} {len(every):5d} {statistics.median(every):9.1f} {max(every):8.1f}")
        print(f"{self.studies} studies")


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slices", type=int, default=1, help="a pool of so many slices of one host")
    parser.add_argument("--steps", type=int, default=400, help="steps of 0.05 s that each job counts")
    args = parser.parse_args()
    if reason := why_not():
        print(f"The campaign cannot run: {reason}.", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory() as folder,
        EmulatedPod(
            Path(folder) / "pod",
            "v4-32" if args.slices == 1 else "v4-8",
            slices=args.slices,
            disk_mb=160,
        ) as pod,
    ):
        campaign = Campaign(pod, Path(folder), args.seed, args.faults, args.steps)
        try:
            campaign.run()
            print(
                "\nEvery study finished: no attempt used up, no job run twice at a time, no process left behind."
            )
        finally:
            if campaign.call is not None:
                campaign.call.end()
            campaign.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
