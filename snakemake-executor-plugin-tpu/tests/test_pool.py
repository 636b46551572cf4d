"""A pool of slices: where jobs go, also after a slice is lost."""

import asyncio
from types import SimpleNamespace

import pytest
from snakemake.cli import parse_args
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from snakemake_executor_plugin_tpu.__main__ import parse
from snakemake_executor_plugin_tpu.allocation import Allocator
from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.study import Study
from snakemake_executor_plugin_tpu.errors import PodError
from snakemake_executor_plugin_tpu.lifecycle import Pod
from snakemake_executor_plugin_tpu.pool import Member, Pool
from snakemake_executor_plugin_tpu.records import JobRecord
from snakemake_executor_plugin_tpu.settings import ExecutorSettings
from snakemake_executor_plugin_tpu.watch import Watch


class Manager:
    """A slice whose state the test sets."""

    def __init__(self, hosts: int, up: bool = True, error: str = ""):
        self.hosts, self.error, self.tasks = hosts, error, []
        self.go = asyncio.Event()
        self.current = self.pod() if up else None
        self.cloud = SimpleNamespace(describe=self.describe)

    def pod(self):
        return SimpleNamespace(found=lambda: self.tasks, silent=set())

    async def describe(self):
        return SimpleNamespace(is_ready=self.current is not None)

    async def ready(self):
        if self.error:
            raise PodError(self.error)
        if self.current is None:
            await self.go.wait()
            self.current = self.pod()
        return self.current

    def lose(self, pod, why):
        self.current = None


def pool_of(*managers: Manager) -> Pool:
    members = [
        Member(SimpleNamespace(name=f"s{number}"), manager, Allocator(manager.hosts), None)
        for number, manager in enumerate(managers)
    ]
    return Pool(members, lambda sentence: None)


def play(story):
    """Run a story and cancel the tasks that are left."""

    async def run():
        try:
            await asyncio.wait_for(story(), 20)
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(run())


@pytest.fixture
def place(tmp_path):
    """Return a function that places a job and returns the slice's name and hosts."""

    def place(pool: Pool, job: str, hosts: int = 1):
        async def placed():
            member = await pool.place(job, hosts, JobRecord(tmp_path / job))
            return member.name, member.allocator.held_by(job)

        return asyncio.ensure_future(placed())

    return place


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_whole_slice_jobs_are_not_starved(place):
    async def story():
        pool = pool_of(Manager(4))
        allocator = pool.members[0].allocator
        assert await place(pool, "a") == ("s0", [0])
        whole, small = place(pool, "whole", 4), place(pool, "b")
        await settle()
        assert not whole.done()
        assert not small.done()  # it came after the job for the whole slice
        allocator.release("a")
        assert await whole == ("s0", [0, 1, 2, 3])
        allocator.release("whole")
        assert await small == ("s0", [0])

    play(story)


def test_cancelled_and_found_jobs(place):
    async def story():
        pool = pool_of(Manager(2))
        pool.members[0].allocator.take("found", [1])
        assert await place(pool, "found") == ("s0", [1])
        waiting = place(pool, "whole", 2)
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await place(pool, "b") == ("s0", [0])
        assert pool.members[0].allocator.free == []

    play(story)


def test_a_waiting_job_that_is_found_running_gets_the_hosts_that_it_holds(place):
    """The pod was away while the job waited for it, in a state that is not known, say, and is the same as before."""

    async def story():
        pool = pool_of(Manager(4, up=False))
        member = pool.members[0]
        whole, small = place(pool, "whole", 4), place(pool, "small")
        await settle()
        member.allocator.take("whole", range(4))  # by the watch
        member.manager.go.set()
        assert await whole == ("s0", [0, 1, 2, 3])
        assert not small.done()
        member.allocator.release("whole")
        assert await small == ("s0", [0])

    play(story)


def test_only_as_many_slices_start_as_there_are_jobs_for(place):
    async def story():
        managers = [Manager(2, up=False) for _ in range(4)]
        pool = pool_of(*managers)
        jobs = [place(pool, f"j{number}") for number in range(3)]
        await settle()
        assert [member.starting is not None for member in pool.members] == [True, True, False, False]
        managers[1].go.set()  # the second is there first
        await settle()
        assert [job.done() for job in jobs] == [True, True, False]
        assert {(await job)[0] for job in jobs[:2]} == {"s1"}
        managers[0].go.set()
        assert (await jobs[2])[0] == "s0"

    play(story)


