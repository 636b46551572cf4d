"""A pool of slices: where jobs go, and which slices are started for them."""

import asyncio
from types import SimpleNamespace

import pytest
from snakemake.cli import parse_args
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from snakemake_executor_plugin_tpu.__main__ import parse
from snakemake_executor_plugin_tpu.errors import PodError
from snakemake_executor_plugin_tpu.health import Health
from snakemake_executor_plugin_tpu.pool import Pool
from snakemake_executor_plugin_tpu.settings import ExecutorSettings
from snakemake_executor_plugin_tpu.slice import Slice


class FakeSlice(Slice):
    """A slice whose state the test sets."""

    why_retire, gone, _deleted, is_starting, starts = "", None, False, False, 0

    def __init__(self, name: str, hosts: int, up: bool = True) -> None:
        self.name, self.hosts, self.holder, self.error, self.control = name, hosts, {}, None, None
        self.cloud = SimpleNamespace(describe=self.describe)
        self.on_tick = lambda: None
        if up:
            self.come()

    async def describe(self):
        return SimpleNamespace(is_ready=False)

    def start(self):
        self.is_starting, self.error = True, None
        self.starts += 1

    def come(self, error: str = "") -> None:
        """End the start."""
        self.is_starting, self.error = False, PodError(error) if error else None
        if not error:
            self.control = SimpleNamespace(free=lambda: list(range(self.hosts)), beats={})
        self.on_tick()


def playing(*slices):
    """Return a pool, a function that places jobs, and one that lets what is due happen."""
    pool = Pool(list(slices), lambda sentence: None, Health(lambda sentence: None))

    async def nowhere(slice):
        return False

    def place(slot, hosts=1, check=None):
        request, settings = SimpleNamespace(hosts=hosts, place=check), SimpleNamespace(check_host="")
        job = SimpleNamespace(slot=slot, is_in=nowhere, request=request, settings=settings)
        return asyncio.ensure_future(pool.place(job))

    async def settle():
        for _ in range(20):
            await asyncio.sleep(0)

    return pool, place, settle


async def test_whole_slice_jobs_are_not_starved():
    pool, place, settle = playing(FakeSlice("a", 4))
    first, whole, later = place("first"), place("whole", 4), place("later")
    await settle()
    assert first.done()
    assert not whole.done()
    assert not later.done()  # it would keep the whole-slice job waiting
    pool.release(SimpleNamespace(slot="first"))
    pool.serve()
    await settle()
    assert whole.result()[1] == [0, 1, 2, 3]
    pool.release(SimpleNamespace(slot="whole"))
    pool.serve()
    assert (await later)[1] == [0]


async def test_a_check_never_takes_the_chips_of_a_job():
    pool, place, settle = playing(FakeSlice("a", 2))

    async def release(slot):
        pool.release(SimpleNamespace(slot=slot))
        pool.serve()
        await settle()

    pool.health.unchecked = {("a", 1)}
    whole, check = place("whole", 2), place("check", check=("a", 1))
    await settle()
    assert (check.done(), whole.done()) == (True, False)  # jobs wait for the check of a new host
    pool.health.restore(("a", 1))
    await release("check")
    assert whole.done()
    pool.health.set_aside(("a", 1), "")
    again, later = place("check", check=("a", 1)), place("later", 2)
    await settle()
    assert not again.done()  # and other checks wait for jobs
    await release("whole")
    assert (again.done(), later.done()) == (True, False)


async def test_no_job_starts_elsewhere_while_a_slice_cannot_be_looked_at():
    async def away():
        raise PodError("the API answers 403")

    unseen = FakeSlice("b", 1, up=False)
    unseen.cloud.describe = away
    _, place, _ = playing(FakeSlice("a", 1), unseen)
    said = "b: whether jobs of an earlier call run there is unknown.*answers 403"
    with pytest.raises(PodError, match=said):
        await place("job")


async def test_only_as_many_slices_start_as_there_are_jobs_for():
    slices = [FakeSlice(name, 2, up=False) for name in "abc"]
    _, place, settle = playing(*slices)
    jobs = [place(f"job{number}") for number in range(3)]
    await settle()
    assert [slice.starts for slice in slices] == [1, 1, 0]
    slices[0].come()
    await settle()
    assert sum(job.done() for job in jobs) == 2
    slices[1].come()
    assert (await jobs[2])[0] is slices[1]


async def test_a_slice_that_is_being_deleted_gets_no_job():
    ending = FakeSlice("a", 1)
    ending._deleted = True
    _, place, settle = playing(ending)
    job = place("job")
    await settle()
    assert not job.done()


async def test_a_failed_slice_is_left_out_until_none_is_left():
    slices = [FakeSlice(name, 1, up=False) for name in "ab"]
    _, place, settle = playing(*slices)
    one, two = place("one"), place("two")
    await settle()
    slices[0].come("no quota")
    slices[1].come()
    assert (await one)[0] is slices[1]
    assert not two.done()
    slices[1].control, slices[1].error = None, PodError("gone")
    slices[1].on_tick()
    with pytest.raises(PodError, match="no quota"):
        await two
    three = place("three")  # the errors were told: try again
    await settle()
    slices[0].come()
    assert (await three)[0] is slices[0]


async def test_a_cancelled_job_gives_its_hosts_back():
    pool, place, settle = playing(FakeSlice("a", 2))
    one, two, three = place("one"), place("two"), place("three", 2)
    await asyncio.gather(one, two)
    three.cancel()
    await settle()
    pool.release(SimpleNamespace(slot="one"))
    assert (await place("four"))[1] == [0]


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
