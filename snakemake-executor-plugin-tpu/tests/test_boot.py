"""A new pod whose hosts come up late or not at all."""

import asyncio
from types import SimpleNamespace

import pytest

from snakemake_executor_plugin_tpu import lifecycle
from snakemake_executor_plugin_tpu.__main__ import parse
from snakemake_executor_plugin_tpu.claim import Claim
from snakemake_executor_plugin_tpu.cloud import PodState
from snakemake_executor_plugin_tpu.errors import HostsSilentError, LoginRefused, PodError, Unreachable
from snakemake_executor_plugin_tpu.lifecycle import PodManager
from snakemake_executor_plugin_tpu.settings import ExecutorSettings

SETTINGS = {"project": "p", "zone": "z", "name": "pod", "accelerator_type": "v4-64", "create": True}


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """Return a manager whose pods come one after the other; `broken` says of each whether a host stays silent."""
    said: list[str] = []
    one = PodManager(ExecutorSettings(**SETTINGS), tmp_path, said.append, Claim(said.append))
    one.said, one.broken, one.deleted, one.answering, one.made = said, [], [], True, 0

    async def no_ssh(*_):
        pass

    async def wait(existed):
        one.made += 1
        return PodState(node="READY", addresses=("a",), incarnation=str(one.made), call=one.cloud.call)

    async def connect(patience, new):
        one.cloud.incarnation = str(one.made)
        if one.broken.pop(0):
            raise HostsSilentError("w3 does not answer.")
        return one.made

    async def delete(while_):
        one.deleted += [name for name in "123" if while_(PodState(incarnation=name))]

    async def some_answer():
        return one.answering

    monkeypatch.setattr(lifecycle, "try_ssh", no_ssh)
    monkeypatch.setattr(one.capacity, "wait", wait)
    monkeypatch.setattr(one, "_connect", connect)
    monkeypatch.setattr(one.cloud, "delete", delete)
    monkeypatch.setattr(one, "_some_answer", some_answer)
    return one


def test_a_new_pod_with_a_dead_host_is_replaced(manager):
    """Otherwise it would cost money for the lease of the jobs that the dead host might run."""
    manager.broken = [True, False]
    assert asyncio.run(manager._obtain(existed=True)) == 2
    assert manager.deleted == ["1"]
    assert "TPU pod pod: a host did not come up, others did; it is deleted and made anew" in manager.said


def test_a_host_that_never_comes_up_is_reported(manager):
    manager.broken = [True] * 3
    with pytest.raises(HostsSilentError):
        asyncio.run(manager._obtain(existed=False))
    assert manager.deleted == ["1", "2"]


@pytest.mark.parametrize("why", ["no host answers", "made by another call", "came back", "no claim"])
def test_a_pod_that_may_be_in_use_or_out_of_reach_is_kept(manager, why):
    manager.broken = [True]
    if why == "no host answers":
        manager.answering = False
    elif why == "made by another call":
        manager.cloud.call = ""
        manager._is_ours = lambda state: False
    elif why == "came back":
        manager.cloud.incarnation = "1"
    else:
        manager.claim = None
    with pytest.raises(HostsSilentError):
        asyncio.run(manager._obtain(existed=True))
    assert manager.deleted == []


@pytest.mark.parametrize("refused", [lifecycle.LOGIN_SECONDS + 10, lifecycle.NEW_LOGIN_SECONDS + 10])
@pytest.mark.parametrize("ours", [True, False])
def test_hosts_of_a_new_pod_have_time_to_create_the_user(tmp_path, monkeypatch, ours, refused):
    """They publish their keys before they create users."""
    clock = SimpleNamespace(now=0.0)
    one = PodManager(ExecutorSettings(**SETTINGS), tmp_path, print)

    async def deploy(timeout):
        if clock.now < refused:
            raise LoginRefused("w0: Permission denied (publickey)")

    async def status():
        return {"disk_free": lifecycle.LEAST_DISK}

    async def describe(attempts):
        return PodState(node="READY", addresses=("a",), call=one.cloud.call if ours else "other")

    async def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr(one.cloud, "describe", describe)
    monkeypatch.setattr(lifecycle.asyncio, "sleep", sleep)
    monkeypatch.setattr(lifecycle, "time", SimpleNamespace(monotonic=lambda: clock.now))
    worker = SimpleNamespace(host="w0", deploy=deploy, status=status)
    coming = one._until_up(worker, lifecycle.BOOT_SECONDS)
    if ours and refused < lifecycle.NEW_LOGIN_SECONDS:
        assert asyncio.run(coming) == {"disk_free": lifecycle.LEAST_DISK}
    else:
        with pytest.raises(PodError, match="does not let snakemake in"):
            asyncio.run(coming)


@pytest.mark.parametrize(
    ("health", "said"),
    [
        ("HEALTHY", "the pod is READY and HEALTHY, so"),
        ("UNHEALTHY_MAINTENANCE", "the pod is READY and UNHEALTHY_MAINTENANCE, so"),
    ],
)
def test_a_silent_host_under_maintenance_is_told_from_a_closed_port(tmp_path, monkeypatch, health, said):
    one = PodManager(ExecutorSettings(**SETTINGS), tmp_path, print)

    async def deploy(timeout):
        raise Unreachable("w0: Connection timed out")

    async def describe(attempts):
        return PodState(node="READY", addresses=("a",), health=health)

    monkeypatch.setattr(one.cloud, "describe", describe)
    with pytest.raises(HostsSilentError, match=said):
        asyncio.run(one._until_up(SimpleNamespace(host="w0", deploy=deploy), patience=0.0))


def test_one_host_that_answers_is_enough(tmp_path, monkeypatch):
    one = PodManager(ExecutorSettings(**SETTINGS), tmp_path, print)
    ended = []

    async def deploy(timeout):
        raise Unreachable("silent")

    async def works(timeout):
        pass

    async def reach():
        return workers, SimpleNamespace(close=close)

    async def close():
        ended.append(True)

    monkeypatch.setattr(one, "_reach", reach)
    workers = [SimpleNamespace(deploy=deploy), SimpleNamespace(deploy=works)]
    assert asyncio.run(one._some_answer())
    workers = workers[:1]
    assert not asyncio.run(one._some_answer())
    assert ended == [True, True]


@pytest.mark.parametrize("rank", [0, 3])
def test_an_emulated_pod_whose_host_never_boots_is_replaced(healthy_pod, people, tmp_path, monkeypatch, rank):
    healthy_pod.remove()
    monkeypatch.setattr(lifecycle, "BOOT_SECONDS", 1.0)
    boot, made = healthy_pod.api.boot, []

    def boot_without_one(node):
        found = boot(node)
        made.append(node.id)
        if len(made) == 1:
            healthy_pod.hosts[rank].kill()
        return found

    monkeypatch.setattr(healthy_pod.api, "boot", boot_without_one)
    options = ["up", "--accelerator-type", "v4-32", "--idle-delete", "0", "--reconnect", "1"]
    said = []

    async def up():
        _, settings = parse(options)
        one = PodManager(settings, tmp_path, said.append, Claim(said.append))
        one.settings.create = True
        try:
            return await one.ready()
        finally:
            await one.close()

    assert asyncio.run(up()).silent == set()
    assert len(made) == 2
    assert any("a host did not come up, others did" in line for line in said)
