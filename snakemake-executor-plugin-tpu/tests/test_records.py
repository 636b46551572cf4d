"""Budgets of relaunches, and what survives a controller."""

import pytest
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_tpu.jobs import ran_out_of_memory
from snakemake_executor_plugin_tpu.records import JobRecord, is_newer
from snakemake_executor_plugin_tpu.settings import ExecutorSettings


def test_progress_is_a_number_or_text():
    assert is_newer("1", None)
    assert is_newer("10", "9")
    assert not is_newer("9", "10")
    assert is_newer("epoch b", "epoch a")
    assert not is_newer(None, "1")


def test_record_survives_and_launch_numbers_never_repeat(tmp_path):
    record = JobRecord.load(tmp_path / "job.json")
    assert record.next_launch() == 1
    record.report("5")
    again = JobRecord.load(tmp_path / "job.json")
    assert (again.launch, again.progress) == (1, "5")
    assert again.next_launch(seen=7) == 8
    again.finish()
    assert JobRecord.load(tmp_path / "job.json").next_launch() == 9


def test_budgets(tmp_path):
    record = JobRecord.load(tmp_path / "job.json")
    for step in range(3):
        record.report(str(step))
        assert record.count_loss("preempted", preemptions=3, stalled=1) is None
    assert record.count_loss("preempted", preemptions=99, stalled=1) is None  # the first without progress
    assert "without a newer checkpoint" in record.count_loss("lost w3", preemptions=99, stalled=1)
    record.report("7")
    assert "raise tpu-preemptions" in record.count_loss("preempted", preemptions=3, stalled=1)


def test_out_of_memory_is_recognised():
    assert ran_out_of_memory(137, [])
    assert ran_out_of_memory(1, ["RuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 3.2G"])
    assert not ran_out_of_memory(1, ["ValueError: no"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"provisioning": "cheap"}, "use spot, on-demand or reserved"),
        ({"folder": "a b; rm"}, "letters, digits"),
        ({"folder": "../x"}, "letters, digits"),
        ({"adopt": "yes"}, "use-only or delete-allowed"),
        ({"end": "soon"}, "a date such as 2026-12-31"),
        ({"lease": -1}, "cannot be negative"),
        ({"prices": "v4:3"}, "write FAMILY=USD"),
        ({"stream": "some"}, "all, first or none"),
        ({"accelerator_type": "v4-63"}, "There is no slice"),
        ({"workers": "w0", "project": "p"}, "remove tpu-project"),
    ],
)
def test_settings_that_cannot_work_are_refused(values, message):
    with pytest.raises(WorkflowError, match=message):
        ExecutorSettings(**values)


def test_settings_without_a_pod_say_what_is_missing():
    with pytest.raises(WorkflowError, match="set tpu-project, tpu-name in the profile"):
        ExecutorSettings(zone="z").check_pod()
    ExecutorSettings(workers="w0 w1").check_pod()
