"""The pod deletes itself, whatever becomes of the controllers."""

import json
import re
import signal
import urllib.error

import pytest
from google.api_core import path_template
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import rest_base

from snakemake_executor_plugin_tpu.emulator.study import until
from snakemake_executor_plugin_tpu.worker import guard

ORDERS = {"name": "pod", "project": "p", "zone": "z", "api": "http://api"}
ORDERS |= {"idle_seconds": 600, "end": 0, "lease": 3600}


class Clock:
    """A clock that tests advance."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1e9

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hosts(monkeypatch, tmp_path):
    """Return a function that makes guards, a clock, and `used`: a host is in use when `used["at"]` changes."""
    clock, used = Clock(), {}
    monkeypatch.setattr(guard, "time", clock)
    monkeypatch.setattr(guard, "marks", used.copy)

    def make(rank=0, count=2, **orders):
        return guard.Guard({**ORDERS, "hosts": count, **orders}, rank)

    return make, clock, used


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


def test_a_mark_from_the_future_hides_no_activity(hosts):
    """As after a clock that went back: the newest time alone would not change any more."""
    make, clock, used = hosts
    used |= {"somebody": 1e12, "job": 1.0}
    one = make(count=1)
    clock.now += 590
    used["job"] = 2.0
    assert one.idle() == 0


def test_busy_or_silent_hosts_keep_the_pod(hosts, monkeypatch):
    make, clock, _ = hosts
    one, answers = make(), True
    monkeypatch.setattr(one, "answers", lambda rank: answers)
    clock.now += 700
    assert one.why_delete() == ""  # the other is silent and may run a job
    one.heard[1] = (clock.now, 650.0)
    assert one.why_delete() == "it has been idle for 650 s"
    one.heard[1] = (clock.now, 0.0)
    clock.now += 3000
    assert one.why_delete() == ""  # silent for less than the lease of its jobs
    answers = False
    assert "idle" in one.why_delete()  # dead: the others decide
    del one.heard[1]
    assert one.why_delete() == ""  # never heard: perhaps nothing can be
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


def test_guest_attributes_count_once(hosts, monkeypatch):
    """The request and the answer are those of Google's client library."""
    make, clock, _ = hosts
    one = make()
    told = [json.dumps({"rank": 1, "idle": 20.0, "at": 1.0, "new": "?"}), "x", "[1, 2]", '{"rank": "w"}']
    items = [{"namespace": "snakemake-tpu", "key": "idle", "value": value} for value in told]
    attributes = [{"query_path": "snakemake-tpu/", "query_value": {"items": items}}]
    answer = tpu_v2.GetGuestAttributesResponse.to_json(
        tpu_v2.GetGuestAttributesResponse(guest_attributes=attributes)
    )
    (rule,) = rest_base._BaseTpuRestTransport._BaseGetGuestAttributes._get_http_options()

    def ask(url, method="GET", token="", data=None):
        if "service-accounts" in url:
            return '{"access_token": "t"}'
        place = path_template.validate(rule["uri"], url.removeprefix("http://api"))
        assert (place, method, token) == (True, rule["method"].upper(), "t")
        request = tpu_v2.GetGuestAttributesRequest.from_json(data.decode(), ignore_unknown_fields=False)
        assert (request.query_path, request.worker_ids) == ("snakemake-tpu/", [])  # of all hosts
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(guard, "ask", ask)
    one.look()
    assert one.heard == {1: (clock.now, 20.0)}
    heard, clock.now = dict(one.heard), clock.now + 100
    first = answer
    for answer in (first, '{"unknown": 1}', OSError("no way"), first):  # noqa: B007 (`ask` gives it)
        one.look()  # its host may be dead
        assert one.heard == heard


def test_a_host_without_an_address_may_run_a_job(hosts, monkeypatch):
    """A host runs its startup script as it boots, when the others of the slice may not have addresses yet."""
    _, clock, _ = hosts
    told = {"agent-worker-number": "0", "snakemake-tpu": json.dumps({**ORDERS, "hosts": 2})}
    monkeypatch.setattr(guard, "ask", lambda url, *_: told[url.rpartition("/")[2]])
    one = guard.guard_of_this_host()
    for late in ("a:b:127.0.0.1", "a:b:127.0.0.1,a:b:", "?"):
        told["worker-network-endpoints"] = late
        assert one.answers(1)
    one.heard[1] = (clock.now, 700.0)
    clock.now += 700
    assert one.why_delete() == ""


def test_nothing_ends_a_guard(hosts, monkeypatch):
    make, _, _ = hosts
    one, faults = make(), [ValueError("odd answer"), KeyboardInterrupt()]

    def watch():
        raise faults.pop(0)

    monkeypatch.setattr(one, "watch", watch)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert one.error == "its guard failed (ValueError: odd answer)"


