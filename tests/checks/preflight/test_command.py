"""The command, alone and with two workers."""

import json

from tests.shell import python
from trm.checks.preflight import work
from trm.cli import main

LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def words(tmp_path):
    scratch = ("--scratch", str(tmp_path), "--disk-gib", "0.01", "--out", str(tmp_path / "rows.json"))
    return ["preflight", "--profile", "local", *scratch]


def test_two_workers_agree_on_green(tmp_path):
    done = python(*LAUNCHER, "-m", "trm", *words(tmp_path), "--devices", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert all(row["green"] for row in rows)
    assert "same gradient in 2 processes" in done.stdout


def test_a_red_row_fails_the_command_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(work, "CHECKS", {"memory": work.CHECKS["memory"]})
    assert main([*words(tmp_path), "--memory-gib", "1e6"]) == 1
    assert "RED    memory" in capsys.readouterr().out
    assert not (tmp_path / "rows.json").exists()
