"""Hosts that are set aside, outputs that decide, and what ssh makes of a hostile configuration."""

import asyncio
import subprocess
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from snakemake_executor_plugin_tpu.allocation import Allocator
from snakemake_executor_plugin_tpu.cloud import Endpoint
from snakemake_executor_plugin_tpu.errors import DeletedByUser, HostKeyError
from snakemake_executor_plugin_tpu.health import Health
from snakemake_executor_plugin_tpu.jobs import JobRequest, JobRun
from snakemake_executor_plugin_tpu.lifecycle import PodManager
from snakemake_executor_plugin_tpu.outputs import Outputs
from snakemake_executor_plugin_tpu.records import JobRecord
from snakemake_executor_plugin_tpu.settings import ExecutorSettings
from snakemake_executor_plugin_tpu.ssh import control_of, release_folder, write_config

HOSTS = [("pod", host) for host in range(4)]
START = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = """Host *
 RemoteCommand tmux new -A -s main
 RequestTTY force
 SessionType none
 StdinNull yes
 ForkAfterAuthentication yes
 PermitLocalCommand yes
 LocalCommand touch pwned
 ControlMaster no
 LogLevel VERBOSE
 ForwardAgent yes
 KnownHostsCommand /bin/false
 PreferredAuthentications password
 ExitOnForwardFailure yes
 VisualHostKey yes
"""


def test_a_host_is_set_aside_for_jobs_of_different_names_that_fail_only_there():
    said = []
    health = Health(said.append)
    assert not health.note("a", HOSTS[0], True, 4)
    assert HOSTS[0] not in health.usable("a", HOSTS)  # a retry goes elsewhere
    assert HOSTS[0] in health.usable("b", HOSTS)
    assert not health.note("a", HOSTS[1], True, 4)  # so the job is to blame
    assert not health.note("b", HOSTS[0], True, 4)
    assert health.note("c", HOSTS[0], True, 4)
    health.set_aside(HOSTS[0], "two jobs failed")
    assert HOSTS[0] not in health.usable("d", HOSTS)
    assert health.usable("d", HOSTS[:1]) == {HOSTS[0]}  # rather than none
    assert "w0 of pod is set aside (two jobs failed)" in health.words("pod")
    health.restore(HOSTS[0])
    assert health.words() == ""
    health.note("b", HOSTS[2], True, 4)
    health.note("x", HOSTS[2], False, 4)
    assert not health.note("c", HOSTS[2], True, 4)  # it works for others


def bucket(**objects):
    """Return a client of a bucket with these objects: age in seconds after the start of the launch, and content."""
    blobs = {
        name: SimpleNamespace(
            updated=START + timedelta(seconds=after), download_as_bytes=lambda text=text: text.encode()
        )
        for name, (after, text) in objects.items()
    }
    return SimpleNamespace(bucket=lambda name: SimpleNamespace(get_blob=blobs.get))


@pytest.mark.parametrize(
    ("record", "out", "code"),
    [
        ('"state": "started"', 5, 0),  # no record of the end: complete outputs decide
        ('"state": "started"', -5, None),  # they are of an earlier launch
        ('"state": "ended", "code": 1, "reason": "shutdown", "tail": ""', 5, 0),
        ('"state": "ended", "code": 1, "reason": "exited", "tail": ""', -5, 1),
        ('"state": "ended", "code": 0, "reason": "exited", "tail": ""', -5, None),  # somebody deleted them
    ],
)
def test_outputs_and_record_decide_how_a_launch_ended(record, out, code):
    text = f'{{"launch": 2, "fingerprint": "f", "since": "{START.isoformat()}", {record}}}'
    outputs = Outputs(bucket(r=(9, text), o=(out, "")), (("b", "o"),), ("b", "r"))
    found = outputs.end_of(2, "f")
    assert (found and found["code"]) == code
    assert outputs.end_of(1, "f") is None
    assert outputs.end_of(2, "other") is None


