"""The TPU API as the plugin uses it, against a server that speaks it."""

import pytest

from snakemake_executor_plugin_tpu.cloud import CALL, LABEL
from snakemake_executor_plugin_tpu.errors import CloudError
from snakemake_executor_plugin_tpu.settings import ExecutorSettings


def test_create_adopt_preempt_recreate_delete(api, play):
    async def story(cloud, capacity):
        assert (await cloud.describe()).is_absent
        state = await capacity.wait()
        assert state.is_ready
        assert state.created_here
        cloud.settings.create = False
        assert await capacity.wait() == state  # what is there is adopted
        api.preempt()
        assert (await cloud.describe()).is_lost
        with pytest.raises(CloudError, match="does not allow creating it"):
            await capacity.wait(existed=True)
        cloud.settings.create = True
        assert (await capacity.wait(existed=True)).incarnation != state.incarnation
        await cloud.delete()
        assert (await cloud.describe()).is_absent

    _, output = play(
        story,
        accelerator_type="v4-16",
        runtime_version="v2",
        service_account="me@p",
        network="net",
        internal_ips=True,
    )
    request = next(r for r in api.requests if type(r).__name__ == "CreateQueuedResourceRequest")
    node = request.queued_resource.tpu.node_spec[0].node
    assert "spot" in request.queued_resource
    assert (node.accelerator_type, node.runtime_version, dict(node.labels)) == (
        "v4-16",
        "v2",
        {**LABEL, CALL: node.labels[CALL]},
    )
    assert dict(node.metadata) == {"startup-script": "#!/bin/sh"}
    assert node.service_account.email == "me@p"
    assert (node.network_config.network, node.network_config.enable_external_ips) == ("net", False)
    assert request.queued_resource.queueing_policy.valid_until_duration.total_seconds() == 86400
    assert any("requesting spot v4-16 in z" in line for line in output)


@pytest.mark.parametrize(
    ("settings", "image"),
    [
        ({"accelerator_type": "v4-16"}, "tpu-ubuntu2204-base"),
        ({"accelerator_type": "v5litepod-16", "runtime_version": "my-image"}, "my-image"),
        ({"accelerator_type": "v6e-16"}, "v2-alpha-tpuv6e"),
    ],
)
def test_each_type_of_slice_has_its_image(settings, image):
    assert ExecutorSettings(project="p", zone="z", name="pod", **settings).runtime() == image
