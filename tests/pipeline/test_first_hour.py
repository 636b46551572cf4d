"""The first hour: it asks before it costs anything, and always deletes the slice."""

import json
import shutil
import sys
from datetime import datetime

import pytest

from tests.pipeline.conftest import ROOT
from trm.cli import main
from trm.errors import UserError
from trm.pipeline.cloud import slice_usd, tpu_prices
from trm.pipeline.first_hour import FirstHour, read_plan

PLAN = "accelerator_type: v4-16\nsteps:\n  one: target\n"


@pytest.fixture
def hour(profile, monkeypatch):
    """Runs a first hour whose programs are Python code by command; returns whether it went well, and what it said."""

    def run(job="pass", **programs):
        def command(self, name, *words):
            return [sys.executable, "-c", programs.get(name, f"print('did {name}')")]

        monkeypatch.setattr(FirstHour, "_command", command)
        monkeypatch.setattr(FirstHour, "_snakemake", lambda self, targets: [sys.executable, "-c", job])
        output = []
        return FirstHour(profile, "pod", output.append).run(profile / "out.json"), output

    return run


@pytest.fixture
def profile(tmp_path, monkeypatch):
    (tmp_path / "first-hour.yaml").write_text(PLAN)
    (tmp_path / "config.yaml").write_text("tpu-project: p\ntpu-zone: z\ntpu-name: pod\n")
    (tmp_path / "config").mkdir()
    shutil.copy(ROOT / "config" / "hardware.yaml", tmp_path / "config")
    monkeypatch.setenv("SNAKEMAKE_TPU_NAME", "pod")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_prices_are_those_of_the_plan(profile):
    assert slice_usd("v4-8") == pytest.approx(12.88)
    assert slice_usd("v4-64") == pytest.approx(103.04)
    assert slice_usd("v5litepod-16") == pytest.approx(19.2)
    assert tpu_prices(spot=True)["v4"] == 0.9215
    with pytest.raises(UserError, match="no price of v3"):
        slice_usd("v3-8")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("steps: {}\n", "name at least one"), ("steps: {a: b}\nstep: 1\n", "'step' is an unknown key")],
)
def test_invalid_plans_are_refused(profile, text, sentence):
    (profile / "first-hour.yaml").write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_plan(profile)
    (profile / "first-hour.yaml").unlink()
    with pytest.raises(UserError, match="it says what runs in the first hour"):
        read_plan(profile)


def test_nothing_starts_without_a_yes(profile, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["first-hour", "--profile", str(profile)]) == 1
    output = capsys.readouterr().out
    assert "pod-first-hour (v4-16, 2 hosts, 25.76 USD an hour on demand" in output
    assert "Nothing was created" in output


def test_a_profile_with_a_pool_is_refused(profile, capsys):
    with (profile / "config.yaml").open("a") as file:
        file.write("tpu-pool: v4-8 x 8\n")
    assert main(["first-hour", "--yes", "--profile", str(profile)]) == 2
    assert "give a profile without tpu-pool" in capsys.readouterr().err


def test_the_slice_is_deleted_and_the_record_written_when_a_step_fails(profile, hour):
    ok, output = hour(ssh="raise SystemExit(1)")
    record = json.loads((profile / "out.json").read_text())
    assert ok is record["ok"] is False
    steps = [(step["name"], step["code"]) for step in record["steps"]]
    assert steps == [("create", 0), ("hosts", 1), ("delete", 0)]
    assert any("hosts ended with exit code 1" in line for line in output)
    assert output[-1].endswith(f"USD at most: send the file {profile}/out.json, it holds everything.")


def test_a_step_is_stopped_when_the_hours_are_over(profile, hour, monkeypatch):
    """And the slice is deleted, for which there is always time."""
    (profile / "first-hour.yaml").write_text(f"hours: 0\n{PLAN}")
    announced = FirstHour(profile, "pod", print).announce()
    assert "at the end, after 0 h at the latest: 0 USD at most" in announced
    monkeypatch.setattr("trm.pipeline.first_hour.GRACE", 0)  # a child of a background job ignores Ctrl-C
    ok, output = hour(up="import signal; signal.pause()")
    assert not ok
    assert "The 0 h of the plan were over during create" in output
    assert "    did down" in output


def test_a_job_that_ends_before_its_interruption_is_reported(hour):
    ok, output = hour()
    assert not ok
    assert any("one ended before it had a checkpoint" in line for line in output)


def test_the_hosts_know_when_the_hours_end(profile):
    """A computer that dies in the middle must not leave the slice running until the lease of its jobs ends."""
    first_hour = FirstHour(profile, "pod", print)
    commands = {"--end": first_hour._command("up"), "--tpu-end": first_hour._snakemake("target")}
    for option, command in commands.items():
        end = datetime.fromisoformat(command[command.index(option) + 1])
        assert end.timestamp() == pytest.approx(first_hour.began + 3600, abs=1)


def test_a_slice_that_could_not_be_deleted_under_the_job_is_reported(hour, monkeypatch):
    """Nothing was interrupted, so nothing was seen to resume."""
    progress = iter([{}])
    monkeypatch.setattr("trm.pipeline.first_hour._progress", lambda jobs: next(progress, {"a.json": "3"}))
    # the job goes on until the deletion has been tried
    job = "import pathlib, time\nwhile not pathlib.Path('tried').exists(): time.sleep(0.01)"
    ok, output = hour(job, down="open('tried', 'w'); raise SystemExit('denied')")
    assert not ok
    assert any("could not be deleted under one" in line and "denied" in line for line in output)