def test_refusals_are_noted(hosts, monkeypatch):
    make, clock, _ = hosts

    def ask(url, method="GET", token="", data=None):
        if method == "DELETE":
            place, _, kind = url.partition("?")[0].rpartition("/")[0].rpartition("/")
            assert (place, token) == ("http://api/v2/projects/p/locations/z", "t")
            raise urllib.error.HTTPError(url, statuses[kind], "no", {}, None)
        if token_error:
            raise token_error
        return '{"access_token": "t"}'

    monkeypatch.setattr(guard, "ask", ask)
    one, statuses, token_error = make(), {"queuedResources": 403, "nodes": 403}, None
    one.check()
    assert "answers 403 (): give its service account the permission tpu.nodes.delete" in one.error
    statuses["nodes"] = 404  # allowed, and nothing has that name
    one.check()
    assert one.error == ""
    statuses["queuedResources"] = 404
    one.check()
    assert one.error == ""
    token_error = urllib.error.URLError("refused")
    one.check()
    assert "its service account gets no token (<urlopen error refused>): set tpu-service-account" in one.error
    token_error, clock.now = None, clock.now + 100
    one.check()
    assert (
        "w0 hears nothing of w1, which counts as in use for 3600 s unless it is dead: give the hosts' service account"
        in one.error
    )


@pytest.mark.parametrize(
    ("status", "kinds"), [(200, ["queuedResources"]), (404, None), (403, None), (400, None)]
)
def test_the_node_is_deleted_where_its_queued_resource_cannot_be(hosts, monkeypatch, status, kinds):
    make, _, _ = hosts
    asked = []

    def call(method, what, data=None):
        asked.append(what)
        return (status if what.startswith("queuedResources") else 200), ""

    one = make()
    monkeypatch.setattr(one, "call", call)
    one.delete()
    assert [what.partition("/")[0] for what in asked] == (kinds or ["queuedResources", "nodes"])


@pytest.fixture
def guarded(study):
    """Return a function that makes studies which create their pod with an idle rule."""

    def make(jobs, **profile):
        one = study(jobs, **{"tpu-idle-delete": 0.25, **profile})
        if not one.pod.network.separate:
            pytest.skip("the hosts share this machine's network: it needs iproute2 and CAP_NET_ADMIN")
        one.pod.remove()
        made.append(one)
        return one

    made = []
    yield make
    for pod in {one.pod for one in made}:
        pod.metadata.may_delete, pod.metadata.may_get, pod.metadata.token_status = True, True, 200
        for host in pod.hosts:
            host.unknown = set()
        pod.remove()  # or its guards would delete it under the next test


def test_pod_of_a_killed_controller_deletes_itself_once_its_job_has_ended(guarded):
    one = guarded({"a": {"steps": 440, "options": "--hold 400"}})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    call.signal(signal.SIGKILL)
    call.wait()
    until(lambda: one.step("a") == 400)  # longer than the pod may be idle
    assert all(host.is_up for host in one.pod.hosts)
    one.release("a")
    until(lambda: not any(host.is_up for host in one.pod.hosts))
    assert "REST DeleteQueuedResource" in one.pod.api.calls
    assert one.step("a") == 440


def test_pod_that_nobody_uses_deletes_itself(guarded):
    one = guarded({"a": {}})
    code, output = one.command("up")
    assert code == 0, output
    until(lambda: not any(host.is_up for host in one.pod.hosts))


def deny(pod):
    pod.metadata.may_delete = False


def disable_account(pod):
    pod.metadata.token_status = 403


def hide_api(pod):
    for host in pod.hosts:
        host.unknown = {"tpu.googleapis.com"}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (deny, "the TPU API answers 403 .*give its service account the permission tpu.nodes.delete"),
        (disable_account, "its service account gets no token .*403.*set tpu-service-account"),
        (hide_api, "it cannot reach the TPU API .*give the hosts a way to tpu.googleapis.com"),
    ],
)
def test_what_a_guard_cannot_do_is_said_before_the_first_job(guarded, fault, said):
    one = guarded({"a": {}}, **{"tpu-idle-delete": 0.25})
    fault(one.pod)
    sentence = f"The pod cannot delete itself: {said}.*or delete it yourself by"
    before, started, _ = one.run().partition("launch 1, rank 0")
    assert re.search(sentence, before), before
    assert started
    assert re.search(sentence, one.command("status")[1])


def test_hosts_that_do_not_hear_each_other_are_said(guarded):
    one = guarded({"a": {}}, **{"tpu-idle-delete": 0.25})
    one.pod.metadata.may_get = False
    assert one.command("up")[0] == 0
    until(lambda: "hears nothing of w1, w2, w3, which counts as in use" in one.command("status")[1])
    assert all(host.is_up for host in one.pod.hosts)


def test_a_dead_host_does_not_keep_the_pod(guarded):
    one = guarded({"a": {}}, **{"tpu-lease": 43200, "tpu-idle-delete": 0.5})
    assert one.command("up")[0] == 0
    until(lambda: '"heard": 4' in one.pod.hosts[0].enter("cat", "/run/snakemake-tpu/guard.json").stdout)
    one.pod.hosts[1].kill()
    until(lambda: "REST DeleteQueuedResource" in one.pod.api.calls)