def test_an_unavailable_slice_is_left_out_until_none_is_left(place):
    async def story():
        first, second = Manager(1, up=False, error="in use by somebody"), Manager(1)
        pool = pool_of(first, second)
        assert (await place(pool, "a"))[0] == "s1"
        waiting = place(pool, "b")
        await settle()
        assert pool.members[0].error is not None
        pool.members[1].allocator.release("a")
        assert (await waiting)[0] == "s1"
        alone = pool_of(Manager(1, up=False, error="in use by somebody"))
        for job in "ab":  # each job is told
            with pytest.raises(PodError, match="in use by somebody"):
                await place(alone, job)

    play(story)


def test_lost_slice_gives_its_jobs_to_the_others(place):
    async def story():
        pool = pool_of(Manager(1), Manager(1))
        assert (await place(pool, "a"))[0] == "s0"
        pool.lost(pool.members[0], pool.members[0].manager.current, "preempted")
        pool.members[0].allocator.release("a")
        assert (await place(pool, "a"))[0] == "s1"
        assert pool.members[0].starting is not None

    play(story)


def test_job_goes_where_it_runs_or_may_still_run(place):
    async def story():
        pool = pool_of(Manager(1), Manager(1), Manager(1))
        pool.members[1].manager.tasks.append({"slot": "a"})
        assert (await place(pool, "a"))[0] == "s1"
        bound = asyncio.ensure_future(pool.place("b", 1, JobRecord(None, slice="s2", hosts=[0])))
        assert (await bound).name == "s2"
        pool.members[2].manager.current = None
        pool.members[2].error = PodError("its hosts are silent")
        with pytest.raises(PodError, match="its hosts are silent"):
            await pool.place("b", 1, JobRecord(None, slice="s2", hosts=[0]))

    play(story)


def test_a_host_that_answers_again_takes_no_other_host_away():
    """What the other hosts ran when they were looked at last may have ended: others have their hosts now."""

    def task(slot: str) -> dict:
        return {"slot": slot, "role": "main", "hosts": 1, "state": "running", "label": slot}

    async def status(timeout):
        return {"tasks": {"late.l1": task("late")}}

    async def story():
        allocator = Allocator(4)
        watch = Watch(SimpleNamespace(), allocator, {}, None, print)
        workers = [SimpleNamespace(host=f"w{rank}", status=status) for rank in range(4)]
        tasks = [{"early.l1": task("early")}, {}, {}, {}]
        pod = Pod(1, None, workers, "", status=[{"tasks": each} for each in tasks], silent={1, 2})
        await watch._on_up(pod)
        assert (allocator.held_by("early"), allocator.free) == ([0], [3])
        allocator.release("early")  # it has ended
        allocator.take("next", [0])
        workers[2].status = lambda timeout: asyncio.sleep(0, {"tasks": {}})
        await watch._readmit(pod)
        assert [allocator.held_by(job) for job in ("next", "late", "early")] == [[0], [1], []]
        assert allocator.free == [2, 3]

    play(story)


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


@pytest.mark.full
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_preempted_slice_of_a_pool_costs_one_job_its_launch(tmp_path):
    long = {"steps": 12, "options": "--hold 6"}
    profile = {"tpu-accelerator-type": "v4-8", "tpu-slices": 3, "resources": {"tpu_hosts": 3}}
    with EmulatedPod(tmp_path / "pod", "v4-8", slices=3) as pod:
        one = Study(tmp_path / "study", pod, {"a": long, "b": long, "c": long}, **profile)
        call = one.start()
        try:
            for job in "abc":
                call.wait_for(rf"job={job} 0\] step 6$")
            assert sorted(name.rpartition("/")[2] for name in pod.api.nodes) == ["pod-0", "pod-1", "pod-2"]
            code, output = one.command("status")
            assert code == 0
            assert [line.partition(":")[0] for line in output.splitlines() if "node READY" in line] == [
                "pod-0",
                "pod-1",
                "pod-2",
            ]
            pod.preempt(name="pod-1")
            call.wait_for("launching it again")
            for job in "abc":
                one.release(job)
            assert call.wait() == 0, call.output
        finally:
            one.end()
        launches = sorted(max(int(key.split("-")[0]) for key in one.launches(job)) for job in "abc")
        assert launches == [1, 1, 2]
        assert len(one.table) == 3
        assert pod.jobs() == {}
        code, output = one.command("down")
        assert code == 0, output
        assert pod.api.nodes == {} == pod.api.queued
