"""One emulated pod of four hosts for all tests, and studies on it."""

import asyncio
import shutil

import pytest
from local_agent import Agent

from snakemake_executor_plugin_tpu.capacity import Capacity
from snakemake_executor_plugin_tpu.cloud import TpuCloud
from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.study import Call, Study
from snakemake_executor_plugin_tpu.emulator.tpu_api import TpuApi
from snakemake_executor_plugin_tpu.health import ASIDE
from snakemake_executor_plugin_tpu.keys import public_half
from snakemake_executor_plugin_tpu.settings import ExecutorSettings
from snakemake_executor_plugin_tpu.ssh import HELD
from tests.warm import Popen

Call.popen = Popen


@pytest.fixture(autouse=True)
def nothing_left():
    """Check that each test has closed its ssh connections."""
    yield
    assert not HELD


@pytest.fixture
def agent(tmp_path):
    """Return an agent, and stop its tasks at the end."""
    agent = Agent(tmp_path)
    yield agent
    agent.call("agent", "stop", tasks=None, grace=0)


@pytest.fixture(scope="session")
def pod(tmp_path_factory):
    """Return the emulated pod; after a test that breaks it, the plugin or `healthy_pod` repairs it."""
    if reason := why_not():
        pytest.skip(reason)
    with EmulatedPod(tmp_path_factory.mktemp("pod"), "v4-32") as pod:
        yield pod


@pytest.fixture
def healthy_pod(pod):
    """Return the pod with all hosts up and nothing on them."""
    pod.reset()
    for host in pod.hosts:
        host.enter("rm", "-f", ASIDE)
        for task in host.home.glob(".snakemake-tpu/tasks/*"):
            shutil.rmtree(task, ignore_errors=True)
    return pod


@pytest.fixture
def people(healthy_pod, tmp_path, monkeypatch):
    """Set the environment of commands for people on the pod."""
    for name, value in {**healthy_pod.environment, "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def study(healthy_pod, tmp_path):
    """Return a function that makes a study, whose calls end with the test."""
    made = []

    def make(jobs: dict, **profile) -> Study:
        made.append(Study(tmp_path / f"study{len(made)}", healthy_pod, jobs, **profile))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def api():
    """Return a TPU API whose pods have two fake hosts."""
    keys = iter(range(100))
    server = TpuApi(
        lambda node: (["127.0.0.1", "127.0.0.2"], [f"ssh-ed25519 key{next(keys)}" for _ in range(2)]),
        lambda node: None,
        seconds_per_state=0.01,
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    """Return the path of an ssh key."""
    path = tmp_path_factory.mktemp("ssh") / "key"
    public_half(path, print)
    return path


@pytest.fixture
def play(api, key):
    """Return a function that runs a story with a client of the API and the wait for capacity."""
    return lambda story, **settings: run_story(story, api, {"ssh_key": str(key), **settings})


def run_story(story, api, settings):
    """Return the story's result and the log lines."""
    output = []

    async def run():
        pod = {"project": "p", "zone": "z", "name": "pod", "create": True, **settings}
        pod["api_endpoint"] = f"127.0.0.1:{api.port}"
        cloud = TpuCloud(ExecutorSettings(**pod), output.append)
        cloud.poll_seconds, cloud.pauses = (0.01, 0.02), (0.01, 0.04)
        capacity = Capacity(cloud, output.append)
        try:
            return await story(cloud, capacity)
        finally:
            await cloud.close()

    return asyncio.run(run()), output


def pytest_collection_modifyitems(items) -> None:
    """Mark tests that need ssh servers, which `make test` leaves out."""
    for item in items:
        if "pod" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.full)
