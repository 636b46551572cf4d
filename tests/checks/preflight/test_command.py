"""The command, alone and with two workers."""

import json
import subprocess
import sys
from pathlib import Path


def test_two_workers_agree_on_green(tmp_path: Path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--profile", "local", "--scratch", str(tmp_path), "--devices", "2", "--disk-gib", "0.01"]
    command = [*launcher, "-m", "trm", "preflight", *options, "--out", str(tmp_path / "rows.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert all(row["green"] for row in rows)
    assert "same gradient in 2 processes" in done.stdout


def test_a_red_row_fails_the_command_and_writes_nothing(tmp_path: Path):
    options = ["--profile", "local", "--scratch", str(tmp_path), "--memory-gib", "1e6", "--disk-gib", "0.01"]
    command = [sys.executable, "-m", "trm", "preflight", *options, "--out", str(tmp_path / "rows.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "RED    memory" in done.stdout
    assert not (tmp_path / "rows.json").exists()
