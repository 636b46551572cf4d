"""What the pipeline and archives do with S3 alone; the other tests run on S3 too."""

from types import SimpleNamespace

import pytest

from trm.pipeline.files import Files
from trm.results.archive import differing, send
from trm.storage import open_store
from trm.storage import s3 as s3_store
from trm.storage.cache import fetch_store


def test_the_pipeline_finds_its_files(s3):
    files = Files(s3.uri, SimpleNamespace(s3=lambda address, **options: (address, options)))
    s3.put_bytes("results/runs/a-1/training.json", b"{}")
    assert files.exists("results/runs/a-1/training.json")
    assert not files.exists("results/runs/b-2/training.json")
    for step in (9, 10):
        s3.put_bytes(f"results/checkpoints/a-1/step-{step}/manifest.json", b"{}")
    s3.put_bytes("results/checkpoints/a-1/step-11/weights", b"no manifest yet")
    assert (files.checkpoint("a-1"), files.checkpoint("a-10")) == (10, 0)
    assert files("results/runs/a-1", retrieve=False) == (f"{s3.uri}/results/runs/a-1", {"retrieve": False})
    assert files.root == f".snakemake/storage/s3/{s3.uri.removeprefix('s3://')}/"


@pytest.mark.parametrize("size", [0, 5 << 20, 11 << 20])
def test_the_checksum_is_that_of_the_object(s3, tmp_path, monkeypatch, size):
    monkeypatch.setattr(s3_store, "CHUNK", 5 << 20)
    path = tmp_path / "here/tables/a.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * size)
    here = open_store(tmp_path / "here")
    send(here, s3, differing(here, s3)[0])
    assert s3.stat("tables/a.csv").checksum == s3.checksum(path)
    assert differing(here, s3) == ([], 1)  # sent once
    copy = fetch_store(s3, tmp_path / "cache")
    assert (copy / "tables/a.csv").read_bytes() == path.read_bytes()
