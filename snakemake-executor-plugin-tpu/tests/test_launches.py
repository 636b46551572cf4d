"""No launch begins while an earlier one of its job may run, whatever API, bucket, hosts and calls do meanwhile."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from scene import KEY, TIMES, Scene, until

from snakemake_executor_plugin_tpu import pool, slice
from snakemake_executor_plugin_tpu.cloud import PodState
from snakemake_executor_plugin_tpu.control import Control, Taken
from snakemake_executor_plugin_tpu.errors import CloudError, PodError
from snakemake_executor_plugin_tpu.settings import ExecutorSettings
from snakemake_executor_plugin_tpu.slice import key_of
from snakemake_executor_plugin_tpu.worker import files, loop
from snakemake_executor_plugin_tpu.worker.bucket import seal, sign

UNCLEAR = ("UNKNOWN_99", "REPAIRING", "RESTARTING", "REIMAGING", "STOPPING", "DELETING")


@pytest.fixture
def scene(tmp_path, monkeypatch):
    scene = Scene(tmp_path, monkeypatch)
    yield scene
    for _, _, alive in scene.started:
        alive.close()


async def begun(scene, call, slot="job", **request):
    """Start a job; return its run and task once it is at work and its controller knows."""
    before = len(scene.started)
    run, task = call.run(slot, **request)
    await until(lambda: len(scene.started) > before and call.slice.control)
    return run, task


async def ended(scene, task, *hosts):
    """Let what runs (on these hosts) end well; return the outcome."""
    await until(lambda: [host.end() for host in hosts or scene.hosts] and task.done())
    return task.result()


async def asked(scene, name="pod", times=5):
    """Wait until the API has been asked so many times more."""
    before = scene.asked[name]
    await until(lambda: scene.asked[name] >= before + times)


@pytest.mark.parametrize(
    ("state", "gone"),
    [
        *(({"node": node}, False) for node in ("READY", *UNCLEAR)),
        *(({"node": node}, True) for node in ("PREEMPTED", "TERMINATED", "STOPPED", "ABSENT", "CREATING")),
        *(({"queued": queued}, True) for queued in ("SUSPENDED", "FAILED")),
        *(({"node": node, "incarnation": "n2"}, True) for node in ("READY", "CREATING", "UNKNOWN_99")),
    ],
)
async def test_only_what_proves_it_makes_a_slice_gone_and_only_ready_ones_get_jobs(scene, state, gone):
    scene.up()
    async with scene.playing(), scene.call() as call:
        call.slice.start()
        await until(lambda: call.slice.free())
        control = call.slice.control
        call.slice.task.cancel()
        call.slice._state = (
            1e18,
            PodState(**{"node": "READY", "queued": "ACTIVE", "incarnation": "n1", **state}),
        )
        assert bool(call.slice.gone) == gone
        call.slice.control = control
        assert bool(call.slice.free()) == (state == {"node": "READY"})


@pytest.mark.parametrize("state", UNCLEAR)
async def test_a_silent_host_in_an_unclear_state_keeps_its_launch(scene, state):
    host = scene.up()
    async with scene.playing(), scene.call() as call:
        _, task = await begun(scene, call)
        host.asleep, scene.storage.now = True, scene.storage.now + 100
        scene.say(node=state)
        await asked(scene)
        scene.say(node="READY")
        host.asleep = False
        assert (await ended(scene, task)).ok
        assert scene.launches == ["job.1 on pod.n1.0"]
        assert (await ended(scene, call.run("next")[1])).ok  # the API was asked again


async def test_what_fails_while_the_slice_is_not_ready_is_launched_again(scene):
    host = scene.up()
    async with scene.playing(), scene.call() as call:
        _, task = await begun(scene, call)
        scene.say(node="DELETING")
        host.end(1)
        await until(lambda: "launching it again" in call.output)
        scene.say(node="READY")
        assert (await ended(scene, task)).ok


@pytest.mark.parametrize("first", ["unclear", "refused"])
async def test_a_call_that_cannot_look_at_first_finds_what_runs(scene, first):
    scene.up()
    async with scene.playing():
        async with scene.call() as call:
            await begun(scene, call)
        state = scene.states["pod"]
        if first == "refused":
            scene.refusals.append(CloudError("403"))
        else:
            scene.states["pod"] = PodState("UNKNOWN_99", "ACTIVE")
        async with scene.call() as call:
            run, task = call.run()
            if first == "unclear":
                await asked(scene)
                scene.states["pod"] = state
            await until(lambda: "is found on w0" in call.output)
            assert await run.is_in(call.slice)  # also if the slice is lost before the job gets there
            assert (await ended(scene, task)).ok
    assert scene.launches == ["job.1 on pod.n1.0"]


async def test_a_refused_lease_costs_no_launch(scene):
    scene.up()
    async with scene.playing(), scene.call() as call:
        run, task = await begun(scene, call)
        before = call.slice.control
        scene.storage.strike = lambda name: name.endswith("/controller") and 403
        await until(lambda: "it is lost" in call.output)
        scene.storage.strike = lambda name: None
        await until(lambda: run.control is not before)
        assert (await ended(scene, task)).ok
    assert scene.launches == ["job.1 on pod.n1.0"]
    assert not scene.storage.names("/stop")


async def test_a_call_whose_pod_another_has_taken_ends_with_one_sentence_and_touches_nothing(scene):
    scene.up()
    async with scene.playing(), scene.call() as call:
        _, task = await begun(scene, call)
        times = call.slice.control.times
        times["beat"] = 1e9  # it sleeps
        other = Control(scene.bucket(), 1, call.slice.control.setup, {**TIMES, "silence": -1.0})
        await asyncio.to_thread(other.acquire)
        times["beat"] = 0.0
        await until(task.done)
        assert task.result().message.startswith("Another controller has taken the pod")
    assert not scene.storage.names("/stop", "/verdict")
    assert len(scene.hosts[0].running) == 1


@pytest.mark.parametrize("held", ["jobs/job/record", "hosts/0/assignment"])
@pytest.mark.parametrize("node", ["n1", "n2"])
async def test_a_launch_that_is_held_up_while_its_slice_is_lost_and_comes_again(scene, held, node):
    scene.up()
    go, seen = threading.Event(), []

    def hold(name):
        if name.endswith(held) and not seen:
            seen.append(name)
            go.wait(60)

    async with scene.playing(), scene.call() as call:
        assert (await ended(scene, (await begun(scene, call, "first"))[1])).ok
        before, scene.storage.strike = call.slice.control, hold
        _, task = call.run()
        await until(lambda: seen)
        if node == "n2":
            scene.hosts[0].asleep = True
            scene.up(node="n2")
            scene.storage.now += 100
            await until(lambda: "it is lost" in call.output)
            call.slice.start()  # as for a job that waits
        else:
            scene.storage.strike = lambda name: name.endswith("/controller") and 403
            await until(lambda: "it is lost" in call.output)
            scene.storage.strike = hold
        await until(lambda: call.slice.control not in (None, before))
        go.set()
        outcome = await ended(scene, task)
        assert (outcome.ok, outcome.message) == (True, "")
    number = 2 if node == "n2" else 1
    assert scene.launches[1:] == [f"job.{number} on pod.{node}.0"]


@pytest.mark.parametrize("same", [True, False])
def test_an_assignment_of_this_call_that_comes_between_is_no_other_controller(scene, same):
    setup = {"node": "n1"}
    before = Control(scene.bucket(), 1, setup, TIMES, "one")
    before.acquire()
    late = {"job": "job", "launch": 1}
    writes = []

    def strike(name):
        if name.endswith("assignment") and not writes:
            writes.append(name)
            before.assign(0, late)

    scene.storage.strike = strike
    again = Control(scene.bucket(), 1, setup, {**TIMES, "silence": -1.0}, "one" if same else "another")
    if not same:
        with pytest.raises(Taken):
            again.acquire()
        return
    again.acquire()
    assert again.is_assigned(0, "job", 1)


async def test_a_silent_host_has_the_grace_of_its_own_launch_after_its_fence(scene):
    host = scene.up()
    async with scene.playing():
        async with scene.call(grace=100) as call:
            await begun(scene, call)
        async with scene.call() as call:
            run, task = call.run()
            await until(lambda: "is found on w0" in call.output)
            host.asleep, scene.storage.now = True, scene.storage.now + 3600 + 60 + 100
            control = call.slice.control
            await until(lambda: control.beats[0]["age"] >= 3760)
            assert await run._why_lost(call.slice, control) is None
            assert run.record.hosts == [0]
            scene.storage.now += 1
            await until(lambda: "silent for longer than its job may run; launching" in call.output)
            task.cancel()


async def test_a_launch_never_begins_after_its_verdict(scene):
    host = scene.up()
    go, seen = threading.Event(), []

    def hold(name):
        if name.endswith("/start") and not seen:
            seen.append(name)
            go.wait(60)

    async with scene.call() as call:
        run, _ = call.run()
        await until(lambda: call.slice.holder or host.step())
        await until(lambda: call.slice.control.is_assigned(0, "job", 1))
        scene.storage.strike = hold
        step = asyncio.ensure_future(asyncio.to_thread(host.step))
        await until(lambda: seen)
        assert (await run._give_up(call.slice.control, "silent"))["why"] == "lost"
        go.set()
        await step
        assert scene.launches == []
        assert host.loop.done == ["job", 1]


async def left_on_one_of_two(scene):
    """Let a call end whose job goes on, on the first of two slices; then the second is up as well."""
    async with scene.call(slices=2) as call:
        await begun(scene, call)
    scene.up("pod-1")


@pytest.mark.parametrize("then", ["READY", "lost", "never", "refused"])
async def test_no_job_starts_elsewhere_while_one_slice_of_several_is_unclear(scene, monkeypatch, then):
    scene.states["pod-1"] = PodState()
    scene.up("pod-0")
    async with scene.playing():
        await left_on_one_of_two(scene)
        if then == "refused":
            scene.storage.strike = lambda name: "/pod-0/" in name and 403
        else:
            scene.say("pod-0", node="REPAIRING")
        if then == "never":
            monkeypatch.setattr(pool, "LOOK_SECONDS", -1.0)
        async with scene.call(slices=2) as call:
            _, task = call.run()
            if then in ("never", "refused"):
                await until(task.done)
                said = (
                    "pod-0: whether jobs of an earlier call run there is unknown, so none starts elsewhere: "
                )
                why = (
                    "node REPAIRING, queued resource ACTIVE for"
                    if then == "never"
                    else "gs://bucket answers 403"
                )
                assert task.result().message.startswith(said + why)
                return
            await until(lambda: call.slices[1].control)
            await asked(scene, "pod-0")
            assert "so none starts elsewhere before it is READY or gone; it is node REPAIRING" in call.output
            assert scene.launches == ["job.1 on pod-0.n1.0"]
            if then == "lost":
                scene.hosts[0].end()
                scene.hosts[0].asleep = True
                scene.states["pod-0"] = PodState()
            else:
                scene.say("pod-0", node="READY")
            assert (await ended(scene, task)).ok
    assert scene.launches[1:] == ([] if then == "READY" else ["job.1 on pod-1.n1.0"])
    assert not scene.beside


@pytest.mark.parametrize("then", ["READY", "lost", "never"])
async def test_no_job_starts_elsewhere_while_the_slice_of_its_launch_is_in_trouble(scene, monkeypatch, then):
    scene.states["pod-1"] = PodState()
    scene.up("pod-0")
    async with scene.playing():
        await left_on_one_of_two(scene)
        async with scene.call(slices=2) as call:
            assert (await ended(scene, call.run("other")[1], scene.hosts[1])).ok
            monkeypatch.setattr(slice, "TROUBLE_SECONDS", -1 if then == "never" else 3600)
            scene.storage.strike = lambda name: name.endswith("/controller") and "/pod-0/" in name and 403
            await until(lambda: not call.slice.control)
            _, task = call.run()
            if then == "never":
                await until(task.done)
                assert "gs://bucket answers 403" in task.result().message
                return
            await until(lambda: call.output.count("next try in") > 3)
            assert len(scene.launches) == 2
            if then == "lost":
                scene.hosts[0].end()
                scene.states["pod-0"] = PodState()
            else:
                scene.storage.strike = lambda name: None
            assert (await ended(scene, task)).ok
    assert len(scene.launches) == (2 if then == "READY" else 3)
    assert not scene.beside


def left_behind(scene, slot, hosts):
    """Write the record of a launch whose call died before it had assigned it."""
    name = f"jobs/{slot}/record"
    document = {"launch": 1, "state": "launched", "fingerprint": "same", "hosts": hosts}
    scene.bucket().put(name, sign(KEY, name, document))


async def test_a_launch_that_no_host_has_got_is_given_up_and_takes_no_host_of_another_job(scene):
    scene.up()
    left_behind(scene, "job", [0])
    async with scene.playing(), scene.call() as call:
        _, other = await begun(scene, call, "other")
        _, task = call.run()
        await until(lambda: "launch 1 of an earlier call never began" in call.output)
        assert (await ended(scene, other)).ok
        assert (await ended(scene, task)).ok
    assert scene.launches == ["other.1 on pod.n1.0", "job.2 on pod.n1.0"]


async def test_a_launch_that_only_its_first_host_has_got_is_ended_if_another_job_has_the_second(scene):
    scene.up(hosts=2)
    left_behind(scene, "job", [0, 1])
    async with scene.playing(), scene.call(accelerator_type="v4-16") as call:
        held = scene.hosts[0]
        held.asleep = True  # so that the other job gets the second host
        run, other = await begun(scene, call, "other")
        assert run.record.hosts == [1]
        await run._load(call.slice.control)
        job, _ = call.run("not-started", hosts=2)
        job.record.launch, job.record.hosts = 1, [0, 1]
        assignment = {**job._assignment(call.slice.control, ""), "job": "job"}
        await asyncio.to_thread(call.slice.control.assign, 0, assignment)
        call.tasks[-1].cancel()
        held.asleep = False
        await until(lambda: len(held.running) == 1)
        _, task = call.run("job", hosts=2)
        await until(lambda: "job: it was lost; launching it again" in call.output)
        assert (await ended(scene, other)).ok
        assert (await ended(scene, task)).ok
    assert not scene.beside


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only hosts, which run Linux, have /proc")
@pytest.mark.parametrize("bucket", ["answers", "is away"])
async def test_what_a_killed_runner_leaves_is_ended_before_the_verdict(scene, bucket):
    host = scene.up()
    async with scene.playing(), scene.call() as call:
        _, task = await begun(scene, call)
        host.asleep = True
        folder = host.running[0].folder
        marks = {"TPU_TASK_FOLDER": str(folder)}, {"TPU_TASK_FOLDER": f"{folder}0"}
        programs = [subprocess.Popen(["/bin/sleep", "600"], env=env) for env in marks]
        ours, of_another = programs
        alive = []
        try:
            scene.storage.strike = lambda name: name.endswith("/verdict") and alive.append(ours.poll())
            scene.started[0][2].close()  # its runner was killed
            if bucket == "is away":
                host.loop.bucket.transport = lambda *request: (503, {}, b"")
            host.step()
            assert ours.wait(60) == -9
            assert alive == ([-9] if bucket == "answers" else [])
            assert of_another.poll() is None
        finally:
            for program in programs:
                program.kill()
                program.wait()
        task.cancel()


@pytest.mark.parametrize("earlier", [None, "n1.0"])
def test_a_rank_that_an_earlier_boot_of_its_host_has_started_is_not_started_again(scene, earlier):
    host, sealed = scene.up(), seal(KEY, {})
    rank = {"job": "job", "launch": 1, "hosts": [0, 1, 2], "index": 2, "run": 1, "setup": {"name": ""}}
    host.loop.current = rank | sealed | {"sources": "", "python": "", "grace": 0, "lease": 0, "chunks": 0}
    of_run = "jobs/job/1/runs/1"
    scene.bucket().create(of_run, {"argv": ["true"], "address": "here", "port": 1, **sealed})
    if earlier:
        scene.bucket().create(f"{of_run}/start-2", {"incarnation": earlier})
    host.step()
    ended = scene.bucket().read(f"{of_run}/exit-2")
    assert (len(scene.started), ended and ended["why"]) == ((0, "restarted") if earlier else (1, None))


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="Linux only")
def test_the_kernel_takes_a_job_before_its_runner(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_HOST_ROOT", str(tmp_path))
    task = files.Task("hungry")
    (task.folder / "work").mkdir(parents=True)
    (task.folder / "fence").touch()
    (task.folder / "exit").write_bytes(bytes(files.EXIT_BYTES))
    argv = ["/bin/sh", "-c", "cat /proc/self/oom_score_adj"]
    files.write_json(task.folder / "spec", {"argv": argv, "directory": ".", "fence": 60})
    program = (
        "from snakemake_executor_plugin_tpu.worker import files, runner; "
        "runner.Runner(files.Task('hungry'), {}).run(); print(open('/proc/self/oom_score_adj').read())"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(task.tail(1)[0]) == 1000 > int(said.stdout)


async def test_a_job_that_prints_faster_than_its_log_is_sent_keeps_its_heartbeat(scene, monkeypatch):
    monkeypatch.setattr(loop, "CHUNK", 10)
    monkeypatch.setattr(loop, "CHUNKS", 2)
    host = scene.up()

    def sent():
        return sum(len(data) for name, (data, *_) in scene.storage.objects.items() if "/log-0/" in name)

    async with scene.playing(), scene.call() as call:
        await begun(scene, call)
        host.asleep = True
    ((task, *_),) = scene.started
    (task.folder / "log").write_bytes(bytes(range(100)))
    scene.storage.now += 1
    host.step()
    (beat,) = scene.storage.names("hosts/0/beat")
    assert (sent(), scene.storage.objects[beat][2]) == (20, scene.storage.now)
    host.end()
    host.step()
    assert (sent(), scene.storage.names("verdict")) == (40, [])
    for _ in range(4):
        host.step()
    assert sent() == 100
    assert scene.storage.names("verdict")


def test_a_slice_whose_jobs_are_in_another_bucket_is_no_free_one(scene):
    scene.up()
    for bucket in ("bucket", "gs://bucket/"):
        assert key_of(scene.states["pod"], ExecutorSettings(name="pod", bucket=bucket)) == KEY
    sentence = "has its jobs in gs://bucket, and this call names gs://other: use that bucket"
    with pytest.raises(PodError, match=sentence):
        key_of(scene.states["pod"], ExecutorSettings(name="pod", bucket="other"))
