"""What a pod does without any controller: it ends unattended jobs, and deletes itself when it is idle or at its end."""

import asyncio
import re
import time
from types import SimpleNamespace

import pytest
from calls import Controller, eventually
from study import until

from snakemake_executor_plugin_tpu.__main__ import Cli
from snakemake_executor_plugin_tpu.google import storage_transport
from snakemake_executor_plugin_tpu.worker import idle
from snakemake_executor_plugin_tpu.worker.bucket import Bucket, Found, sign, verify
from snakemake_executor_plugin_tpu.worker.idle import Idle

KEY = bytes(32)
TIMES = {"look": 0.0, "silence": 60.0, "fence": 3600.0}
ORDERS = {"project": "p", "zone": "z", "name": "pod", "node": "n", "hosts": 2, "idle_seconds": 600, "end": 0}


class Objects(dict):
    """A bucket: documents by name with their ages; what is created is noted."""

    key = KEY

    def get(self, name):
        document, age = super().get(name, (None, 0.0))
        return document and Found(sign(KEY, name, document), 1, age)

    def put(self, name, data):
        self[name] = (verify(KEY, name, data), 0.0)


@pytest.fixture
def host(monkeypatch):
    """Return a function that makes the rules of a host over objects, with a list of what it deletes."""
    monkeypatch.setattr(idle.Idle, "_check", lambda self: None)

    def make(objects, rank=0, **orders):
        one = Idle({**ORDERS, "rank": rank, "times": TIMES, **orders}, Objects(objects))
        one.deleted = []
        one._call = lambda what: one.deleted.append(what) or 200
        return one

    return make


def beat(job=None, idle=1000.0, age=1.0):
    return {"hosts/1/beat": ({"job": job, "idle": idle}, age)}


@pytest.mark.parametrize(
    ("seconds", "rank", "objects", "deletes"),
    [
        (601.0, 0, beat(), True),
        (599.0, 0, beat(), False),  # not yet
        (None, 0, beat(), False),  # a job runs here
        (601.0, 0, beat(job=["j", 1]), False),  # or there
        (601.0, 0, beat(idle=590.0, age=5.0), False),  # or did lately
        (601.0, 0, beat(idle=590.0, age=15.0), True),
        (601.0, 0, beat(job=["j", 1], age=3700.0), True),  # a dead host: the fence has ended its job
        (601.0, 0, {}, True),  # one that never came up
        (601.0, 1, {}, False),  # the next host follows a minute later
        (661.0, 1, {}, True),
        (601.0, 0, {"controller": ({"who": "me", "busy": True}, 5.0)}, False),
        (601.0, 0, {"controller": ({"who": "me", "busy": False}, 5.0)}, True),
        (601.0, 0, {"controller": ({"who": "me", "busy": True}, 61.0)}, True),
        (601.0, 0, {"hold": ({"seconds": 3600}, 3599.0)}, False),
        (601.0, 0, {"hold": ({"seconds": 3600}, 3601.0)}, True),
    ],
)
def test_a_pod_is_idle_if_nothing_and_nobody_needs_it(host, seconds, rank, objects, deletes):
    one = host(objects, rank)
    assert one.step(seconds, None) == ""
    assert bool(one.deleted) == deletes
    assert ("ended/n" in one.bucket) == deletes


@pytest.mark.parametrize(("end", "deletes"), [(-1, True), (100, False), (0, False)])
def test_the_end_date_holds_while_a_job_runs(host, end, deletes):
    one = host({}, idle_seconds=0, end=end and time.time() + end)
    one.step(None, {"lease": 0})
    assert one.deleted == (["queuedResources/pod?force=true"] if deletes else [])


@pytest.mark.parametrize(("age", "why"), [(99.0, ""), (101.0, "lease")])
def test_a_job_that_nobody_attends_ends_after_its_lease(host, age, why):
    one = host({"controller": ({"who": "me", "busy": True}, age)})
    assert one.step(None, {"lease": 100}) == why


