"""S3 alone: errors as sentences, lost answers, sums of large files. test_store, test_lease, test_mirror and
test_training run on S3 too."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

pytest.importorskip("boto3")

from trm.pipeline.archive import differing, send
from trm.pipeline.files import Files
from trm.storage import ABSENT, AccessDenied, BucketMissing, Conflict, Patience, Unreachable, open_store
from trm.storage import s3 as s3_store
from trm.storage.cache import fetch_store
from trm.storage.s3 import S3Store

from .cloud import Proxy, s3_environment
from .conftest import BUCKET, QUICK

SHORT = Patience(minutes=0, request_seconds=20)


@pytest.fixture
def proxy(s3_server, monkeypatch) -> Iterator[Proxy]:
    """A proxy before the server, to which the environment points."""
    made = Proxy()
    made.target = s3_server
    for variable, value in s3_environment(made.url).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    yield made
    made.close()


@pytest.fixture
def store(proxy, tmp_path) -> S3Store:
    return open_store(f"s3://{BUCKET}/{tmp_path.name}", SHORT)


def test_a_busy_server_and_lost_connections_are_tried_again(store, proxy):
    proxy.answer(503, "drop", None, 500, "cut")
    store.put_bytes("a", b"content")
    assert store.get_bytes("a") == b"content"
    assert len(proxy.requests) == 6  # the last one whole


def test_a_write_whose_answer_was_lost_is_ours(store, proxy):
    proxy.answer("deaf")
    info = store.put_bytes("claim", b"mine", generation=ABSENT)
    assert store.stat("claim").generation == info.generation
    with pytest.raises(Conflict, match="changed by another writer"):
        store.put_bytes("claim", b"theirs", generation=ABSENT)
    store.delete("claim", generation=info.generation)
    with pytest.raises(Conflict):  # it was deleted by another job
        store.put_bytes("claim", b"mine", generation=info.generation)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (403, AccessDenied, r"No permission to read s3://.*s3:GetObject"),
        (503, Unreachable, r"Could not read s3://.*check the network"),
    ],
)
def test_errors_say_what_to_do(store, proxy, status, error, words):
    proxy.answer(then=status)
    with pytest.raises(error, match=words):
        store.get_bytes("a")


def test_no_bucket_and_no_credentials(proxy, monkeypatch):
    missing = open_store("s3://no-such-bucket/x", SHORT)
    calls: list[Callable[[], object]] = [
        lambda: missing.put_bytes("a", b""), lambda: missing.stat("a"), lambda: list(missing.list())
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(BucketMissing, match="The bucket s3://no-such-bucket does not exist: create it"):
            call()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    with pytest.raises(AccessDenied, match="no complete AWS credentials"):
        open_store(f"s3://{BUCKET}/x", SHORT).stat("a")


def test_the_pipeline_finds_its_files_in_s3(store):
    files = Files(store.uri, SimpleNamespace(s3=lambda address, **options: (address, options)))
    store.put_bytes("results/runs/a-1/training.json", b"{}")
    assert files.exists("results/runs/a-1/training.json")
    assert not files.exists("results/runs/b-2/training.json")
    assert files("results/runs/a-1", retrieve=False) == (f"{store.uri}/results/runs/a-1", {"retrieve": False})
    assert files.root == f".snakemake/storage/s3/{store.uri.removeprefix('s3://')}/"


@pytest.mark.parametrize("size", [0, 5 << 20, 11 << 20])
def test_the_checksum_is_that_of_the_object(bucket, tmp_path, monkeypatch, size):
    if not bucket("x").startswith("s3"):
        pytest.skip("another store")
    monkeypatch.setattr(s3_store, "CHUNK", 5 << 20)
    (tmp_path / "here/results/tables").mkdir(parents=True)
    path = tmp_path / "here/results/tables/a.csv"
    path.write_bytes(b"x" * size)
    here, there = open_store(tmp_path / "here/results"), open_store(bucket("archive"), QUICK)
    parcels, _ = differing(here, there)
    send(here, there, parcels)
    assert there.stat("tables/a.csv").checksum == there.checksum(path)
    assert differing(here, there) == ([], 1)  # sent once
    copy = fetch_store(there, tmp_path / "cache")
    assert (copy / "tables/a.csv").read_bytes() == path.read_bytes()
