"""Jobs on the emulated pod without Snakemake: controllers, ends of launches, faults of the bucket and of slices."""

import asyncio
import json
import re
import signal
import subprocess
import threading

import pytest
from calls import Controller, eventually

from snakemake_executor_plugin_tpu import health, pool
from snakemake_executor_plugin_tpu import slice as slices
from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.hosts import send
from snakemake_executor_plugin_tpu.worker.bucket import sign

# Progress is reported once all four ranks are where they hang.
HANG = """python3 -c 'import os, pathlib, time
def inner():
    (pathlib.Path("{0}") / str(os.getpid())).touch()
    while len(os.listdir("{0}")) < 4: time.sleep(0.05)
    pathlib.Path(os.environ["TPU_PROGRESS_FILE"]).write_text("1")
    time.sleep(600)
inner()'"""


def objects(pod, call):
    """Return the names and contents of the pod's objects."""
    prefix = call.settings.bucket.removeprefix("emulated/")
    return {
        blob.name: blob.download_as_bytes() for blob in pod.client().list_blobs("emulated", prefix=prefix)
    }


async def test_jobs_of_one_and_of_all_hosts_end_with_their_codes_and_logs(call, tmp_path):
    async with call() as controller:
        packed = [controller.run(f"job{number}", f"echo line {number}; exit {number}") for number in range(4)]
        ends = await asyncio.gather(*packed)
        assert [outcome.ok for outcome in ends] == [True, False, False, False]
        assert "ended with exit code 3 (exited). Its last lines:\n        line 3" in ends[3].message
        assert "[job2 0] line 2" in controller.lines
        ranks = "echo $RANK of $WORLD_SIZE $MARK in ${PWD##*/}; test $RANK != 2"
        outcome = await controller.run(
            "whole", f"export MARK=set; mkdir x; cd x; tpurun bash -c '{ranks}'", hosts=4
        )
        assert "rank 2 on w2 ended with exit code 1 (exited)" in outcome.message
        assert {f"[whole {rank}] {rank} of 4 set in x" for rank in range(4)} <= set(controller.lines)
        twice = "tpurun true && tpurun bash -c 'echo again $RANK'"
        assert (await controller.run("twice", twice, hosts=4)).ok
        assert "[twice 3] again 3" in controller.lines
        assert (await controller.run("bar", "printf 'a\\rb\\033[31mc\\n'")).ok
        assert "[bar 0] bc" in controller.lines


async def test_a_startup_script_that_is_run_by_hand_starts_no_second_loop(small_call, empty_pod):
    host = empty_pod.hosts[0]
    async with small_call() as controller:
        await controller.run()
        script = [host.folder / "startup-script"]
        again = await asyncio.to_thread(
            subprocess.run, script, env=host.environment, capture_output=True, text=True, timeout=180
        )
        assert "has its loop already" in again.stdout
        assert len(host.loops()) == 1


async def test_another_region_of_the_bucket_is_said_with_its_price(call, empty_pod, monkeypatch):
    proxy = empty_pod.gcs.proxy
    monkeypatch.setattr(proxy, "roles", proxy.roles | {"roles/storage.legacyBucketReader"})
    async with call() as controller:
        assert (await controller.run()).ok
        said = "gs://emulated is in us-central1 and its hosts are in us-central2: .*1.92 USD a day if each"
        assert len(re.findall(said, controller.output)) == 1


async def test_a_second_controller_is_refused_and_a_replaced_one_starts_nothing(
    small_call, empty_pod, monkeypatch
):
    monkeypatch.setenv("SNAKEMAKE_TPU_TIMES", "silence=4 beat=0.5")
    async with small_call() as first:
        assert (await first.run("one")).ok
        second = first.again()
        async with second:
            assert "The pod is in use by the Snakemake of" in (await second.run("two")).message
        third = first.again()
        first.slices[0].control.times |= {"poll": 1e9, "beat": 1e9}  # it sleeps
        async with third:
            assert (await third.run("three")).ok
            outcome = await first.run("four")
            assert not outcome.ok
            assert re.search(
                "Another controller has taken the pod|in use by the Snakemake of", outcome.message
            )
            assert not any(
                "/jobs/four/" in name and name.endswith("start") for name in objects(empty_pod, first)
            )


