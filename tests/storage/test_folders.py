"""Folders into a store."""

import pytest

from trm.storage.folders import output_folder, upload_folder

from .conftest import QUICK


def test_folders_are_uploaded(store, tmp_path):
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/a").write_bytes(b"a")
    (tmp_path / "in/deep/b").write_bytes(b"b")
    written: list[str] = []
    put = store.put_file
    store.put_file = lambda name, path, **kw: (written.append(name), put(name, path, **kw))
    upload_folder(tmp_path / "in", store, last=("a",))
    assert written == ["deep/b", "a"]
    assert store.get_bytes("deep/b") == b"b"


def test_output_goes_to_the_bucket_only_when_all_went_well(gcs, tmp_path):
    with output_folder(gcs.uri, last=("training.json",), patience=QUICK) as folder:
        (folder / "training.json").write_text("{}")
        (folder / "weights").write_text("w")
    assert [info.name for info in gcs.list()] == ["training.json", "weights"]
    assert not folder.exists()

    def fail(uri: str) -> None:
        with output_folder(uri) as folder:
            (folder / "x").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(gcs.uri + "/b")
    assert not list(gcs.list("b"))
    with output_folder(str(tmp_path / "plain")) as folder:
        assert folder == tmp_path / "plain"
    with output_folder(gcs.uri + "/c", upload=False, patience=QUICK) as folder:
        (folder / "x").write_text("x")
        assert folder.name == "c"
    assert not list(gcs.list("c"))
