"""Load on the controller: many short jobs on the emulated pod's eight hosts, and many objects in the bucket.

    python -m benchmarks.pod_load                     200 jobs, two at a time, as root
    python -m benchmarks.pod_load --jobs 40 --at-once 8

Measured: seconds from submission to the agent's start of the job, and from the job's end to its report to Snakemake
(the plugin's part of the overhead); wall time for each job; the controller's memory on the way; and how long
Snakemake's question takes which of 1,000 objects exist, at 50 ms for each answer of the bucket.
"""

import argparse
import asyncio
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.pod import BUCKET, PROJECT

SNAKEFILE = """
localrules: all
rule all:
    input: [storage.gcs(f"gs://{bucket}/load/{{n}}.txt") for n in range({jobs})]
rule short:
    output: storage.gcs("gs://{bucket}/load/{{n}}.txt")
    shell: "echo {{wildcards.n}} > {{output}}"
"""
PROFILE = {
    "executor": "tpu",
    "scheduler": "greedy",
    "shared-fs-usage": "none",
    "resources": {"tpu_hosts": 8},
    "default-resources": {"tpu_hosts": 1, "mem_mb": 1000, "disk_mb": 1000},
    "tpu-create": True,
    "tpu-stream": "none",
}


def memory_of(pid: int) -> float:
    """Return a process's resident memory in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def run_jobs(pod: EmulatedPod, folder: Path, jobs: int, at_once: int) -> None:
    """Run the workflow and print what it cost."""
    (folder / "profile").mkdir(parents=True)
    (folder / "profile" / "config.yaml").write_text(json.dumps({**PROFILE, "jobs": at_once}))
    (folder / "Snakefile").write_text(SNAKEFILE.format(bucket=BUCKET, jobs=jobs))
    environment = {**os.environ, **pod.environment, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    timings = folder / ".snakemake" / "tpu" / "jobs.csv"
    memory = []
    begin = time.monotonic()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--profile", "profile"],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )
    while process.poll() is None:
        done = len(timings.read_text().splitlines()) if timings.exists() else 0
        if done >= 20 * (len(memory) + 1):
            memory.append(memory_of(process.pid))
        time.sleep(0.2)
    seconds = time.monotonic() - begin
    assert process.returncode == 0, (folder / "log").read_text()[-3000:]
    rows = list(csv.DictReader(timings.read_text().splitlines()))
    starts = [float(row["started"]) - float(row["submitted"]) for row in rows]
    ends = [float(row["reported"]) - float(row["ended"]) for row in rows]
    runs = [float(row["ended"]) - float(row["started"]) for row in rows]
    print(
        f"{len(rows)} jobs, {at_once} at a time, in {seconds:.0f} s: {seconds / len(rows):.2f} s of wall time for each"
    )
    for name, values in (
        ("submitted to started", starts),
        ("started to ended", runs),
        ("ended to reported", ends),
    ):
        worst = statistics.quantiles(values, n=20)[-1]
        print(f"  {name:22} median {statistics.median(values):.2f} s, 95 % within {worst:.2f} s")
    print(f"  controller's memory, every 20 jobs: {', '.join(f'{size:.0f}' for size in memory)} MB")


def ask_for_objects(pod: EmulatedPod, folder: Path, count: int) -> None:
    """Print how long the question for many objects takes on a slow line."""
    os.environ.update(pod.environment)
    from snakemake.io import IOCache
    from snakemake_interface_common.logging import get_logger
    from snakemake_storage_plugin_gcs import StorageProviderSettings

    from snakemake_executor_plugin_tpu.storage import StorageProvider

    provider = StorageProvider(folder, get_logger(), settings=StorageProviderSettings(project=PROJECT))
    bucket = pod.bucket
    for number in range(0, count, 2):
        bucket.blob(f"objects/{number}").upload_from_string("x")
    cache = IOCache(20)
    items = [provider.object(f"gs://{BUCKET}/objects/{number}") for number in range(count)]
    pod.gcs.proxy.latency = 0.05
    begin = time.monotonic()

    async def look() -> None:
        for item in items:
            await item.inventory(cache)

    asyncio.run(look())
    seconds = time.monotonic() - begin
    found = sum(cache.exists_in_storage[item.cache_key()] for item in items)
    print(f"{count} objects, half of them there ({found} found), 50 ms an answer: {seconds:.2f} s")


def main() -> int:
    """Run both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--objects", type=int, default=1000)
    args = parser.parse_args()
    if reason := why_not():
        print(f"The load cannot be made: {reason}.", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory() as folder,
        EmulatedPod(Path(folder) / "pod", "v4-64") as pod,
    ):
        ask_for_objects(pod, Path(folder) / "objects", args.objects)
        pod.gcs.proxy.latency = 0.0
        run_jobs(pod, Path(folder) / "load", args.jobs, args.at_once)
    return 0


if __name__ == "__main__":
    sys.exit(main())
