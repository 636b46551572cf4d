"""A pool of slices: where jobs go, and which slices are started for them."""

import asyncio
from types import SimpleNamespace

import pytest
from snakemake.cli import parse_args
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from snakemake_executor_plugin_tpu.__main__ import parse
from snakemake_executor_plugin_tpu.cloud import PodState
from snakemake_executor_plugin_tpu.errors import PodError
from snakemake_executor_plugin_tpu.health import Health
from snakemake_executor_plugin_tpu.pool import Pool
from snakemake_executor_plugin_tpu.settings import ExecutorSettings
from snakemake_executor_plugin_tpu.slice import Slice


class FakeSlice(Slice):
    """A slice whose state the test sets."""

    why_retire, gone, trouble, starts = "", None, None, 0
    _deleted = is_starting = is_unclear = False

    def __init__(self, name: str, hosts: int, up: bool = True) -> None:
        self.name, self.hosts, self.holder, self.error, self.control = name, hosts, {}, None, None
        self.cloud = SimpleNamespace(describe=self.describe, poll_seconds=(0, 0))
        self.on_tick = lambda: None
        if up:
            self.come()

    async def describe(self):
        return PodState()

    def start(self):
        self.is_starting, self.error = True, None
        self.starts += 1

    def come(self, error: str = "") -> None:
        """End the start."""
        self.is_starting, self.error = False, PodError(error) if error else None
        if not error:
            self.control = SimpleNamespace(free=lambda: list(range(self.hosts)), beats={})
        self.on_tick()


class Playing(Pool):
    """A pool that lets what is due happen after each move of the test."""

    def __init__(self, *slices: FakeSlice) -> None:
        super().__init__(list(slices), lambda sentence: None, Health(lambda sentence: None))

    async def job(self, slot, hosts=1, check=None):
        """Return the future of a job's place."""
        request, settings = SimpleNamespace(hosts=hosts, place=check), SimpleNamespace(check_host="")
        run = SimpleNamespace(slot=slot, is_in=self.nowhere, request=request, settings=settings)
        place = asyncio.ensure_future(self.place(run))
        await self.settle()
        return place

    async def end(self, slot):
        self.release(SimpleNamespace(slot=slot))
        self.serve()
        await self.settle()

    async def nowhere(self, slice):
        return False

    async def settle(self):
        for _ in range(20):
            await asyncio.sleep(0)


async def test_whole_slice_jobs_are_not_starved():
    pool = Playing(FakeSlice("a", 4))
    first, whole, later = await pool.job("first"), await pool.job("whole", 4), await pool.job("later")
    assert first.done()
    assert not whole.done()
    assert not later.done()  # it would keep the whole-slice job waiting
    await pool.end("first")
    assert whole.result()[1] == [0, 1, 2, 3]
    await pool.end("whole")
    assert later.result()[1] == [0]


async def test_a_check_never_takes_the_chips_of_a_job():
    pool, host = Playing(FakeSlice("a", 2)), ("a", 1)
    pool.health.unchecked = {host}
    whole, check = await pool.job("whole", 2), await pool.job("check", check=host)
    assert (check.done(), whole.done()) == (True, False)  # jobs wait for the check of a new host
    pool.health.restore(host)
    await pool.end("check")
    assert whole.done()
    pool.health.set_aside(host, "")
    again, later = await pool.job("check", check=host), await pool.job("later", 2)
    assert not again.done()  # and other checks wait for jobs
    await pool.end("whole")
    assert (again.done(), later.done()) == (True, False)


async def test_no_job_starts_elsewhere_while_a_slice_cannot_be_looked_at():
    async def away():
        raise PodError("the API answers 403")

    unseen = FakeSlice("b", 1, up=False)
    unseen.cloud.describe = away
    said = "b: whether jobs of an earlier call run there is unknown.*answers 403"
    with pytest.raises(PodError, match=said):
        await (await Playing(FakeSlice("a", 1), unseen).job("job"))


async def test_only_as_many_slices_start_as_there_are_jobs_for():
    slices = [FakeSlice(name, 2, up=False) for name in "abc"]
    pool = Playing(*slices)
    jobs = [await pool.job(f"job{number}") for number in range(3)]
    assert [slice.starts for slice in slices] == [1, 1, 0]
    slices[0].come()
    await pool.settle()
    assert sum(job.done() for job in jobs) == 2
    slices[1].come()
    assert (await jobs[2])[0] is slices[1]


async def test_a_slice_that_is_being_deleted_gets_no_job():
    ending = FakeSlice("a", 1)
    ending._deleted = True
    assert not (await Playing(ending).job("job")).done()


async def test_a_failed_slice_is_left_out_until_none_is_left():
    slices = [FakeSlice(name, 1, up=False) for name in "ab"]
    pool = Playing(*slices)
    one, two = await pool.job("one"), await pool.job("two")
    slices[0].come("no quota")
    slices[1].come()
    assert (await one)[0] is slices[1]
    assert not two.done()
    slices[1].control, slices[1].error = None, PodError("gone")
    slices[1].on_tick()
    with pytest.raises(PodError, match="no quota"):
        await two
    three = await pool.job("three")  # the errors were told: try again
    slices[0].come()
    assert (await three)[0] is slices[0]


async def test_a_cancelled_job_gives_its_hosts_back():
    pool = Playing(FakeSlice("a", 2))
    await pool.job("one")
    await pool.job("two")
    (await pool.job("three", 2)).cancel()
    await pool.settle()
    await pool.end("one")
    assert (await pool.job("four")).result()[1] == [0]


def test_slices_of_a_profile(tmp_path):
    """As Snakemake and the commands for people read the profile."""
    (tmp_path / "config.yaml").write_text(
        "executor: tpu\ntpu-project: p\ntpu-zone: z\ntpu-name: pod\ntpu-accelerator-type: v4-8\ntpu-slices: 2\n"
    )
    _, args = parse_args(["--profile", str(tmp_path), "a-target"])
    assert list(args.targets) == ["a-target"]
    read_by_snakemake = ExecutorPluginRegistry().get_plugin("tpu").get_settings(args)
    _, read_by_us = parse(["status", "--profile", str(tmp_path)])
    for settings in (read_by_snakemake, read_by_us):
        found = [(one.name, one.accelerator_type, one.slices) for one in settings.of_slices()]
        assert found == [("pod-0", "v4-8", 1), ("pod-1", "v4-8", 1)]
    assert [one.name for one in ExecutorSettings(name="pod").of_slices()] == ["pod"]
