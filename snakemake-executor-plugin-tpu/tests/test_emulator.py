"""The emulator is as strict as Google, and its hosts die and boot as a whole."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from study import until

from snakemake_executor_plugin_tpu.cloud import TpuCloud
from snakemake_executor_plugin_tpu.emulator import EmulatedPod
from snakemake_executor_plugin_tpu.emulator.hosts import Host, processes_with
from snakemake_executor_plugin_tpu.emulator.pod import BUCKET, NAME, PROJECT, ZONE
from snakemake_executor_plugin_tpu.errors import CloudError
from snakemake_executor_plugin_tpu.settings import ExecutorSettings

PARENT = f"projects/{PROJECT}/locations/{ZONE}"
SCRIPT = """\
#!/usr/bin/env python3
import sys, time
print("boots on", sys.version_info[:2], flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    """Return a pod of two hosts with a startup script of its own."""
    with EmulatedPod(tmp_path_factory.mktemp("pod"), "v4-16") as pod:
        asyncio.run(create(pod))
        until(lambda: all(host.is_up and "boots on" in host.serial for host in pod.hosts))
        yield pod


@contextlib.asynccontextmanager
async def asked(pod, **settings):
    """Ask for a slice; yield the client."""
    where = {"project": PROJECT, "zone": ZONE, "name": NAME, "accelerator_type": pod.accelerator_type}
    endpoint = f"127.0.0.1:{pod.api.port}"
    cloud = TpuCloud(ExecutorSettings(**{**where, **settings}, api_endpoint=endpoint), print)
    await cloud.create({"startup-script": SCRIPT, "word": "own"})
    yield cloud
    await cloud.close()


async def create(pod):
    async with asked(pod) as cloud:
        while not (await cloud.describe()).is_ready:
            await asyncio.sleep(0.05)


def ask(url, data=None, method=None, **headers):
    """Return status and text of an answer."""
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metadata(host, key, **headers):
    return ask(f"http://{host.environment['GCE_METADATA_HOST']}/computeMetadata/v1/{key}", **headers)


def token(pod):
    text = metadata(pod.hosts[0], "instance/service-accounts/default/token", Metadata_Flavor="Google")[1]
    return {"Authorization": f"Bearer {json.loads(text)['access_token']}"}


def test_metadata_needs_its_header(pod):
    key, google = "instance/attributes/agent-worker-number", {"Metadata_Flavor": "Google"}
    assert [metadata(host, key, **google) for host in pod.hosts] == [(200, "0"), (200, "1")]
    assert metadata(pod.hosts[0], key)[0] == 403
    assert metadata(pod.hosts[0], key, **google, X_Forwarded_For="10.0.0.1")[0] == 403
    assert metadata(pod.hosts[0], "instance/attributes/absent", **google)[0] == 404
    assert metadata(pod.hosts[0], "instance/attributes/word", **google) == (200, "own")


def test_hosts_show_their_account_to_the_bucket(pod):
    url = f"{pod.gcs.url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=x"
    assert ask(url, b"1")[0] == 401
    assert ask(url, b"1", Authorization="Bearer stolen")[0] == 401
    assert ask(url, b"1", **token(pod))[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/upload/storage/v1/b/{}/o?uploadType=media&name=x&ifGenerationMatch=0"),
        ("POST", "/upload/storage/v1/b/{}/o?ifGenerationMatch=0&uploadType=media"),
        ("GET", "/storage/v1/b/{}/o/x?ifGenerationMatch=1"),
        ("DELETE", "/storage/v1/b/{}/o/x?ifGenerationMatch=1"),
    ],
)
def test_a_precondition_that_the_fake_ignores_is_refused(pod, method, path):
    data = b"1" if method == "POST" else None
    assert ask(f"{pod.gcs.url}{path.format(BUCKET)}", data, method, **token(pod))[0] == 501


