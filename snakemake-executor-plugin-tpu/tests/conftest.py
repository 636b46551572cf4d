"""One emulated pod of four hosts for all tests, and studies on it."""

import asyncio
import functools
import inspect
from contextlib import asynccontextmanager

import pytest
from calls import Controller
from study import Call, Study

from snakemake_executor_plugin_tpu.capacity import Capacity
from snakemake_executor_plugin_tpu.cloud import TpuCloud
from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.gcs import GcsServer
from snakemake_executor_plugin_tpu.emulator.tpu_api import TpuApi
from snakemake_executor_plugin_tpu.settings import ExecutorSettings
from tests.warm import Popen

Call.popen = Popen


@pytest.fixture(scope="session")
def pod(tmp_path_factory):
    """Return the servers of the emulated pod."""
    if reason := why_not():
        pytest.skip(reason)
    with EmulatedPod(tmp_path_factory.mktemp("pod"), "v4-32") as pod:
        yield pod


@pytest.fixture
def empty_pod(pod):
    """Return the servers without a pod, which the plugin creates, and without planned faults."""
    pod.remove()
    pod.api.created_nodes = 0
    yield pod
    pod.remove()


@pytest.fixture
def call(empty_pod, tmp_path):
    """Return a function that makes a call of a controller without Snakemake."""
    return lambda **settings: Controller(empty_pod, tmp_path / "call", **settings)


@pytest.fixture
def small_call(call):
    """Return the same for calls whose jobs take one host: the others of the pod need not boot."""
    return functools.partial(call, accelerator_type="v4-8")


@pytest.fixture
def study(empty_pod, tmp_path):
    """Return a function that makes a study, whose calls end with the test."""
    made = []

    def make(jobs: dict, **profile) -> Study:
        made.append(Study(tmp_path / f"study{len(made)}", empty_pod, jobs, **profile))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture(scope="session")
def gcs(tmp_path_factory):
    """Return a server of Cloud Storage with a bucket of its own."""
    server = GcsServer(tmp_path_factory.mktemp("gcs") / "log")
    server.start()
    server.create_bucket("tests")
    yield server
    server.stop()


@pytest.fixture
def api():
    """Return a TPU API whose pods have no hosts."""
    server = TpuApi(lambda node: None, lambda node: None, seconds_per_state=0.01)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def play(api):
    """Return a context of a client of the API, the wait for capacity, and the log lines."""

    @asynccontextmanager
    async def playing(**settings):
        pod = {"project": "p", "zone": "z", "name": "pod", "bucket": "bucket", "create": True, **settings}
        pod["api_endpoint"] = f"127.0.0.1:{api.port}"
        output = []
        cloud = TpuCloud(ExecutorSettings(**pod), output.append)
        cloud.poll_seconds, cloud.pauses = (0.01, 0.02), (0.01, 0.04)
        startup = {"startup-script": "#!/bin/sh"}
        try:
            yield cloud, Capacity(cloud, output.append, lambda: startup, lambda node: ""), output
        finally:
            await cloud.close()

    return playing


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    names = inspect.signature(pyfuncitem.function).parameters
    asyncio.run(pyfuncitem.function(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_collection_modifyitems(items) -> None:
    """Mark tests with studies, which `make test` leaves out; the core of the protocol is in it."""
    core = ("test_emulator.py", "test_crash.py", "test_control.py")
    for item in items:
        if "pod" in getattr(item, "fixturenames", ()) and item.path.name not in core:
            item.add_marker(pytest.mark.full)
