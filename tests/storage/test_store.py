"""The one interface, the same for folders and buckets."""

import pytest

from trm.cli import main
from trm.errors import UserError
from trm.pipeline.settings import split
from trm.storage import ABSENT, Conflict, ObjectMissing, StorageError, open_store
from trm.storage.cache import fetch
from trm.study.input_files import with_checksums


def test_round_trip_of_bytes_and_files(store, tmp_path):
    store.put_bytes("plain/=+, -é.txt", b"one")
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 100)
    info = store.put_file("a/big.bin", source)
    assert store.get_bytes("plain/=+, -é.txt") == b"one"
    store.get_file("a/big.bin", tmp_path / "deep/copy")
    assert (tmp_path / "deep/copy").read_bytes() == source.read_bytes()
    assert (info.name, info.size) == ("a/big.bin", 25600)
    assert store.stat("a/big.bin") == info


def test_listing_is_sorted_and_relative(store):
    for name in ("b/2", "b/10", "a", "b-c", "b/1/x"):
        store.put_bytes(name, b"x")
    assert [info.name for info in store.list()] == ["a", "b-c", "b/1/x", "b/10", "b/2"]
    assert [info.name for info in store.list("b/1")] == ["b/1/x", "b/10"]
    assert list(store.list("none")) == []


def test_missing_objects(store, tmp_path):
    assert store.stat("no") is None
    with pytest.raises(ObjectMissing, match="no does not exist"):
        store.get_bytes("no")
    with pytest.raises(ObjectMissing):
        store.get_file("no", tmp_path / "copy")
    store.delete("no")
    assert not (tmp_path / "copy").exists()


def test_preconditions_let_one_writer_win(store):
    first = store.put_bytes("lock", b"1", generation=ABSENT)
    with pytest.raises(Conflict, match="changed by another writer"):
        store.put_bytes("lock", b"2", generation=ABSENT)
    second = store.put_bytes("lock", b"2", generation=first.generation)
    assert second.generation != first.generation
    with pytest.raises(Conflict):
        store.put_bytes("lock", b"3", generation=first.generation)
    if not store.uri.startswith("gs"):  # fake-gcs-server ignores it: test_faults looks at the request instead
        with pytest.raises(Conflict):
            store.delete("lock", generation=first.generation)
    assert store.get_bytes("lock") == b"2"
    store.delete("lock", generation=second.generation)
    assert store.stat("lock") is None


def test_names_stay_below_the_store(store):
    with pytest.raises(StorageError, match="is not an object name"):
        store.put_bytes("a/../../b", b"")


@pytest.mark.parametrize(
    "place", ["gs:/bucket/x", "GS://bucket/x", "s3:/bucket", "gs:///x", "https://host/x", "az://container/x"]
)
def test_what_is_no_place_is_refused_and_not_made_a_folder(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match="is no place for files: write gs://bucket/prefix, s3://bucket/pr"):
        open_store(place)
    assert main(["train", "--config", "{}", "--dataset", "d", "--checkpoints", "c", "--out", place]) == 2
    assert f"out: {place} is no place for files" in capsys.readouterr().err
    with pytest.raises(UserError, match="data.files: .* is no place for files"):
        with_checksums({"data.files": [place]}, "ema")
    with pytest.raises(UserError, match="is no place for files"):
        split({"storage_prefix": place})
    assert list(tmp_path.iterdir()) == []


def test_an_option_for_this_disk_refuses_a_bucket(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["table", "--experiment", "{}", "--out", "s3://bucket/table.csv"]) == 2
    assert "out: s3://bucket/table.csv is in a bucket: give a path of this disk" in capsys.readouterr().err
    with pytest.raises(UserError, match="storage_prefix: here is a path"):
        split({"storage_prefix": "here"})


def test_a_file_uri_is_a_path(tmp_path):
    assert open_store(f"file://{tmp_path}/a%20b").uri == f"{tmp_path}/a b"
    assert fetch(f"file://{tmp_path}") == tmp_path
