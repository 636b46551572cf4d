"""The TPU API as the plugin uses it, against a server that speaks it."""

import asyncio

import pytest
from google.api_core import exceptions as gx
from google.auth import exceptions as auth

from snakemake_executor_plugin_tpu.cloud import PodSpec, TpuCloud
from snakemake_executor_plugin_tpu.emulator.tpu_api import TpuApi
from snakemake_executor_plugin_tpu.errors import CloudError, explain, is_transient


@pytest.fixture
def api():
    """Return a TPU API whose pods have two hosts that exist in name only."""
    keys = iter(range(100))
    server = TpuApi(
        lambda node: (["127.0.0.1", "127.0.0.2"], [f"ssh-ed25519 key{next(keys)}" for _ in range(2)]),
        lambda node: None,
        seconds_per_state=0.01,
    )
    server.start()
    yield server
    server.stop()


def play(api, story, **spec):
    """Run a story with a client of the API."""

    async def run():
        cloud = TpuCloud("p", "z", "pod", PodSpec(**spec), endpoint=f"127.0.0.1:{api.port}")
        cloud.poll_seconds = (0.01, 0.02)
        try:
            return await story(cloud)
        finally:
            await cloud.close()

    return asyncio.run(run())


def test_create_adopt_preempt_recreate_delete(api, tmp_path):
    key = tmp_path / "key.pub"
    key.write_text("ssh-ed25519 AAAA me\n")
    said = []

    async def story(cloud):
        assert (await cloud.describe()).is_absent
        state = await cloud.ensure(True, said.append)
        assert state.is_ready
        assert await cloud.ensure(False, said.append) == state  # what is there is adopted
        first = await cloud.endpoints()
        assert [end.address for end in first] == ["127.0.0.1", "127.0.0.2"]
        api.preempt()
        assert (await cloud.describe()).is_gone
        with pytest.raises(CloudError, match="does not allow creating it"):
            await cloud.ensure(False, said.append)
        await cloud.ensure(True, said.append)
        assert [end.host_keys for end in await cloud.endpoints()] != [end.host_keys for end in first]
        await cloud.delete()
        assert (await cloud.describe()).is_absent

    play(
        api,
        story,
        accelerator_type="v4-16",
        runtime_version="v2",
        service_account="me@p",
        labels=(("team", "trm"),),
        network="net",
        internal_ips=True,
        ssh_user="me",
        ssh_public_key=key,
    )
    request = next(r for r in api.requests if type(r).__name__ == "CreateQueuedResourceRequest")
    node = request.queued_resource.tpu.node_spec[0].node
    assert "spot" in request.queued_resource
    assert (node.accelerator_type, node.runtime_version, dict(node.labels)) == (
        "v4-16",
        "v2",
        {"team": "trm"},
    )
    assert node.metadata["ssh-keys"] == "me:ssh-ed25519 AAAA me"
    assert node.service_account.email == "me@p"
    assert (node.network_config.network, node.network_config.enable_external_ips) == ("net", False)
    assert any("asking for spot v4-16" in line for line in said)


@pytest.mark.parametrize("provisioning", ["on-demand", "reserved"])
def test_other_ways_to_pay(api, provisioning):
    play(api, lambda cloud: cloud.ensure(True, print), provisioning=provisioning, reservation="projects/p/r")
    (resource,) = api.queued.values()
    assert "guaranteed" in resource
    assert "spot" not in resource
    assert resource.reservation_name == ("projects/p/r" if provisioning == "reserved" else "")


def test_passing_errors_are_waited_out(api, monkeypatch):
    async def no_pause(_):
        pass

    api.fail(3)

    async def story(cloud):
        monkeypatch.setattr("snakemake_executor_plugin_tpu.cloud.asyncio.sleep", no_pause)
        return await cloud.describe()

    assert play(api, story).is_absent
    assert api.calls.count("GetNode") == 4


def test_no_plain_text_api_elsewhere():
    async def story():
        await TpuCloud("p", "z", "pod", PodSpec(), endpoint="10.0.0.1:80").describe()

    with pytest.raises(CloudError, match="is not on this machine"):
        asyncio.run(story())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (gx.PermissionDenied("x"), "--role=roles/tpu.admin"),
        (
            gx.PermissionDenied("Cloud TPU API has not been used in project p"),
            "gcloud services enable tpu.googleapis",
        ),
        (gx.ResourceExhausted("Quota 'TPUV4sPreemptible' exhausted"), "gcloud beta quotas info list"),
        (gx.ResourceExhausted("There is no more capacity in the zone"), "run the same command later"),
        (gx.InvalidArgument("Cloud TPU received a bad request. runtime version x"), "versions list --zone=z"),
        (gx.InvalidArgument("accelerator type v4-65 is unknown"), "accelerator-types list --zone=z"),
        (gx.NotFound("location z is unknown"), "gcloud compute tpus locations list"),
        (auth.DefaultCredentialsError("none"), "gcloud auth application-default login"),
        (gx.InternalServerError("boom"), "refused to create pod"),
    ],
)
def test_errors_are_one_sentence_with_the_command_that_helps(error, expected):
    said = explain(error, "p", "z", "create pod", PodSpec())
    assert expected in said
    assert "\n" not in said


def test_which_errors_pass():
    assert is_transient(gx.ServiceUnavailable("x"))
    assert is_transient(gx.ResourceExhausted("Quota exceeded for requests per minute"))
    assert not is_transient(gx.ResourceExhausted("Quota for chips"))
    assert not is_transient(gx.PermissionDenied("x"))
