"""The ssh key: made if there is none, and refused in one sentence if it cannot be used."""

import re
import subprocess

import pytest
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_tpu import ExecutorSettings
from snakemake_executor_plugin_tpu.__main__ import main
from snakemake_executor_plugin_tpu.errors import PodError
from snakemake_executor_plugin_tpu.keys import public_half


def test_key_is_made_once(tmp_path):
    output, key = [], tmp_path / ".ssh" / "snakemake_tpu"
    public = public_half(key, output.append)
    assert re.fullmatch(r"ssh-ed25519 \S+", public)
    assert key.stat().st_mode & 0o077 == 0
    assert key.parent.stat().st_mode & 0o077 == 0
    assert output == [f"Made the ssh key {key}: its public half is put onto slices created from here"]
    key.with_name("snakemake_tpu.pub").unlink()  # the private half tells it, too
    assert public_half(key, output.append) == public
    assert len(output) == 1


def test_key_nobody_can_use_is_refused(tmp_path):
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    with pytest.raises(PodError, match="passphrase.* set tpu-ssh-key to another key"):
        public_half(key, print)
    key.write_text("no key at all")
    with pytest.raises(PodError, match="cannot be used .*: set tpu-ssh-key"):
        public_half(key, print)
    key.unlink()
    with pytest.raises(PodError, match="without its private half"):
        public_half(key, print)


def test_users_that_hosts_do_not_let_in():
    with pytest.raises(WorkflowError, match="tpu-ssh-user is 'root'"):
        ExecutorSettings(ssh_user="root")
    assert ExecutorSettings().login[0] == "snakemake"


def test_pod_is_entered_with_a_new_key(healthy_pod, people, tmp_path, monkeypatch, capfd):
    healthy_pod.api.nodes.clear()
    healthy_pod.api.queued.clear()
    key = tmp_path / "made" / "key"
    monkeypatch.setenv("SNAKEMAKE_TPU_SSH_KEY", str(key))
    try:
        words = ("--accelerator-type", "v4-32")
        assert main(["up", *words]) == 0
        assert f"Made the ssh key {key}" in capfd.readouterr().err
        # as nobody else and with no other key
        address = ("-p", "2222", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no")
        address += ("-o", "UserKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes")
        host = healthy_pod.hosts[0].address
        for user, private, code in (
            ("snakemake", key, 0),
            ("root", key, 255),
            ("snakemake", healthy_pod.key, 255),
        ):
            done = subprocess.run(
                ["ssh", *address, "-i", private, f"{user}@{host}", "true"], capture_output=True
            )
            assert done.returncode == code, (user, done.stderr)
    finally:
        healthy_pod.api.nodes.clear()  # made anew, with the key that other tests have


@pytest.mark.parametrize(
    ("setting", "content", "said"),
    [
        ("SSH_KEY", "no key at all", "set tpu-ssh-key to another key"),
        ("SSH_CONFIG", "NoSuchOption yes", "correct tpu-ssh-config"),
    ],
)
def test_nothing_is_created_without_a_usable_ssh(
    healthy_pod, people, tmp_path, monkeypatch, capfd, setting, content, said
):
    healthy_pod.api.nodes.clear()
    healthy_pod.api.queued.clear()
    (tmp_path / "file").write_text(content)
    monkeypatch.setenv(f"SNAKEMAKE_TPU_{setting}", str(tmp_path / "file"))
    assert main(["up", "--accelerator-type", "v4-32"]) == 1
    assert said in capfd.readouterr().err
    assert not healthy_pod.api.queued
