"""Names that somebody wrote into a bucket never lead out of the folder that they are joined to."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trm.results.archive import differing, send
from trm.storage import StorageError, open_store
from trm.storage.base import joined
from trm.storage.cache import fetch_store
from trm.storage.mirror import Mirror


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with a link out of it and one that stays inside, beside a folder of others."""
    home = tmp_path / "home"
    for path in (home / "a", tmp_path / "others"):
        path.mkdir(parents=True)
    (home / "out").symlink_to(tmp_path / "others")
    (home / "in").symlink_to("a")
    return home


PART = st.sampled_from(["a", "b.bin", "..", ".", "", "\\", "out", "in", "out/a", "é", "\0", "..\\", "C:"])
NAMES = st.lists(PART | st.text(max_size=4), min_size=1, max_size=5).map("/".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=NAMES)
def test_any_name_is_refused_or_leads_below_the_folder(folder, name):
    try:
        path = joined(folder, name)
    except StorageError:
        return
    assert os.path.realpath(path).startswith(f"{os.path.realpath(folder)}/")
    assert path.relative_to(folder).as_posix() == name


@pytest.mark.parametrize("name", ["a", "a/b c.bin", "in/x", "new/é/..x", "C:"])
def test_a_name_leads_below_the_folder(folder, name):
    assert joined(folder, name) == folder / name


NO_NAMES = [
    "",
    ".",
    "..",
    "/etc/passwd",
    "a//etc/passwd",
    "a/",
    "a/./b",
    "a/../../x",
    "..\\x",
    "a\0b",
    "\ud800",
]


@pytest.mark.parametrize("name", [*NO_NAMES, None, 7, ["a"]])
def test_what_is_no_name_is_refused(folder, name):
    with pytest.raises(StorageError, match="is not an object name"):
        joined(folder, name)


@pytest.mark.parametrize("name", ["out", "out/x"])
def test_a_link_out_of_the_folder_is_refused(folder, name):
    with pytest.raises(StorageError, match="is reached by a link that leads out of"):
        joined(folder, name)


def test_extras_manifests_data_sets_and_archives_write_nothing_elsewhere(s3, tmp_path):
    """Whoever has access to a bucket can write any key into it. S3 keeps any; fake-gcs-server does not."""
    home, secret = tmp_path / "home", tmp_path / "secret"
    home.mkdir()

    def put(name: str, data: bytes = b"planted") -> None:
        s3._client().put_object(Bucket=s3.bucket, Key=f"{s3.prefix}/{name}", Body=data)

    put(f"extra/{secret}")
    put(f"plots/{secret}")
    put(f"step-00000007/t/{secret}")
    entry = {"name": str(secret), "bytes": 7, "sha256": hashlib.sha256(b"planted").hexdigest()}
    manifest = {"format": 1, "step": 7, "score": None, "token": "t", "files": [entry]}
    put("step-00000007/part-00000-of-00001.json", json.dumps(manifest).encode())
    mirror, here = Mirror(s3), open_store(tmp_path / "results")
    for write in (
        lambda: mirror.fetch_extras(home),
        lambda: mirror.fetch(mirror.list()[0], home),
        lambda: fetch_store(s3, tmp_path / "cache"),
        lambda: send(s3, here, differing(s3, here)[0]),
    ):
        with pytest.raises(StorageError, match="is not an object name"):
            write()
    assert not secret.exists()
    assert list(home.iterdir()) == []


def test_an_archive_keeps_links_within_the_results_and_writes_through_none(tmp_path):
    """Links out of them are left out: tests/results/test_archive.py."""
    root, others = tmp_path / "results", tmp_path / "others"
    others.mkdir()
    here, there = open_store(root), open_store(tmp_path / "archive")
    here.put_bytes("plots/a.pdf", b"figure")
    (root / "plots/b.pdf").symlink_to("a.pdf")
    (root / "runs").symlink_to(others)
    send(here, there, differing(here, there)[0])
    assert {info.name: there.get_bytes(info.name) for info in there.list()} == {
        "plots/a.pdf": b"figure",
        "plots/b.pdf": b"figure",
    }
    there.put_bytes("runs/a-1/training.json", b"{}")
    with pytest.raises(StorageError, match="is reached by a link that leads out of"):
        send(there, here, differing(there, here)[0])
    assert list(others.iterdir()) == []