KEYS = ("ssh-ed25519 A",), ("ssh-ed25519 B",)


@pytest.mark.parametrize(
    "replaced", [Endpoint("10.0.0.9", "", KEYS[0]), Endpoint("10.0.0.1", "", KEYS[1]), None]
)
def test_a_replaced_host_is_found_by_its_other_address_or_key(tmp_path, monkeypatch, replaced):
    """The API gives the new key some time after the host shows it; an intercepted connection stays refused."""
    manager = PodManager(ExecutorSettings(project="p", zone="z", name="pod"), tmp_path, lambda line: None)
    first, tried = Endpoint("10.0.0.1", "", KEYS[0]), []
    told = [first, first, first, replaced or first]

    async def endpoints():
        return [told.pop(0) if len(told) > 1 else told[0]]

    async def until_up(worker, patience):
        tried.append(manager._endpoints)
        if manager._endpoints == [first]:
            raise HostKeyError("w0 shows another host key")

    async def look(pod, patience, all_needed):
        pod.status = [{"tasks": {}}]

    monkeypatch.setattr(manager, "_until_up", until_up)
    monkeypatch.setattr(manager, "_look", look)
    manager.cloud = SimpleNamespace(endpoints=endpoints, name="pod", incarnation="1", poll_seconds=(0.0, 0.0))

    async def play():
        try:
            await manager._connect(1.0)
        finally:
            for ssh in manager._opened:
                await ssh.close()

    if replaced:
        asyncio.run(play())
        assert tried == [[first], [replaced]]
        return
    with pytest.raises(HostKeyError):
        asyncio.run(play())
    assert tried == [[first]]


def test_no_configuration_of_ssh_breaks_a_command(tmp_path):
    include = tmp_path / "hostile"
    include.write_text(HOSTILE)
    config = write_config(tmp_path / "ssh", [Endpoint("127.0.0.1")], include=include)
    try:
        done = subprocess.run(["ssh", "-F", config, "-G", "w0"], capture_output=True, text=True, check=True)
    finally:
        release_folder(control_of(config))
    found = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    expected = {"sessiontype": "default", "stdinnull": "no", "forkafterauthentication": "no"}
    expected |= {
        "permitlocalcommand": "no",
        "controlmaster": "auto",
        "loglevel": "ERROR",
        "requesttty": "auto",
    }
    expected |= {"forwardagent": "no", "preferredauthentications": "publickey", "visualhostkey": "no"}
    assert expected.items() <= found.items()
    assert found.get("remotecommand", "none") == "none"
    assert found.get("knownhostscommand", "none") == "none"


@pytest.mark.parametrize(
    ("ends", "ok", "asked"),
    [
        ([{"code": 0}], True, 0),  # the repeated command adopts it and asks for no pod
        ([None, {"code": 0}], True, 1),  # the pod is gone, the result is there
        ([{"code": 3, "reason": "exited", "tail": "no luck"}, None], False, 1),
        ([None, None], False, 1),
    ],
)
def test_the_bucket_is_asked_before_the_pod_and_before_a_failure_is_reported(tmp_path, ends, ok, asked):
    said, placed = [], []

    async def place(*_):
        placed.append(1)
        raise DeletedByUser("TPU pod pod was deleted")

    member = SimpleNamespace(allocator=Allocator(1))
    outputs = SimpleNamespace(end_of=lambda launch, fingerprint: ends.pop(0))
    request = JobRequest("slot", "f", "job", 1, "true", {}, b"", outputs=outputs)
    record = JobRecord(tmp_path / "record", launch=2, hosts=[0])
    pool = SimpleNamespace(members=[member], place=place)
    outcome = asyncio.run(JobRun(request, pool, record, tmp_path, ExecutorSettings(), said.append).run())
    assert (outcome.ok, len(placed)) == (ok, asked)
    assert ok == any("has stored its outputs: they count" in line for line in said)
    assert ok == (record.hosts == [])