@pytest.mark.full
async def test_a_hang_is_stopped_with_the_stacks_of_all_ranks(call, tmp_path):
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    async with call() as controller:
        work = f"test $TPU_LAUNCH = 2 || tpurun {HANG.format(ranks)}"
        outcome = await controller.run("job", work, hosts=4, stall=2.0)
        assert outcome.ok, outcome.message
        logs = sorted((tmp_path / "call" / "logs" / "job" / "launch-1").glob("*.log"))
        assert len(logs) == 4
        assert all("in inner" in path.read_text() for path in logs)
        assert "it made no progress for" in controller.output


@pytest.mark.full
async def test_an_outage_and_lost_answers_cost_no_launch(call, empty_pod):
    proxy = empty_pod.gcs.proxy
    async with call() as controller:
        await controller.run("first")
        running = [asyncio.ensure_future(controller.run(f"job{n}", f"sleep {n}")) for n in range(1, 4)]
        await asyncio.sleep(0.7)
        proxy.down = True
        await asyncio.sleep(5)
        proxy.down = False
        proxy.lossy = True
        more = [controller.run(f"lossy{n}", "echo hello") for n in range(3)]
        ends = await asyncio.gather(*running, *more)
        assert all(outcome.ok for outcome in ends), [outcome.message for outcome in ends]
        assert "launching it again" not in controller.output


async def test_no_object_holds_a_secret_and_nobody_without_the_key_gives_commands(call, empty_pod):
    async with call() as controller:
        secret = {"WANDB_API_KEY": "sesame-open-1234"}
        echo = "tpurun bash -c 'test ${#WANDB_API_KEY} = 16'"
        assert (await controller.run("job", echo, hosts=4, environment=secret)).ok
        found = objects(empty_pod, controller)
        assert len(found) > 20
        assert not any(b"sesame" in content for content in found.values())
        assert not any(
            b"sesame" in path.read_bytes() for host in empty_pod.hosts for path in host.home.rglob("*.json")
        )
        name = next(name for name in found if name.endswith("hosts/1/assignment"))
        document = json.loads(json.loads(found[name])["text"])
        document |= {"job": "evil", "launch": 1, "seq": document["seq"] + 1, "argv": ["touch", "/tmp/evil"]}
        forged = sign(b"another key", "hosts/1/assignment", document)
        empty_pod.client().bucket("emulated").blob(name).upload_from_string(forged)
        log = empty_pod.hosts[1].home / ".snakemake-tpu" / "host.log"
        await eventually(lambda: "w1: Forged" in controller.output)  # by its heartbeat
        assert "Forged" in log.read_text()
        assert not any("evil" in name for name in objects(empty_pod, controller))


@pytest.mark.full
async def test_a_new_version_of_the_loop_reaches_the_hosts_of_a_living_pod(small_call, monkeypatch):
    async with small_call() as first:
        assert (await first.run("one")).ok
    code = slices.host_code()
    monkeypatch.setattr(slices, "host_code", lambda: code + bytes(1))  # gzip ignores what follows
    async with first.again() as second:
        assert (await second.run("two")).ok
        control = second.slices[0].control
        assert {beat["code"] for beat in control.beats.values()} == {control.setup["code"]}


@pytest.mark.full
async def test_a_failed_environment_ends_the_first_call_with_its_last_lines(small_call, empty_pod, tmp_path):
    lock = tmp_path / "lock"
    lock.write_text("no-such-package==1.0\n")
    async with small_call(requirements=str(lock)) as controller:
        outcome = await controller.run("job")
        assert "The jobs' environment cannot be made on the hosts of pod" in outcome.message
        assert "uv could not be installed" in outcome.message
    assert empty_pod.api.created_nodes == 1  # a wrong lock file is no reason for another pod


