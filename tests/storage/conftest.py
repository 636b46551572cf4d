"""Fixtures: a store of each kind, a real server, and a proxy that makes faults."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu.emulator.gcs import GcsServer
from tests.shell import start
from trm.storage import SCHEMES, Patience, Store, open_store
from trm.storage.gcs import GcsStore

from .cloud import BUCKET, Proxy, bucket_client, gcs_on_loopback, s3_environment, s3_on_loopback

QUICK = Patience(minutes=0.2, first=0.01, longest=0.05, request_seconds=20)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """One server with an empty bucket for all tests that do not break it."""
    with gcs_on_loopback(tmp_path_factory.mktemp("gcs")) as running:
        yield running


@pytest.fixture
def gcs(server: GcsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> GcsStore:
    """An empty prefix of the bucket."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    return GcsStore(f"gs://{BUCKET}/{tmp_path.name}", patience=QUICK)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[GcsServer, Proxy]]:
    """A server of one's own behind a proxy of one's own; the environment points at the proxy."""
    proxy = Proxy()
    with gcs_on_loopback(tmp_path, proxy.url) as running:
        proxy.target = running.backend_url
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        yield running, proxy
    proxy.close()


@pytest.fixture
def s3_proxy(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the S3 server, to which the environment points."""
    proxy = Proxy()
    proxy.target = s3_server
    use_s3(monkeypatch, proxy.url)
    yield proxy
    proxy.close()


@pytest.fixture(params=["gs", "s3"])
def proxied(request: pytest.FixtureRequest) -> tuple[Proxy, str]:
    """A proxy before a server of either kind, and the address of its bucket."""
    if request.param == "s3":
        return request.getfixturevalue("s3_proxy"), f"s3://{BUCKET}"
    return request.getfixturevalue("broken")[1], f"gs://{BUCKET}"


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


def race(script: str, *places: object) -> list[subprocess.Popen[str]]:
    """A process of a script at each place, begun at once: each says "ready" and waits for a line."""
    pipes = {"stdin": subprocess.PIPE, "stderr": None}
    jobs = [start(sys.executable, "-m", "tests.script", script, place, **pipes) for place in places]
    for job in jobs:
        assert job.stdout.readline() == "ready\n"
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    return jobs


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """moto's S3 server with an empty bucket; its address."""
    with s3_on_loopback() as address, bucket_client(address) as client:
        client.create_bucket(Bucket=BUCKET)
        yield address


def use_s3(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Point the environment at an S3 server."""
    for variable, value in s3_environment(address).items():
        monkeypatch.setenv(variable, value)


def addresses(request: pytest.FixtureRequest, scheme: str) -> Callable[[str], str]:
    """Address of a name below an empty prefix of a bucket; the environment points at its server."""
    monkeypatch = request.getfixturevalue("monkeypatch")
    if scheme == "s3":
        use_s3(monkeypatch, request.getfixturevalue("s3_server"))
    elif scheme == "gs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("server").url)
    else:
        pytest.fail(f"{scheme}:// has no server here: start one")
    return lambda name: f"{scheme}://{BUCKET}/{request.getfixturevalue('tmp_path').name}/{name}"


@pytest.fixture(params=list(SCHEMES))
def bucket(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Addresses in a bucket of either kind."""
    return addresses(request, request.param)


@pytest.fixture(params=["local", *SCHEMES])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Store]:
    """Opens an empty store of any kind by name; the same name is the same store."""
    if request.param == "local":
        return lambda name: open_store(tmp_path / "stores" / name)
    address = addresses(request, request.param)
    return lambda name: open_store(address(name), QUICK)


@pytest.fixture
def store(make_store: Callable[[str], Store]) -> Store:
    """An empty store of any kind."""
    return make_store("one")
