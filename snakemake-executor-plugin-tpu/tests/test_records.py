"""Budgets of relaunches, and what survives a controller."""

import contextlib
import sys
from dataclasses import fields

import pytest
import snakemake.cli
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from snakemake_executor_plugin_tpu.__main__ import parse
from snakemake_executor_plugin_tpu.executor import read_secrets
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
    ],
)
def test_settings_that_cannot_work_are_refused(values, message):
    with pytest.raises(WorkflowError, match=message):
        ExecutorSettings(**values)


def test_secrets_are_read_from_a_file_that_others_cannot_read(tmp_path):
    path = tmp_path / "secrets"
    path.write_text("# for W&B\nWANDB_API_KEY=abc=d\n")
    with pytest.raises(WorkflowError, match=f"Others can read the secrets in .*chmod 600 {path}"):
        read_secrets(str(path))
    path.chmod(0o600)
    assert read_secrets(str(path)) == {"WANDB_API_KEY": "abc=d"}
    path.write_text("no equals sign\n")
    with pytest.raises(WorkflowError, match="has a line that is not NAME=VALUE"):
        read_secrets(str(path))
    with pytest.raises(WorkflowError, match="cannot be read"):
        read_secrets(str(tmp_path / "none"))


SAMPLES = {
    "project": "my-project",
    "zone": "us-central2-b us-east5-a",
    "name": "123",
    "end": "2026-12-31",
    "pool": "[v4-8 x 2, v6e-16 @ us-east5-a using my-image]",
    "adopt": "delete-allowed",
    "provisioning": "reserved",
    "stream": "first",
    "folder": "here",
    "prices": "v4=3.22",
    "accelerator-type": "v4-16",
    "ssh-user": "me",
}


def both_doors(folder, monkeypatch, text: str):
    """Return the settings of a profile as Snakemake reads them, and as the plugin's commands do."""
    (folder / "config.yaml").write_text(text)
    _, here = parse(["status", "--profile", str(folder)])
    seen = []
    monkeypatch.setattr("snakemake.cli.args_to_api", lambda args, parser: seen.append(args) or True)
    monkeypatch.setattr(sys, "argv", ["snakemake"])
    monkeypatch.chdir(folder)
    with contextlib.suppress(SystemExit):
        snakemake.cli.main(["--profile", str(folder), "--executor", "tpu", "--jobs", "1"])
    return ExecutorPluginRegistry().get_plugin("tpu").get_settings(seen[0]), here


def test_every_setting_means_the_same_through_both_doors(tmp_path, monkeypatch):
    """A profile is read by Snakemake and by the plugin's commands; YAML makes dates and numbers of some values."""
    lines = []
    for item in fields(ExecutorSettings):
        name = item.name.replace("_", "-")
        kind = item.metadata.get("type")
        lines.append(f"tpu-{name}: {SAMPLES.get(name, {int: 11, float: 7.5, str: 'word'}.get(kind, 'true'))}")
    there, here = both_doors(tmp_path, monkeypatch, "\n".join(lines))
    differing = {item.name for item in fields(here) if getattr(there, item.name) != getattr(here, item.name)}
    assert differing <= {"pool"}  # a list, and its text
    assert [one.name for one in there.slices()] == [one.name for one in here.slices()]
    default = ExecutorSettings()
    unchanged = {
        item.name for item in fields(here) if getattr(here, item.name) == getattr(default, item.name)
    }
    assert not unchanged


@pytest.mark.parametrize(
    "end", ["2026-12-31", "2026-12-31T18:00:00Z", "2026-12-31T18:00", "2026-12-31 18:00:00", "'2026-12-31'"]
)
def test_dates_in_yaml(end, tmp_path, monkeypatch):
    there, here = both_doors(tmp_path, monkeypatch, f"tpu-end: {end}\n")
    assert there.end_time() == here.end_time() > 0


def test_a_number_that_is_none_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("tpu-lease: long\n")
    with pytest.raises(WorkflowError, match="tpu-lease is 'long': write a number"):
        parse(["status", "--profile", str(tmp_path)])


def test_a_variable_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_TPU_SSH_PORT", "ssh")
    with pytest.raises(WorkflowError, match="SNAKEMAKE_TPU_SSH_PORT is 'ssh': write a number"):
        parse(["status"])


def test_the_file_of_a_profile_is_the_one_that_snakemake_reads(tmp_path, monkeypatch):
    (tmp_path / "config.v8+.yaml").write_text("tpu-name: eight\n")
    (tmp_path / "config.v999+.yaml").write_text("tpu-name: later\n")
    there, here = both_doors(tmp_path, monkeypatch, "tpu-name: seven\n")
    assert there.name == here.name == "eight"


def test_a_pod_deletes_itself_unless_told_otherwise():
    assert ExecutorSettings().idle_delete == 30
    assert not ExecutorSettings(idle_delete=0).is_guarded


def test_settings_without_a_pod_say_what_is_missing():
    with pytest.raises(WorkflowError, match="set tpu-project, tpu-name in the profile"):
        ExecutorSettings(zone="z").check_pod()
