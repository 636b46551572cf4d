"""The per-host cache of data sets."""

import re

import pytest

from tests.damage import DAMAGES, damage
from trm.errors import UserError
from trm.storage import ObjectMissing
from trm.storage.cache import fetch, fetch_store
from trm.storage.gcs import GcsStore

from .conftest import BUCKET, QUICK, race


def fill(store: GcsStore) -> None:
    store.put_bytes("train/inputs.npy", b"numbers" * 1000)
    store.put_bytes("manifest.json", b"{}")


def test_a_path_is_its_own_copy(tmp_path):
    assert fetch(str(tmp_path)) == tmp_path
    with pytest.raises(UserError, match="does not exist: build it first"):
        fetch(str(tmp_path / "none"))


def test_the_second_use_downloads_nothing_and_training_needs_no_bucket(broken, tmp_path):
    server, proxy = broken
    store = GcsStore(f"gs://{BUCKET}/sets/sudoku", patience=QUICK)
    fill(store)
    first = fetch_store(store, tmp_path / "cache")
    assert (first / "train/inputs.npy").read_bytes() == b"numbers" * 1000
    assert first.name.startswith("sudoku-")
    before = len(proxy.requests)
    assert fetch_store(store, tmp_path / "cache") == first
    assert [line.split("?")[0] for line in proxy.requests[before:]] == [f"GET /storage/v1/b/{BUCKET}/o"]
    server.stop()
    assert (first / "manifest.json").read_bytes() == b"{}"


def test_changed_data_is_another_copy(gcs, tmp_path):
    fill(gcs)
    first = fetch_store(gcs, tmp_path)
    gcs.put_bytes("manifest.json", b"[]")
    second = fetch_store(gcs, tmp_path)
    assert first != second
    assert ((first / "manifest.json").read_bytes(), (second / "manifest.json").read_bytes()) == (b"{}", b"[]")


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_copy_is_fetched_again(gcs, tmp_path, how, caplog):
    fill(gcs)
    path = fetch_store(gcs, tmp_path) / "train/inputs.npy"
    content = path.read_bytes()
    damage(path, how)
    fetch_store(gcs, tmp_path)
    assert re.search(r"is damaged .*inputs.npy", caplog.text)
    assert path.read_bytes() == content
    assert list((tmp_path / "datasets").glob(".*.part")) == []


def test_nothing_there(gcs, tmp_path):
    with pytest.raises(ObjectMissing, match="There is no data set below gs://"):
        fetch_store(gcs, tmp_path)


FETCHER = """
import sys
from trm.storage.cache import fetch
print("ready", flush=True)
sys.stdin.readline()
print(fetch(sys.argv[1]))
"""


def test_jobs_of_a_host_share_one_download(broken, tmp_path, monkeypatch):
    _, proxy = broken
    monkeypatch.setenv("TRM_CACHE", str(tmp_path / "cache"))
    place = f"gs://{BUCKET}/sets/maze"
    fill(GcsStore(place, patience=QUICK))
    jobs = race(FETCHER, place, place)
    assert len({job.communicate(timeout=180)[0] for job in jobs}) == 1
    assert sum("alt=media" in line for line in proxy.requests) == 2  # each of the two files once
