"""Budgets of relaunches, and what survives a controller."""

import pytest
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_tpu.__main__ import parse
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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"provisioning": "cheap"}, "use spot or on-demand or reserved"),
        ({"folder": "a b; rm"}, "letters, digits"),
        ({"folder": "../x"}, "letters, digits"),
        ({"end": "soon"}, "use 2026-12-31 or"),
        ({"lease": -1}, "cannot be negative"),
        ({"prices": "v4:3"}, "write FAMILY=USD"),
        ({"accelerator_type": "v4-63"}, "There is no slice"),
    ],
)
def test_settings_that_cannot_work_are_refused(values, message):
    with pytest.raises(WorkflowError, match=message):
        ExecutorSettings(**values)


def test_profile_environment_and_command_line_give_the_settings(tmp_path, monkeypatch):
    """As with Snakemake, whose parser reads the profile: what concerns others is left out."""
    monkeypatch.setenv("SNAKEMAKE_TPU_PROJECT", "from-the-environment")
    text = "executor: tpu\nresources:\n  tpu_hosts: 3\nforce: true\ntpu-name: 123\ntpu-zone: z\n"
    text += "tpu-lease: 5\ntpu-create: true\n"
    (tmp_path / "config.yaml").write_text(text)
    args, found = parse(["ssh", "--profile", str(tmp_path), "--lease", "7", "0", "--", "ls", "--all"])
    assert (args.command, args.words, args.force) == ("ssh", ["0", "ls", "--all"], False)
    assert (found.project, found.name, found.zone) == ("from-the-environment", "123", "z")
    assert (found.lease, found.create, found.grace) == (7, True, 30)
    for words, said in (
        (["frob"], "frob is no command: use one of up, status"),
        (["status", "--lease", "x"], "invalid int value: 'x'"),
        (["status", "--profile", str(tmp_path / "none")], "There is no Snakemake profile at"),
    ):
        with pytest.raises(WorkflowError, match=said):
            parse(words)
    (tmp_path / "config.yaml").write_text("tpu-end: {bad\n")
    with pytest.raises(WorkflowError, match="Couldn't parse config file"):
        parse(["status", "--profile", str(tmp_path)])


@pytest.mark.parametrize(
    "end", ["2026-12-31", "2026-12-31T18:00:00Z", "2026-12-31T18:00", "2026-12-31 18:00:00", "'2026-12-31'"]
)
def test_dates_in_yaml(end, tmp_path):
    (tmp_path / "config.yaml").write_text(f"tpu-end: {end}\n")
    assert parse(["status", "--profile", str(tmp_path)])[1].end_time() > 0


def test_the_file_of_a_profile_is_the_one_that_snakemake_reads(tmp_path):
    (tmp_path / "config.v8+.yaml").write_text("tpu-name: eight\n")
    (tmp_path / "config.v999+.yaml").write_text("tpu-name: later\n")
    (tmp_path / "config.yaml").write_text("tpu-name: seven\n")
    assert parse(["status", "--profile", str(tmp_path)])[1].name == "eight"


def test_a_pod_deletes_itself_unless_told_otherwise():
    assert ExecutorSettings().idle_delete == 30
    assert not ExecutorSettings(idle_delete=0).is_guarded


def test_settings_without_a_pod_say_what_is_missing():
    with pytest.raises(WorkflowError, match="set tpu-project, tpu-name in the profile"):
        ExecutorSettings(zone="z").check_pod()
