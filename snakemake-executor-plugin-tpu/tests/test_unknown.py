"""Values that this version does not know: they are waited for and said, and `down` deletes in any state."""

import json

import pytest

from snakemake_executor_plugin_tpu.__main__ import _describe
from snakemake_executor_plugin_tpu.claim import name_of
from snakemake_executor_plugin_tpu.cloud import LOST_NODE, LOST_QUEUED
from snakemake_executor_plugin_tpu.errors import explain, gx, is_refused, is_transient
from snakemake_executor_plugin_tpu.guarding import cost, guard_in_words, guard_trouble
from snakemake_executor_plugin_tpu.records import JobRecord
from snakemake_executor_plugin_tpu.settings import ExecutorSettings
from snakemake_executor_plugin_tpu.worker import tasks

CODES = (*range(25), 99, 2**31 - 1)


@pytest.mark.filterwarnings("ignore:Unrecognized:UserWarning")  # proto-plus says so
@pytest.mark.parametrize("field", ["node", "health", "queued", "initiator"])
def test_every_state_is_described_and_deleted(api, play, field):
    async def story(cloud, capacity):
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
        return await cloud.delete()  # in the last of these states

    assert play(story)[0].is_absent
    assert not api.nodes


STRANGE = ["", "x", "[]", "1", "null", "{}", '{"code": "?", "who": 1, "new": {"a": 1}}']


@pytest.mark.parametrize("text", STRANGE)
def test_files_of_another_version_are_no_error(tmp_path, monkeypatch, text):
    monkeypatch.setattr(tasks, "SHARED", tmp_path)
    monkeypatch.setattr(tasks, "is_locked", lambda path: True)
    for name in ("controller", "a-task", "exit", "record"):
        (tmp_path / name).write_text(text + "\n")
    assert isinstance(name_of(tasks.owner_of_pod() or {}), str)
    assert all(task["state"] == "running" for task in tasks.tasks_of_others().values())
    if (record := tasks.read_exit(tmp_path)) is not None:
        assert record["code"] == 127
    assert JobRecord.load(tmp_path / "record").launch == 0
    found = json.loads(text) if text.startswith("{") else {}
    assert "deletes" in guard_in_words(found)
    assert guard_trouble([{"guard": found}]) == ""
    assert _describe({"t": {"state": "running", "slot": "t", **found}}).startswith("t (")


def test_an_unknown_type_of_slice_costs_money():
    settings = ExecutorSettings(project="p", zone="z", name="pod", prices="v4=3")
    assert cost(settings, "v9z-16") == "costs money"
    assert cost(settings, "v4-8") == "costs 12.00 USD an hour"


def test_an_unknown_error_is_waited_for_and_a_known_refusal_is_not():
    class Strange(gx.GoogleAPICallError):
        code = 599

    assert is_transient(Strange("the frobnicator is warming up"))
    assert not is_refused(Strange("x"))
    for refusal in (gx.PermissionDenied("x"), gx.InvalidArgument("x"), gx.OutOfRange("x"), gx.NotFound("x")):
        assert is_refused(refusal)
        assert not is_transient(refusal)
    settings = ExecutorSettings(project="p", zone="z", name="pod")
    assert "frobnicator" in explain(Strange("the frobnicator is warming up"), "create pod", settings)
