"""The command, alone and with two workers."""

import json

from tests.shell import python

LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def preflight(tmp_path, *options, before=()):
    own = ("--profile", "local", "--scratch", tmp_path, "--disk-gib", "0.01", "--out", tmp_path / "rows.json")
    return python(*before, "-m", "trm", "preflight", *own, *options)


def test_two_workers_agree_on_green(tmp_path):
    done = preflight(tmp_path, "--devices", "2", before=LAUNCHER)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert all(row["green"] for row in rows)
    assert "same gradient in 2 processes" in done.stdout


def test_a_red_row_fails_the_command_and_writes_nothing(tmp_path):
    done = preflight(tmp_path, "--memory-gib", "1e6")
    assert done.returncode == 1
    assert "RED    memory" in done.stdout
    assert not (tmp_path / "rows.json").exists()