@pytest.mark.full
async def test_trouble_of_a_slice_that_was_up_is_waited_for(small_call, empty_pod, tmp_path, monkeypatch):
    monkeypatch.setattr(slices, "PAUSES", (0.2, 1.0))
    started = tmp_path / "started"
    async with small_call() as controller:
        work = f"touch {started}; test $TPU_LAUNCH = 2 || sleep 600"
        running = asyncio.ensure_future(controller.run("job", work))
        await eventually(started.exists)
        empty_pod.api.fail(2, "PERMISSION_DENIED", "for a moment", "CreateQueuedResource")
        empty_pod.preempt()
        outcome = await running
        assert outcome.ok, (outcome.message, controller.output)
        assert not empty_pod.api.planned()
        assert controller.output.count("Jobs wait; next try in") == 2, controller.output
        assert controller.output.count("launching it again") == 1, controller.output


@pytest.mark.full
async def test_the_other_hosts_of_a_slice_that_ends_get_no_job(call, empty_pod, tmp_path):
    """One host tells of its shutdown, the others go without a word and look alive; the API tells of it later."""
    started = tmp_path / "started"
    async with call() as controller:
        running = asyncio.ensure_future(
            controller.run("job", f"test -e {started} || (touch {started}; sleep 600)")
        )
        await eventually(started.exists)
        first, *others = empty_pod.hosts
        for host in others:
            host.kill()
        await asyncio.to_thread(first.shut_down, 3)
        empty_pod.api.preempt()
        outcome = await running
        assert outcome.ok, (outcome.message, controller.output)
        assert controller.output.count("launching it again") == 1, controller.output


def notice(pod):
    pod.preempt(notice=5.0)


def kill_runner(pod):
    send(signal.SIGKILL, pod.hosts[2].processes("worker.runner"))


@pytest.mark.full
@pytest.mark.parametrize("fault", [notice, kill_runner])
async def test_a_host_that_loses_its_rank_costs_a_launch_only(call, empty_pod, tmp_path, fault):
    begun = tmp_path / "begun"
    ranks = f"touch {begun}-$RANK; test $TPU_LAUNCH = 2 || sleep 600"
    async with call() as controller:
        running = asyncio.ensure_future(controller.run("job", f"tpurun bash -c '{ranks}'", hosts=4))
        await eventually(lambda: len([*tmp_path.glob("begun-*")]) == 4)
        await asyncio.to_thread(fault, empty_pod)
        outcome = await running
        assert outcome.ok, (outcome.message, controller.output)
        assert controller.output.count("launching it again") == 1, controller.output


@pytest.mark.full
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("goes_on", ["elsewhere", "on the slice that is made anew"])
async def test_a_preempted_slice_of_several_costs_its_own_job_a_launch(tmp_path, goes_on):
    go = tmp_path / "go"
    with EmulatedPod(tmp_path / "pod", "v4-8", slices=2) as pod:
        async with Controller(pod, tmp_path / "call", slices=2) as controller:
            work = f"echo begins; test $TPU_LAUNCH = 2 || while ! test -e {go}; do sleep 0.1; done"
            jobs = [asyncio.ensure_future(controller.run(f"job{n}", work)) for n in range(2)]
            await eventually(lambda: controller.output.count(" 0] begins") == 2)
            if goes_on == "elsewhere":
                pod.api.fail(1000, "UNAVAILABLE", "the API is away", method="CreateQueuedResource")
            pod.preempt(name="pod-1")
            await eventually(lambda: "launching it again" in controller.output)
            if goes_on != "elsewhere":  # the other job keeps its slice meanwhile
                await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            go.touch()
            ends = await asyncio.gather(*jobs)
            assert sum(outcome.ok for outcome in ends) == 2, controller.output
            assert controller.output.count("launching it again") == 1
            logs = (tmp_path / "call" / "logs").glob("job*/launch-*/rank0.log")
            assert controller.output.count(" 0] begins") == 3
            assert [path.read_text()[:7] for path in logs] == 3 * ["begins\n"]  # one of each launch


