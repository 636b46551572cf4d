"""The pod deletes itself, whatever becomes of the controllers."""

import json
import signal
import urllib.error

import pytest

from snakemake_executor_plugin_tpu.emulator.study import until
from snakemake_executor_plugin_tpu.worker import guard

ORDERS = {"name": "pod", "idle_seconds": 600, "end": 0, "lease": 3600, "secret": "s", "api": "http://api"}


class Clock:
    """A clock that tests advance."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1e9


@pytest.fixture
def hosts(monkeypatch, tmp_path):
    """Return a function that makes guards, a clock, and `used`: a host is in use when `used["at"]` changes."""
    clock, used, made = Clock(), {}, []
    monkeypatch.setattr(guard, "time", clock)
    monkeypatch.setattr(guard, "PORT", 0)
    monkeypatch.setattr(guard, "last_activity", lambda: used.get("at", 0.0))

    def make(rank=0, count=2, **orders):
        made.append(guard.Guard({**ORDERS, **orders}, rank, ["127.0.0.1"] * count))
        return made[-1]

    yield make, clock, used
    for one in made:
        one.socket.close()


def test_idle_pod_is_deleted_after_its_limit_and_not_before(hosts):
    make, clock, used = hosts
    one = make(count=1)
    clock.now += 590
    assert one.why_delete() == ""
    used["at"] = 1.0  # a job has begun
    assert one.idle() == 0
    clock.now += 590
    assert one.why_delete() == ""
    clock.now += 20
    assert one.why_delete() == "it has been idle for 610 s"


def test_busy_or_silent_hosts_keep_the_pod(hosts):
    make, clock, _ = hosts
    one = make()
    clock.now += 700
    assert one.why_delete() == ""  # the other is silent and may run a job
    one.heard[1] = (clock.now, 650.0)
    assert one.why_delete() == "it has been idle for 650 s"
    one.heard[1] = (clock.now, 0.0)
    clock.now += 3000
    assert one.why_delete() == ""  # silent for less than the lease of its jobs
    clock.now += 1300
    assert "idle" in one.why_delete()
    assert make(lease=0).pod_idle() == 0


def test_hosts_delete_one_after_the_other(hosts):
    make, clock, _ = hosts
    second = make(rank=1)
    clock.now += 630
    second.heard[0] = (clock.now, 630.0)
    assert second.why_delete() == ""
    clock.now += 40
    second.heard[0] = (clock.now, 670.0)
    assert second.why_delete()


def test_end_date(hosts):
    make, clock, _ = hosts
    one = make(idle_seconds=0, end=clock.time() + 100)
    assert one.why_delete() == ""
    clock.now += 101
    assert one.why_delete() == "its end date has passed"


def test_unsigned_messages_are_ignored(hosts):
    make, _, _ = hosts
    one = make()
    text = json.dumps({"rank": 1, "idle": 9999.0})
    for message in (b"x", b"[1, 2]", json.dumps([text, "0" * 64]).encode()):
        one.take(message)
    assert one.heard == {}
    one.take(json.dumps([text, one.sign(text)]).encode())
    assert one.heard[1][1] == 9999.0


def test_refusals_are_noted(hosts, monkeypatch):
    make, _, _ = hosts

    def ask(url, method="GET", token=""):
        if method == "DELETE":
            place = url.partition("?")[0].rpartition("/")[0]
            assert (place, token) == ("http://api/v2/projects/p/locations/z/queuedResources", "t")
            raise urllib.error.HTTPError(url, status, "no", {}, None)
        answers = {"token": '{"access_token": "t"}', "zone": "projects/1/zones/z", "project-id": "p"}
        return answers[url.rpartition("/")[2]]

    monkeypatch.setattr(guard, "ask", ask)
    one, status = make(), 403
    one.check()
    assert "answers 403" in one.error
    status = 404  # allowed, and nothing has that name
    one.check()
    assert one.error == ""


@pytest.fixture
def guarded(study):
    """Return a function that makes studies which create their pod with an idle rule."""

    def make(jobs, **profile):
        one = study(jobs, **{"tpu-idle-delete": 0.1, **profile})
        if not one.pod.network.separate:
            pytest.skip("the hosts share this machine's network: it needs iproute2 and CAP_NET_ADMIN")
        one.pod.remove()
        return one

    return make


def test_pod_of_a_killed_controller_deletes_itself_once_its_job_has_ended(guarded):
    one = guarded({"a": {"steps": 240, "options": "--hold 200"}})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    call.signal(signal.SIGKILL)
    call.wait()
    until(lambda: one.step("a") == 200)  # longer than the pod may be idle
    assert all(host.is_up for host in one.pod.hosts)
    one.release("a")
    until(lambda: not any(host.is_up for host in one.pod.hosts))
    assert "REST DeleteQueuedResource" in one.pod.api.calls
    assert one.step("a") == 240


def test_pod_that_nobody_uses_deletes_itself(guarded):
    one = guarded({"a": {}})
    code, output = one.command("up")
    assert code == 0, output
    until(lambda: not any(host.is_up for host in one.pod.hosts))


def test_a_missing_permission_to_delete_is_reported(guarded):
    one = guarded({"a": {}})
    one.pod.metadata.may_delete = False
    try:
        assert one.command("up")[0] == 0
        until(lambda: "it cannot: the TPU API answers 403" in one.command("status")[1])
    finally:
        one.pod.metadata.may_delete = True
