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
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=240)
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


REPLACED = """
import subprocess, sys
from pathlib import Path
from snakemake_executor_plugin_tpu.emulator import EmulatedPod

with EmulatedPod(Path(sys.argv[1]), "v4-8") as pod:
    pod.create()
    subprocess.run("cp -p /etc/passwd /etc/passwd.new; mv /etc/passwd.new /etc/passwd", shell=True, check=True)
    print(pod.hosts[0].enter("id", "-un", "snakemake").stdout)
"""


def test_hosts_keep_their_users_when_this_machine_gets_one(tmp_path):
    """Programs such as useradd replace /etc/passwd, which removes what is mounted over it in any namespace."""
    copy = 'cp -a /etc "$0" && mount --bind "$0" /etc && exec "$@"'
    program = [sys.executable, "-c", REPLACED, str(tmp_path / "pod")]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", copy, str(tmp_path / "etc"), *program],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.strip() == "snakemake", done.stderr
