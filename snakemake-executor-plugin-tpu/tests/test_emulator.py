"""The emulator's own commands."""

import json
import subprocess
import sys

import pytest

from snakemake_executor_plugin_tpu.emulator import why_not

pytestmark = [pytest.mark.full, pytest.mark.skipif(bool(why_not()), reason=why_not() or "")]


def test_a_pod_from_a_shell(tmp_path):
    def command(*words: str, code: int = 0) -> dict:
        program = [sys.executable, "-m", "snakemake_executor_plugin_tpu.emulator", *words, "--dir", "pod"]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout.startswith("{") else {}

    command("status", code=1)
    command("up", "--accelerator-type", "v4-16")
    try:
        assert "SNAKEMAKE_TPU_SSH_KEY" in (tmp_path / "pod" / "environment").read_text()
        assert command("status")["hosts"] == {"w0": "up", "w1": "up"}
        assert command("kill", "1")["hosts"] == {"w0": "up", "w1": "down"}
        assert command("restart", "1")["hosts"] == {"w0": "up", "w1": "up"}
        assert command("drop")["dropped"] == 0
        (state,) = command("preempt")["nodes"].values()
        assert state == "PREEMPTED"
    finally:
        command("down")
    assert not (tmp_path / "pod" / "control").exists()
