"""A loop or a controller that dies before or after any of its writes: each job ends well, no launch runs twice."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

BOOTS = ThreadPoolExecutor(1)  # a host ends with the thread that has booted it
MOMENTS = ("before", "after")
ONE_HOST = [*itertools.product(MOMENTS, ("start", "log-0/000001", "verdict", "beat", "done"))]
RANK_0 = [*itertools.product(MOMENTS, ("start", "runs/1", "log-0/000001", "stop", "verdict"))]
OTHERS = [*itertools.product(MOMENTS, ("runs/1/start-2", "log-2/000001", "runs/1/exit-2"))]
WRITES = ("controller", "assignment", "record", "sources", "collected")
CORE = (("after", "record"), ("before", "collected"))
CALLS = [*itertools.product(MOMENTS, WRITES)]


def noting(file, then="sleep 0.5"):
    """Return a command that notes its launch in a file, so that none runs twice unnoticed."""
    return f"echo $TPU_LAUNCH >> {file}; echo hello; {then}"


def launches(file):
    return file.read_text().split()


class Killer:
    """Kills the loop of a host once, at one of its writes, or reboots the host."""

    def __init__(self, pod, points, reboots=()):
        """Take the points as {rank: (moment, end of the object's name)}."""
        self.pod, self.points, self.reboots, self.lock = pod, dict(points), reboots, threading.Lock()
        self.struck = {}

    def __call__(self, moment, name, host):
        with self.lock:
            rank, point = getattr(host, "rank", host), None
            if rank in self.points:
                when, what = self.points[rank]
                if what == "done":  # the heartbeat that follows the verdict
                    due = name.endswith("beat") and self.struck.get(rank, "").endswith("verdict")
                else:
                    due = name.endswith(what)
                self.struck[rank] = name if "/jobs/" in name else self.struck.get(rank, "")
                point = (moment, due) == (when, True) and self.points.pop(rank)
        if not point:
            return False
        host = self.pod.hosts[rank]
        if rank in self.reboots:
            host.kill()
            BOOTS.submit(host.boot).result()
        else:
            host.kill_loop()
        return True


async def test_loop_that_dies_at_any_write_runs_no_launch_twice(empty_pod, call, tmp_path):
    async with call() as controller:
        await controller.run("first")
        for points in _batches(ONE_HOST, 4):
            await controller.all_free()
            empty_pod.gcs.proxy.strike = killer = Killer(empty_pod, enumerate(points))
            jobs = [f"{moment}-{what.replace('/', '-')}" for moment, what in points]
            outcomes = await asyncio.gather(*(controller.run(job, noting(tmp_path / job)) for job in jobs))
            assert [outcome.message for outcome in outcomes] == [""] * len(jobs)
            for job in jobs:
                ran = launches(tmp_path / job)
                assert len(ran) == len(set(ran)) <= 2
            assert not killer.points


def _batches(items, size):
    return [items[first : first + size] for first in range(0, len(items), size)]


@pytest.mark.full
async def test_a_loop_that_dies_and_another_host_that_reboots_run_no_launch_twice(empty_pod, call, tmp_path):
    async with call() as controller:
        for number, points in enumerate(itertools.zip_longest(RANK_0, OTHERS)):
            planned = {rank: point for rank, point in zip((0, 2), points) if point}
            empty_pod.gcs.proxy.strike = killer = Killer(empty_pod, planned, reboots={2})
            file = tmp_path / f"ran{number}"
            command = f"tpurun bash -c {noting(f'{file}-$RANK')!r}"
            outcome = await controller.run(f"job{number}", command, hosts=4)
            assert outcome.ok, (points, outcome.message, controller.output)
            assert not killer.points
            for other in range(4):
                ran = launches(file.with_name(f"{file.name}-{other}"))
                assert len(ran) == len(set(ran)), points


async def killed_at(controller, moment, what):
    """Start a job and kill the call at this write; return once it is dead."""
    seen = []

    def strike(when, name):
        kind = next((write for write in WRITES if write in name), "")
        if when == moment and kind:
            seen.append(kind)
        if what == "collected":
            return when == moment and seen[-2:].count("record") == 1 and seen.count("record") == 2
        return when == moment and kind == what and (what != "assignment" or "record" in seen)

    controller.strike = strike
    running = asyncio.ensure_future(controller.run("job", controller.command))
    await controller.dead.wait()
    running.cancel()
    for slice in controller.slices:
        if slice.task:
            slice.task.cancel()
    await asyncio.gather(running, *(s.task for s in controller.slices if s.task), return_exceptions=True)


@pytest.mark.parametrize(
    ("moment", "what"),
    [pytest.param(*point, marks=[pytest.mark.full] * (point not in CORE)) for point in CALLS],
)
async def test_call_that_dies_at_any_write_is_continued_by_the_next(
    small_call, tmp_path, monkeypatch, moment, what
):
    monkeypatch.setenv("SNAKEMAKE_TPU_TIMES", "silence=1 beat=0.3")
    first = small_call()
    first.command = noting(tmp_path / "ran")
    async with first:
        await killed_at(first, moment, what)
        async with first.again() as second:
            outcome = await second.run("job", first.command)
            assert outcome.ok, outcome.message
    ran = launches(tmp_path / "ran")
    assert len(ran) == len(set(ran))
    assert len(ran) == 1 or (moment, what) == ("after", "collected")
