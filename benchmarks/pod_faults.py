"""Fault campaign: real faults at random moments on the emulated pod, and how long it takes to recover from each.

    python -m benchmarks.pod_faults                       63 faults, about ten minutes on two cores, as root
    python -m benchmarks.pod_faults --faults 8 --seed 2   a short one

Jobs of a generic workflow count steps and checkpoint them into the emulated bucket. While they run: hosts are
killed, the pod is preempted (with and without notice), the controller is killed, ssh connections are dropped, a host's
cable is pulled for 1 to 8 seconds (part of its recovery time), disks are filled, the TPU API answers 503 and Cloud
Storage 500 or 503. A fault counts as recovered when every job that was running has a newer checkpoint, or its result.
In the end every study must have its table, no attempt of Snakemake may be used up, no job may have run twice at a time,
and no process may be left on the hosts.
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
from snakemake_executor_plugin_tpu.emulator.pod import BUCKET, PROJECT
from snakemake_executor_plugin_tpu.emulator.study import Call, Study

KINDS = ("kill host", "preempt", "preempt with notice", "kill controller", "drop connections")
KINDS += ("cut network", "fill disk", "TPU API 503", "GCS 500/503")
# After these a job has to come back in another launch; the others it survives.
DEADLY = ("kill host", "preempt", "preempt with notice", "fill disk")
LIMIT_SECONDS = 180


class Campaign:
    """Does faults to studies until there were enough of them."""

    def __init__(self, pod: EmulatedPod, folder: Path, seed: int, faults: int, steps: int):
        self.pod, self.folder, self.steps = pod, folder, steps
        self.random = random.Random(seed)
        kinds = [kind for kind in KINDS if kind != "cut network" or pod.network.separate]
        self.kinds = [kinds[number % len(kinds)] for number in range(faults)]
        self.random.shuffle(self.kinds)
        self.recoveries: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.studies = 0
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
            jobs["whole"] = {
                "steps": self.steps // 2,
                "seconds": 0.05,
                "options": "--verbose",
                "hosts": len(self.pod.hosts),
            }
            study = Study(self.folder / f"study{self.studies}", self.pod, jobs, retries=1)
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
        local = kind in ("kill host", "fill disk", "cut network")
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
                now[job][0] > step + 1 and (kind not in DEADLY or now[job][1] > launch)
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
        pod = self.pod
        undo = lambda: None  # noqa: E731
        if kind == "kill host":
            pod.kill_host(rank)
        elif kind == "preempt":
            pod.preempt()
        elif kind == "preempt with notice":
            pod.preempt(notice=1.0)
        elif kind == "kill controller":
            self.call.signal(signal.SIGKILL)
            self.call.wait()
            self.said.append(self.call.said)
            unlock = study.start("--unlock")
            assert unlock.wait() == 0, unlock.said
            self.call = study.start()
            self.call.wait_for("re-attaching|Nothing to be done|rule ")
        elif kind == "drop connections":
            for host in pod.hosts:
                host.drop_connections()
        elif kind == "cut network":
            pod.cut_network(rank)
            time.sleep(self.random.uniform(1, 8))
            pod.mend_network(rank)
        elif kind == "fill disk":
            host = pod.hosts[rank]
            host.fill_disk()
            undo = lambda: host.is_up and host.clear_disk()  # noqa: E731
        elif kind == "TPU API 503":
            pod.api.fail(3)
            pod.hosts[rank].drop_connections()
        elif kind == "GCS 500/503":
            pod.gcs.proxy.failures = 3
        return undo

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
    parser.add_argument("--faults", type=int, default=63)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400, help="steps of 0.05 s that each job counts")
    args = parser.parse_args()
    if reason := why_not():
        print(f"The campaign cannot run: {reason}.", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory() as folder,
        EmulatedPod(Path(folder) / "pod", "v4-32", disk_mb=160) as pod,
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
