"""Values that this version does not know: they are waited for and said, and `down` deletes in any state."""

import pytest

from snakemake_executor_plugin_tpu.cloud import LOST_NODE, LOST_QUEUED
from snakemake_executor_plugin_tpu.errors import gx, is_transient
from snakemake_executor_plugin_tpu.guarding import cost
from snakemake_executor_plugin_tpu.settings import ExecutorSettings

CODES = (*range(25), 99, 2**31 - 1)


@pytest.mark.filterwarnings("ignore:Unrecognized:UserWarning")  # proto-plus says so
@pytest.mark.parametrize("field", ["node", "health", "queued", "initiator"])
async def test_every_state_is_described_and_deleted(api, play, field):
    async with play() as (cloud, capacity, _):
        await capacity.wait()
        (node,), (queued,) = api.nodes.values(), api.queued.values()
        good = (node._pb.state, node._pb.health, queued._pb.state.state, queued._pb.state.state_initiator)
        for code in CODES:
            node._pb.state, node._pb.health, queued._pb.state.state, queued._pb.state.state_initiator = good
            if field in ("node", "health"):
                setattr(node._pb, {"node": "state"}.get(field, field), code)
            else:
                setattr(queued._pb.state, {"queued": "state", "initiator": "state_initiator"}[field], code)
            state = await cloud.describe()
            assert str(state)
            lost = state.node in LOST_NODE or state.queued in LOST_QUEUED
            assert state.is_lost == lost
            assert not (lost and "UNKNOWN_" in str(state))
        assert (await cloud.delete()).is_absent  # in the last of these states
    assert not api.nodes


def test_an_unknown_type_of_slice_costs_money():
    settings = ExecutorSettings(project="p", zone="z", name="pod", bucket="bucket", prices="v4=3")
    assert cost(settings, "v9z-16") == "costs money"
    assert cost(settings, "v4-8") == "costs 12.00 USD an hour"


class Strange(gx.GoogleAPICallError):
    code = 599


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        *((Strange("the frobnicator is warming up"), True), (gx.ServiceUnavailable("x"), True)),
        *((gx.Cancelled("x"), True), (gx.ResourceExhausted("Quota exceeded for requests per minute"), True)),
        *((gx.ResourceExhausted("Quota for chips"), False), (gx.PermissionDenied("x"), False)),
        *((gx.InvalidArgument("x"), False), (gx.OutOfRange("x"), False), (gx.NotFound("x"), False)),
    ],
)
def test_an_unknown_error_is_waited_for_and_a_known_refusal_is_not(error, transient):
    assert is_transient(error) == transient