@pytest.mark.parametrize(("status", "calls"), [(200, 1), (404, 2), (403, 2), (400, 2)])
def test_the_node_is_deleted_where_its_queued_resource_cannot_be(host, status, calls):
    one, asked = host({}), []
    one._call = lambda what: asked.append(what) or (status if "queued" in what else 200)
    one.step(601.0, None)
    assert asked == ["queuedResources/pod?force=true", "nodes/pod"][:calls]


def test_a_pod_that_is_still_there_takes_its_word_back_when_a_job_comes(host):
    """Else it would be made again after a person has deleted it."""
    one = host({})
    one._call = lambda what: 403
    one.step(601.0, None)
    assert one.bucket["ended/n"][0]["why"] == one.about()["deleting"] == "it has been idle for 10 minutes"
    one.step(None, {"lease": 0})
    assert one.bucket["ended/n"][0]["why"] == one.about()["deleting"] == ""


def test_a_forged_hold_keeps_nothing(host):
    one = host({"hold": ({"seconds": 3600}, 1.0)})
    one.bucket.key = b"other"
    assert one._why_delete(601.0)


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_TPU_TIMES", "look=0.2 silence=2 beat=0.5")


WAITS = "echo begun; while [ ! -e ~/go ]; do sleep 0.1; done"


async def test_a_pod_without_controller_deletes_itself_after_its_job_unless_somebody_holds_it(
    empty_pod, tmp_path, fast, capsys
):
    async with Controller(empty_pod, tmp_path, idle_delete=0.05) as controller:
        running = asyncio.ensure_future(controller.run(command=WAITS))
        await eventually(lambda: "[job 0] begun" in controller.lines)
        found = controller.slices[0].control.bucket
        controller.dead.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    bucket = Bucket(found.url, found.key, storage_transport(), 60.0)
    bucket.put("hold", sign(bucket.key, "hold", {"seconds": 3600}))
    until(lambda: bucket.get("controller").age > 6)  # longer than the pod may be idle
    assert empty_pod.api.nodes
    await Cli(SimpleNamespace(command="status"), controller.settings).run()
    assert "held for another 60 minutes (`hold 0` ends it)" in capsys.readouterr().out
    for host in empty_pod.hosts:
        (host.home / "go").touch()
    until(lambda: not empty_pod.jobs())
    until(lambda: all(bucket.read(f"hosts/{rank}/beat")["idle"] > 6 for rank in range(4)))
    assert empty_pod.api.nodes
    bucket.put("hold", sign(bucket.key, "hold", {"seconds": 0}))
    until(lambda: not any(host.is_up for host in empty_pod.hosts))


async def test_a_pod_that_cannot_delete_itself_says_so(empty_pod, tmp_path, fast, monkeypatch):
    said = "It cannot delete itself: the TPU API answers 403 .*give its service account the permission tpu.nodes.delete"
    async with Controller(empty_pod, tmp_path, idle_delete=30) as controller:
        monkeypatch.setattr(empty_pod.google, "may_delete", False)
        running = asyncio.ensure_future(controller.run(command=WAITS))
        await eventually(lambda: re.search(said, controller.output) or running.done())
        assert not running.done()
        for host in empty_pod.hosts:
            (host.home / "go").touch()
        assert (await running).ok


def refused():
    raise OSError("HTTP Error 403: Forbidden")


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (lambda: "t", "it cannot reach the TPU API .*a way to tpu.googleapis.com, by Private Google Access"),
        (refused, "its service account gets no token .*403.*set tpu-service-account"),
    ],
)
def test_what_a_host_lacks_is_named(monkeypatch, token, said):
    monkeypatch.setenv("SNAKEMAKE_TPU_API", "http://127.0.0.1:1")
    one = Idle({**ORDERS, "rank": 0, "times": TIMES}, Objects())
    one.account = SimpleNamespace(token=token)
    assert one._call("nodes/x") == 0
    assert re.search(said, one.error.replace("\n", " "))
