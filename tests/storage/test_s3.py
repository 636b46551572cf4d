"""S3 alone: retries, credentials, sums of large files. test_faults, test_store, test_lease, test_mirror and
test_training run on S3 too."""

from types import SimpleNamespace

import pytest

pytest.importorskip("boto3")

from trm.pipeline.files import Files
from trm.results.archive import differing, send
from trm.storage import AccessDenied, open_store
from trm.storage import s3 as s3_store
from trm.storage.cache import fetch_store
from trm.storage.s3 import S3Store

from .conftest import BUCKET, QUICK


@pytest.fixture
def store(s3_proxy, tmp_path) -> S3Store:
    return open_store(f"s3://{BUCKET}/{tmp_path.name}", QUICK)


def test_no_credentials_at_all(store, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    with pytest.raises(AccessDenied, match="no complete AWS credentials"):
        store.stat("a")


def test_the_pipeline_finds_its_files_in_s3(store):
    files = Files(store.uri, SimpleNamespace(s3=lambda address, **options: (address, options)))
    store.put_bytes("results/runs/a-1/training.json", b"{}")
    assert files.exists("results/runs/a-1/training.json")
    assert not files.exists("results/runs/b-2/training.json")
    for step in (9, 10):
        store.put_bytes(f"results/checkpoints/a-1/step-{step}/manifest.json", b"{}")
    store.put_bytes("results/checkpoints/a-1/step-11/weights", b"no manifest yet")
    assert (files.checkpoint("a-1"), files.checkpoint("a-10")) == (10, 0)
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
