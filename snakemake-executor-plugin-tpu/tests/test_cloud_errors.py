"""What the TPU API refuses, and how it fails: outages, missing roles, errors in one sentence."""

import re

import pytest
from google.api_core import exceptions as gx
from google.auth import exceptions as auth

from snakemake_executor_plugin_tpu.cloud import TpuCloud
from snakemake_executor_plugin_tpu.emulator.iam import ROLES, TPU_METHODS, TPU_PERMISSIONS
from snakemake_executor_plugin_tpu.errors import CloudError, Offline, explain
from snakemake_executor_plugin_tpu.settings import ExecutorSettings

POD = {"project": "p", "zone": "z", "name": "pod", "bucket": "bucket"}


async def test_outages_are_survived_and_reported(api, play, monkeypatch):
    async def no_pause(_):
        pass

    api.fail(4)

    async with play() as (cloud, _, output):
        monkeypatch.setattr("snakemake_executor_plugin_tpu.cloud.asyncio.sleep", no_pause)
        state = await cloud.describe()
    assert state.is_absent
    assert api.calls.count("GetNode") == 5
    assert re.fullmatch(
        r"Cannot reach Google since \d\d:\d\d \(emulated outage\); nothing was changed, .*", output[0]
    )
    assert output[1:] == ["Google answers again"]


async def test_people_wait_for_the_network_as_long_as_they_are_patient(api, play, monkeypatch):
    now = [1000.0]

    async def pass_time(seconds):
        now[0] += seconds

    monkeypatch.setattr("snakemake_executor_plugin_tpu.cloud.asyncio.sleep", pass_time)
    monkeypatch.setattr("snakemake_executor_plugin_tpu.cloud.time.monotonic", lambda: now[0])

    api.offline = True
    async with play() as (cloud, _, output):
        for cloud.patience in (120.0, 43200.0):
            begin = now[0]
            with pytest.raises(Offline, match="Cannot reach Google since"):
                await cloud.describe()
            assert cloud.patience < now[0] - begin < cloud.patience + 60
    assert len(output) == 1


async def test_expired_credentials_are_reported_at_once(api, play):
    # gRPC gets the token in a plugin and reports this as an outage.
    message = "Getting metadata from plugin failed with error: Reauthentication is needed."
    api.fail(1, "UNAVAILABLE", message)
    with pytest.raises(CloudError, match="gcloud auth application-default login"):
        async with play() as (cloud, _, _):
            await cloud.describe()
    assert api.calls == ["GetNode"]


async def test_no_plain_text_api_elsewhere():
    with pytest.raises(CloudError, match="is not on this machine"):
        await TpuCloud(ExecutorSettings(**POD, api_endpoint="10.0.0.1:80"), print).describe()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (gx.PermissionDenied("Cloud TPU API has not been used in project p"), "gcloud services enable tpu.googleapis"),
        (gx.ResourceExhausted("Quota 'TPUV4sPreemptible' exhausted"), "gcloud beta quotas info list"),
        (gx.ResourceExhausted("There is no more capacity in the zone"), "run the same command later"),
        (gx.InvalidArgument("Cloud TPU received a bad request. runtime version x"),
         "no runtime version tpu-ubuntu2204-base"),
        # github.com/skypilot-org/skypilot/issues/3840
        (gx.InvalidArgument("received a bad request. the accelerator v4-128 was not found in zone z [EID: 0x1]"),
         "accelerator-types list --zone=z"),
        (gx.NotFound("location z is unknown"), "gcloud compute tpus locations list"),
        (gx.PermissionDenied("This API method requires billing to be enabled. #p"), "billing/linkedaccount?project=p"),
        (gx.PermissionDenied("Caller does not have required permission to use project q"), "set-quota-project p"),
        (gx.PermissionDenied("does not have serviceusage.services.use access"), "serviceUsageConsumer"),
        (gx.PermissionDenied("Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: x"),
         "add an access level"),
        (gx.FailedPrecondition("Constraint constraints/compute.vmExternalIpAccess violated"), "tpu-internal-ips: true"),
        (auth.DefaultCredentialsError("none"), "gcloud auth application-default login"),
        (gx.InternalServerError("boom"), "refused to create pod"),
    ],
)  # fmt: skip
def test_errors_are_one_sentence_with_the_command_that_fixes_them(error, expected):
    output = explain(error, "create pod", ExecutorSettings(**POD))
    assert expected in output
    assert "\n" not in output


ACCOUNT = "Service account me@p does not exist or you do not have permission to act as it"


@pytest.mark.parametrize("patience", [300.0, 0.0])
async def test_a_new_service_account_is_waited_for_some_minutes(api, play, monkeypatch, patience):
    monkeypatch.setattr("snakemake_executor_plugin_tpu.capacity.ACCOUNT_SECONDS", patience)
    api.fail(2, "PERMISSION_DENIED", ACCOUNT, "CreateQueuedResource")
    async with play(service_account="me@p") as (_, capacity, output):
        if not patience:
            with pytest.raises(CloudError, match="Not allowed to start hosts that act as me@p"):
                await capacity.wait()
            return
        assert (await capacity.wait()).is_ready
    assert sum("Google does not know me@p yet: a new account takes" in line for line in output) == 2


async def test_too_many_requests_are_said_as_such(api, play, monkeypatch):
    monkeypatch.setattr("snakemake_executor_plugin_tpu.cloud.TELL_AFTER", 1)
    api.fail(1, "RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'Read requests' per minute")
    async with play() as (cloud, _, output):
        assert (await cloud.describe()).is_absent
    assert output[0].startswith("The project p asks Google too often since")


def test_calls_need_published_permissions_only():
    """Cloud TPU has no permissions for queued resources: a role with one cannot be created."""
    assert set(TPU_METHODS.values()) <= TPU_PERMISSIONS == ROLES["roles/tpu.admin"]
    assert not any("queued" in permission for permission in TPU_PERMISSIONS)


async def test_the_least_roles_suffice(api, play):
    api.roles = {"roles/tpu.admin", "roles/iam.serviceAccountUser"}

    async with play(service_account="me@p") as (cloud, capacity, _):
        assert (await capacity.wait()).is_ready
        await cloud.delete()
