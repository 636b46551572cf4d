"""The TPU API as the plugin uses it, against a server that speaks it."""

import json
import re

import pytest

from snakemake_executor_plugin_tpu.capacity import Capacity
from snakemake_executor_plugin_tpu.cloud import CALL, LABEL, ORDERS, TpuCloud
from snakemake_executor_plugin_tpu.emulator.iam import ROLES, TPU_PERMISSIONS
from snakemake_executor_plugin_tpu.errors import CloudError, DeletedByUser
from snakemake_executor_plugin_tpu.guarding import remaining
from snakemake_executor_plugin_tpu.settings import ExecutorSettings

QUOTA = "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 64 in region us-central2"
LIMIT = "Quota limit 'TPUV4CoresPerProjectPerZone'"
ACT_AS = "iam service-accounts add-iam-policy-binding me@p .*roles/iam.serviceAccountUser"


async def test_create_adopt_preempt_recreate_delete(api, play):
    asked = {"accelerator_type": "v4-16", "runtime_version": "v2", "network": "net", "internal_ips": True}
    async with play(service_account="me@p", **asked) as (cloud, capacity, output):
        assert (await cloud.describe()).is_absent
        api.fail(2, method="GetOperation")  # an outage during the operation
        state = await capacity.wait()
        assert state.is_ready
        assert await cloud.delete(lambda now: now.is_lost) == state  # one that came back is not deleted
        assert state.created_here
        cloud.settings.create = False
        assert await capacity.wait() == state  # what is there is adopted
        api.nodes[cloud.node_name].accelerator_type = f"{cloud.parent}/acceleratorTypes/v4-16"
        assert await capacity.wait() == state  # a type may be a resource name
        api.preempt()
        assert (await cloud.describe()).is_lost
        with pytest.raises(CloudError, match="does not allow creating it"):
            await capacity.wait(existed=True)
        cloud.settings.create = True
        assert (await capacity.wait(existed=True)).incarnation != state.incarnation
        await cloud.delete()
        assert (await cloud.describe()).is_absent
    request = next(r for r in api.requests if type(r).__name__ == "CreateQueuedResourceRequest")
    node = request.queued_resource.tpu.node_spec[0].node
    assert "spot" in request.queued_resource
    assert (node.accelerator_type, node.runtime_version) == ("v4-16", "v2")
    assert dict(node.labels) == {**LABEL, CALL: node.labels[CALL]}
    assert dict(node.metadata) == {"startup-script": "#!/bin/sh"}
    assert node.service_account.email == "me@p"
    assert (node.network_config.network, node.network_config.enable_external_ips) == ("net", False)
    assert request.queued_resource.queueing_policy.valid_until_duration.total_seconds() == 86400
    assert any("requesting spot v4-16 in z" in line for line in output)


def test_each_type_of_slice_has_its_image():
    pod = {"project": "p", "zone": "z", "name": "pod"}
    kinds, own = ("v4-16", "v6e-16"), {"accelerator_type": "v5litepod-16", "runtime_version": "my-image"}
    images = [ExecutorSettings(**pod, accelerator_type=kind).runtime() for kind in kinds]
    assert images == ["tpu-ubuntu2204-base", "v2-alpha-tpuv6e"]
    assert ExecutorSettings(**pod, **own).runtime() == "my-image"


@pytest.mark.parametrize(("provisioning", "reservation"), [("on-demand", ""), ("reserved", "projects/p/r")])
async def test_other_ways_to_pay(api, play, provisioning, reservation):
    async with play(provisioning=provisioning, reservation="projects/p/r") as (_, capacity, _):
        await capacity.wait()
    (resource,) = api.queued.values()
    assert ("guaranteed" in resource, "spot" in resource) == (True, False)
    assert resource.reservation_name == reservation


async def test_lack_of_capacity_is_waited_out_with_growing_pauses(api, play):
    message = "There is no more capacity in the zone z; you can try in another zone"
    api.fail(1, "RESOURCE_EXHAUSTED", message, method="CreateQueuedResource")
    api.fail_requests(2)
    async with play(accelerator_type="v4-32") as (_, capacity, output):
        assert (await capacity.wait()).is_ready
    waits = [line for line in output if "next try at" in line]
    assert len(waits) == 3
    assert "no spot v4-32 in z, requested since" in waits[0]
    assert all("There is no more capacity" in line for line in waits)


@pytest.mark.parametrize(
    ("fault", "settings", "sentence"),
    [
        (lambda api: api.refuse(8, f"{LIMIT} has been exceeded. Limit: 0"), {}, "has no quota for spot v4-64 in z: "),
        (lambda api: api.fail_requests(2, QUOTA), {}, "has no quota for spot"),  # there has been no pod
        (lambda api: None, {"zone": "nowhere"}, "no access to TPUs in nowhere: .*gcloud compute tpus locations list"),
        (lambda api: setattr(api, "roles", {"roles/tpu.viewer"}), {}, "--role=roles/tpu.admin"),
        (lambda api: setattr(api, "roles", {"mute"}), {}, "Not allowed to follow the request for pod in project p: "),
        (lambda api: setattr(api, "roles", {"roles/tpu.admin"}), {"service_account": "me@p"}, ACT_AS),
    ],
)  # fmt: skip
async def test_what_is_refused_is_not_waited_for(api, play, monkeypatch, fault, settings, sentence):
    monkeypatch.setitem(ROLES, "mute", TPU_PERMISSIONS - {"tpu.operations.get"})
    fault(api)
    with pytest.raises(CloudError, match=sentence):
        async with play(**settings) as (_, capacity, _):
            await capacity.wait()
    assert api.calls.count("CreateQueuedResource") <= 1
    assert not api.nodes