@pytest.mark.parametrize("program", [("-c", "import tomllib"), ("-m", "venv", "x")])
def test_hosts_run_python_3_10_without_what_ubuntu_omits(pod, program):
    assert "boots on (3, 10)" in pod.hosts[0].serial
    python = ["python3", *program]
    done = subprocess.run(python, env=pod.hosts[0].environment, capture_output=True, text=True)
    assert "No module named" in done.stderr


def test_the_script_runs_at_each_boot_and_the_disk_stays(pod, monkeypatch):
    host = pod.hosts[1]
    (host.home / "kept").touch()
    (before,) = host.processes()
    looks, seen = [{}, {}], host.processes  # as if it were starting a program
    monkeypatch.setattr(host, "processes", lambda: looks.pop() if looks else seen())
    host.kill()
    assert not host.is_up
    assert not host.processes()
    host.boot()
    until(lambda: host.serial.count("boots on") == 2)
    assert (host.home / "kept").exists()
    assert before not in host.processes()


async def test_a_slice_that_the_emulator_does_not_have_waits_for_capacity(pod):
    async with asked(pod, name="second") as cloud:
        pod.api.created[cloud.queued_name] -= 3600
        state = await cloud.describe()
        assert (state.node, state.queued) == ("ABSENT", "WAITING_FOR_RESOURCES")
    with pytest.raises(CloudError, match="slices of this emulator have 2 hosts, and a v4-32 has more"):
        async with asked(pod, name="third", accelerator_type="v4-32"):
            pass


def test_a_pod_from_a_shell(tmp_path):
    program = [sys.executable, "-m", "snakemake_executor_plugin_tpu.emulator", "--accelerator-type", "v4-16"]
    words = "status\npreempt\noutage 0\nkill 1\nfly\nkill 7\ndown\nstatus\n"
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 240}
    said = subprocess.run([*program, "--dir", "pod"], input=words, **options)
    assert said.returncode == 0, said.stderr
    ready, *states = said.stdout.splitlines()
    assert ready == f"Bucket and TPU API are up. In another shell: . {tmp_path}/pod/environment"
    assert json.loads(states[0]) == {"hosts": {"w0": "down", "w1": "down"}, "nodes": {}, "jobs": 0}
    assert states[4].startswith("fly is no command; these are: down, freeze,")
    assert states[5] == "kill: list index out of range"
    assert len(states) == 6
    assert "SNAKEMAKE_TPU_BUCKET" in (tmp_path / "pod" / "environment").read_text()


def test_hosts_end_with_a_process_that_is_killed(tmp_path):
    program = f"""
import time
from pathlib import Path
from google.cloud import tpu_v2
from snakemake_executor_plugin_tpu.emulator import EmulatedPod
pod = EmulatedPod(Path({str(tmp_path)!r}), "v4-8").__enter__()
script = "#!/bin/sh\\nsetsid sleep 1000 &"
pod.hosts[0].boot(tpu_v2.Node(metadata={{"startup-script": script}}))
print("up", flush=True)
time.sleep(1000)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "up\n"
        mark = f"HOME={tmp_path}/w0/home"
        until(lambda: any("sleep" in line for line in processes_with(mark).values()))
        process.kill()
    until(lambda: not processes_with(mark))


def test_a_preemption_that_takes_long_leaves_what_has_booted_since_alone(tmp_path):
    one = Host(tmp_path, 0, SimpleNamespace(server_port=1), {}, None)
    one.deaf = True
    one.boot()
    first, begun, go = one.boots, threading.Event(), threading.Event()

    def slow():  # the search for the host's processes, in which the next node comes
        begun.set()
        go.wait(60)
        return {}

    one.processes = slow
    ending = threading.Thread(target=one.kill, args=(first,))
    ending.start()
    begun.wait(60)
    booting = threading.Thread(target=one.boot)
    booting.start()
    go.set()
    for thread in (ending, booting):
        thread.join()
    assert one.is_up
    one.shut_down(0.0, first)
    assert one.is_up
    one.shut_down(0.0)
    assert not one.is_up