@pytest.mark.full
async def test_a_bad_host_is_set_aside_until_its_check_succeeds(call, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "CHECK_PAUSE", 0.2)
    bad = tmp_path / "bad"
    fails = f"case $HOME in */w1/*) test ! -e {bad};; esac"
    async with call(check_host=fails) as controller:
        await controller.run("first")
        await eventually(lambda: not controller.pool.health.unchecked)
        bad.touch()
        for number in range(2):
            await controller.all_free()
            await asyncio.gather(*(controller.run(f"job{number}-{n}", fails) for n in range(4)))
        assert "w1 of pod is set aside: 2 jobs failed there" in controller.output
        bad.unlink()
        await eventually(lambda: "passed its check and serves again" in controller.output)


@pytest.mark.full
async def test_the_hosts_of_every_incarnation_are_checked_before_they_serve(call, empty_pod, tmp_path):
    log = tmp_path / "log"
    check = f"echo check >> {log}; case $HOME in */w1/*) false;; esac"
    async with call(check_host=check) as controller:
        for number in range(2):
            assert (await controller.run(f"whole{number}", f"tpurun bash -c 'echo job >> {log}'", hosts=4)).ok
            assert log.read_text().split() == ["check"] * 4 + ["job"] * 4
            log.unlink()
            assert [*controller.pool.health.aside] == [("pod", 1)]
            empty_pod.preempt()
        assert controller.output.count("w1 of pod is set aside: it is new, and its check failed") == 2


async def test_a_later_call_checks_the_hosts_that_nobody_has_checked(call, empty_pod, tmp_path):
    log = tmp_path / "log"
    async with call(check_host=f"echo ${{HOME%/home}} >> {log}") as first:
        assert (await first.run("one")).ok
        await eventually(lambda: not first.pool.health.unchecked and not first.pool.checks)
    assert len(log.read_text().split()) == 4
    (name,) = (name for name in objects(empty_pod, first) if name.endswith("hosts/2/checked"))
    empty_pod.bucket.blob(name).delete()
    async with first.again() as second:
        assert (await second.run("two", "tpurun true", hosts=4)).ok
    assert [line[-2:] for line in log.read_text().split()[4:]] == ["w2"]


@pytest.mark.full
async def test_a_straggler_is_said_and_leaves_its_host_at_a_checkpoint(call, monkeypatch):
    """Jobs report their step as the checkpoint that they would resume from; on w1 a step takes ten times longer."""
    work = (
        "case $HOME in */w1/*) pause=3;; *) pause=0.3;; esac; read step < ~/../../$TPU_JOB; "
        "for step in $(seq ${step:-1} 12); do sleep $pause; echo $step > ~/../../$TPU_JOB; "
        "echo $step > $TPU_PROGRESS_FILE; done; echo ended on ${HOME%/home}"
    )
    monkeypatch.setenv("SNAKEMAKE_TPU_TIMES", "beat=0.3")
    async with call() as controller:
        await controller.run("first")
        jobs = [controller.run(f"job{n}", work, like="count 60") for n in range(4)]
        assert all(outcome.ok for outcome in await asyncio.gather(*jobs)), controller.output
        said = r"w1 of pod is set aside: job\d is \d+ times slower than [23] jobs like it on other hosts"
        assert len(re.findall(said, controller.output)) == 1
        assert controller.output.count("it has a new checkpoint and goes to another host; launching") == 1
        assert not re.search(r"ended on \S*w1$", controller.output, re.MULTILINE)


@pytest.mark.full
async def test_an_outage_on_the_side_of_the_controller_is_no_fault_of_a_job(call, empty_pod, monkeypatch):
    """Hosts reach the bucket meanwhile."""
    monkeypatch.setenv("SNAKEMAKE_TPU_TIMES", "silence=3 beat=0.5")
    async with call() as controller:
        work = "sleep 2; echo line; test $TPU_LAUNCH = 1"
        jobs = [controller.run("whole", f"tpurun bash -c '{work}'", hosts=4), controller.run("next", work)]
        running = asyncio.gather(*jobs)
        await eventually(lambda: any(host.jobs() for host in empty_pod.hosts))
        controller.away, empty_pod.api.offline = True, True
        await asyncio.sleep(6)  # twice as long as a host may be silent
        controller.away, empty_pod.api.offline = False, False
        assert [outcome.message for outcome in await running] == ["", ""]
        assert {f"[whole {rank}] line" for rank in range(4)} < set(controller.lines)
        assert "launching it again" not in controller.output