async def test_a_quota_text_after_a_preemption_is_waited_out(api, play):
    """The queued resource that is being removed still counts: github.com/marin-community/marin/issues/87."""
    async with play() as (_, capacity, output):
        await capacity.wait()
        for _ in range(2):
            api.refuse(8, QUOTA)
        api.preempt()
        assert (await capacity.wait(existed=True)).is_ready
    assert sum("next try at" in line and "exhausted" in line for line in output) == 2


async def test_a_grant_that_has_ended_is_not_waited_for(api, play):
    async with play() as (_, capacity, _):
        await capacity.wait()
        api.refuse(8, f"{QUOTA.partition(' Limit')[0]} Limit: 0 in region us-central2.")
        api.preempt()
        with pytest.raises(CloudError, match="has no quota for spot .*Limit: 0"):
            await capacity.wait(existed=True)


async def test_only_a_pod_that_has_left_word_is_created_again(api, play):
    async with play() as (cloud, capacity, output):
        capacity.metadata = lambda: {ORDERS: json.dumps({"node": "a"})}
        await capacity.wait()
        said = {"a": "it has been idle for 1800 s"}
        capacity.last_words = lambda node: said.pop(node, "")
        await cloud.delete()
        assert (await capacity.wait(existed=True)).is_ready
        await cloud.delete()
        with pytest.raises(DeletedByUser):
            await capacity.wait(existed=True)
    assert any("it deleted itself, since it has been idle for 1800 s" in line for line in output)


async def test_a_resource_that_cannot_be_deleted_yet_is_waited_for_and_said(api, play, monkeypatch):
    monkeypatch.setattr("snakemake_executor_plugin_tpu.cloud.SLOW_DELETION", -1.0)
    async with play() as (_, capacity, output):
        await capacity.wait()
        api.preempt()
        message = "Queued resource pod is in state SUSPENDING and cannot be deleted"
        api.fail(3, "FAILED_PRECONDITION", message, method="DeleteQueuedResource")
        api.refuse(9, message, "delete")  # or at the end of the operation
        assert (await capacity.wait(existed=True)).is_ready
    said = "cannot be deleted yet (Queued resource pod is in state SUSPENDING"
    assert sum(said in line for line in output) == 4
    slow = "(node PREEMPTED, queued resource SUSPENDED); another tpu-name would not wait for it"
    assert sum(f"is still being deleted {slow}" in line for line in output) == 1


async def test_the_request_of_another_call_is_not_withdrawn(api, play):
    """Both look, both see nothing, both ask: the one that comes second must not take the other's place away."""
    api.full_zones.add("z")
    async with play() as (cloud, _, _):
        await cloud.create({})
        other = TpuCloud(cloud.settings, print)
        second = Capacity(other, print, dict, lambda node: "")
        second.since, second.requested = "", False
        assert await second._ask() is None
        assert not second.requested
        await second.withdraw()
        await other.close()
        assert (await cloud.describe()).queued in ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES")


@pytest.mark.parametrize("node_only", [False, True])
async def test_pod_that_a_person_deleted_is_not_created_again(api, play, node_only):
    async with play() as (cloud, capacity, _):
        await capacity.wait()
        if node_only:
            await cloud._call("delete_node", name=cloud.node_name)
        else:
            await TpuCloud(cloud.settings, print).delete()
        with pytest.raises(DeletedByUser, match="The next call of Snakemake creates it again"):
            await capacity.wait(existed=True)
    assert api.calls.count("CreateQueuedResource") == 1


async def test_lost_pod_of_somebody_else_is_not_deleted(api, play):
    async with play() as (_, capacity, _):
        await capacity.wait()
        for node in api.nodes.values():
            node.labels = {}
        for resource in api.queued.values():
            resource.tpu.node_spec[0].node.labels = {}
        api.preempt()
        with pytest.raises(CloudError, match="was not created by this plugin: delete it by"):
            await capacity.wait()
    assert "DeleteQueuedResource" not in api.calls


async def test_a_request_that_is_withdrawn_costs_nothing(api, play):
    api.full_zones.add("z")
    async with play() as (cloud, capacity, output):
        await cloud.create({})
        capacity.requested = True
        left = await remaining(cloud.settings, cloud, used=False)
        await capacity.withdraw()
        assert await remaining(cloud.settings, cloud, used=False) == ""
    assert re.match(r"TPU pod pod \(v4-64, \w+\) is still requested, and once it comes it costs money", left)
    assert any("the request was withdrawn" in line for line in output)
