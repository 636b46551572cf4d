"""What of a bucket lies on this disk: the cache of data sets, and the output folder of a command."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.damage import DAMAGES, damage
from trm.errors import UserError
from trm.storage import ObjectMissing, Store
from trm.storage.cache import fetch, fetch_store
from trm.storage.folders import output_folder


@pytest.fixture
def filled(gcs) -> Store:
    """A data set in a bucket."""
    gcs.put_bytes("train/inputs.npy", b"numbers" * 1000)
    gcs.put_bytes("manifest.json", b"{}")
    return gcs


def test_a_path_is_its_own_copy_and_nothing_is_none(tmp_path, gcs):
    assert fetch(str(tmp_path)) == tmp_path
    with pytest.raises(UserError, match="does not exist: build it first"):
        fetch(str(tmp_path / "none"))
    with pytest.raises(ObjectMissing, match="There is no data set below gs://"):
        fetch_store(gcs, tmp_path)
    with output_folder(str(tmp_path / "plain")) as folder:
        assert folder == tmp_path / "plain"


def test_the_jobs_of_a_host_share_one_download(filled, proxy, tmp_path, monkeypatch):
    monkeypatch.setenv("TRM_CACHE", str(tmp_path / "cache"))
    with ThreadPoolExecutor(2) as jobs:
        (copy,) = set(jobs.map(fetch, [filled.uri] * 2))
    assert (copy / "train/inputs.npy").read_bytes() == b"numbers" * 1000
    assert copy.name.startswith(filled.uri.rpartition("/")[2])
    assert sum("alt=media" in line for line in proxy.requests) == 2  # each of the two files once
    before = len(proxy.requests)
    assert fetch(filled.uri) == copy
    assert [line.startswith("GET") and "/o?" in line for line in proxy.requests[before:]] == [
        True
    ]  # a listing


def test_changed_data_is_another_copy(filled, tmp_path):
    first = fetch_store(filled, tmp_path)
    filled.put_bytes("manifest.json", b"[]")
    second = fetch_store(filled, tmp_path)
    assert ((first / "manifest.json").read_bytes(), (second / "manifest.json").read_bytes()) == (b"{}", b"[]")


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_copy_is_fetched_again(filled, tmp_path, how, caplog):
    path = fetch_store(filled, tmp_path) / "train/inputs.npy"
    content = path.read_bytes()
    damage(path, how)
    fetch_store(filled, tmp_path)
    assert re.search(r"is damaged .*inputs.npy", caplog.text)
    assert path.read_bytes() == content
    assert list((tmp_path / "datasets").glob(".*.part")) == []


def test_output_goes_to_the_bucket_when_all_went_well(gcs, tmp_path):
    """The files of `last` after all others."""
    with output_folder(gcs.uri, last=("a",)) as folder:
        (folder / "deep").mkdir()
        for name in ("a", "deep/b"):
            (folder / name).write_text(name)
    written = sorted(gcs.list(), key=lambda info: int(info.generation))
    assert [info.name for info in written] == ["deep/b", "a"]
    assert gcs.get_bytes("deep/b") == b"deep/b"
    assert not folder.exists()

    def fail() -> None:
        with output_folder(f"{gcs.uri}/failed") as folder:
            (folder / "x").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with output_folder(f"{gcs.uri}/of_another", upload=False) as folder:
        (folder / "x").write_text("x")
    assert folder.name == "of_another"
    assert len(list(gcs.list())) == 2