@pytest.mark.full
@pytest.mark.parametrize(
    ("hangs", "said", "costs"),
    [
        (
            "api",
            "the request could not be withdrawn: Google has not deleted it within 0 s",
            "may still exist and cost money (Google did not answer within 0 s): ",
        ),
        (
            "bucket",
            "its lease could not be released and ends by itself",
            "(v4-32, READY) still exists and costs money",
        ),
    ],
    ids=["api", "bucket"],
)
async def test_the_end_of_a_call_is_bounded_and_says_what_may_cost(
    call, empty_pod, monkeypatch, hangs, said, costs
):
    monkeypatch.setattr(slices, "CLOSE_SECONDS", 0.5)
    api, go = empty_pod.api, threading.Event()
    try:
        async with call() as controller:
            api.full_zones |= {"us-central2-b"} if hangs == "api" else set()
            running = asyncio.ensure_future(controller.run("job", "sleep 600"))
            await eventually(lambda: api.queued if hangs == "api" else empty_pod.jobs())
            if hangs == "api":
                await eventually(lambda: "WAITING_FOR_RESOURCES" in controller.output)
                monkeypatch.setattr(api, "_admit", lambda *_: go.wait())
            else:
                controller.hang = go
            running.cancel()
            left = await asyncio.wait_for(controller.pool.close(), 10)
            controller.dead.set()
    finally:
        go.set()  # the threads that hang
    assert said in controller.output
    assert left.startswith(f"TPU pod pod {costs}")


@pytest.mark.full
@pytest.mark.parametrize("dead", [1, 4])
async def test_a_new_slice_is_made_anew_if_one_host_does_not_come_up_and_given_up_if_none_does(
    call, empty_pod, monkeypatch, dead
):
    with monkeypatch.context() as patch:
        patch.setattr(slices, "BOOT_SECONDS", 3.0)
        for host in empty_pod.hosts[:dead]:
            patch.setattr(host, "boot", lambda node: None)
        async with call() as controller:
            running = asyncio.ensure_future(controller.run("job", "tpurun true", hosts=4))
            await eventually(lambda: "did not come up, others did" in controller.output or running.done())
            patch.undo()
            outcome = await running
    if dead == 4:
        assert "w0, w1, w2, w3 of pod never wrote a heartbeat" in outcome.message
    assert (outcome.ok, empty_pod.api.created_nodes) == ((False, 1) if dead == 4 else (True, 2))


@pytest.mark.full
@pytest.mark.parametrize("trouble", ["rank", "aside"])
async def test_a_slice_with_a_bad_host_is_replaced_once_checkpoints_are_safe(
    call, empty_pod, monkeypatch, trouble
):
    async with call() as controller:
        assert (await controller.run("first")).ok
        [slice] = controller.slices
        node = slice.control.setup["node"]
        if trouble == "aside":
            counts = "while sleep 0.3; do echo $((step += 1)) > $TPU_PROGRESS_FILE; done"
            long = asyncio.ensure_future(controller.run("long", f"test $TPU_LAUNCH = 2 || {counts}"))
            await eventually(lambda: any(host.jobs() for host in empty_pod.hosts))
            monkeypatch.setattr(health, "LONG_SECONDS", 0.0)
            controller.pool.health.set_aside(("pod", 2), "two jobs failed there")
        for job in ("one", "two") if trouble == "rank" else ():
            outcome = await controller.run(job, "tpurun bash -c 'test $RANK != 2'", hosts=4)
            assert "rank 2 on w2" in outcome.message
        assert (await controller.run("last", "tpurun true", hosts=4)).ok
        assert slice.control.setup["node"] != node
        if trouble == "aside":
            assert (await long).ok
            assert "long: it has a new checkpoint and goes to another host" in controller.output
        assert "the slice is deleted and made anew" in controller.output
