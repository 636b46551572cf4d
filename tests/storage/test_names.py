"""Names that somebody wrote into a bucket never lead out of the folder that they are joined to."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trm.results.archive import differing, links_out, send
from trm.storage import StorageError, Store, open_store
from trm.storage.base import joined
from trm.storage.cache import fetch_store
from trm.storage.mirror import Mirror

from .cloud import bucket_client
from .conftest import BUCKET, QUICK

PART = st.sampled_from(["a", "b.bin", "..", ".", "", "\\", "out", "in", "out/a", "é", "\0", "..\\", "C:"])
NAMES = st.lists(PART | st.text(max_size=4), min_size=1, max_size=5).map("/".join)
KEPT_OUT = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with a link out of it and one that stays inside, beside a folder of others."""
    home = tmp_path / "home"
    (home / "a").mkdir(parents=True)
    (tmp_path / "others").mkdir()
    (home / "out").symlink_to(tmp_path / "others")
    (home / "in").symlink_to("a")
    return home


@KEPT_OUT
@given(name=NAMES)
@example(name="/etc/passwd")
@example(name="a//etc/passwd")
@example(name="a/../../x")
@example(name="out/x")
@example(name="in/x")
def test_a_name_is_refused_or_leads_below_the_folder(folder, name):
    try:
        path = joined(folder, name)
    except StorageError:
        return
    assert os.path.realpath(path).startswith(f"{os.path.realpath(folder)}/")
    assert path.relative_to(folder).as_posix() == name


@KEPT_OUT
@given(
    parts=st.lists(
        st.from_regex(r"[A-Za-z0-9_=+, -]([A-Za-z0-9_.é-]{0,8}[a-z])?", fullmatch=True), min_size=1
    )
)
def test_a_plain_name_is_accepted(folder, parts):
    assert joined(folder, "/".join(["plain", *parts])) == folder.joinpath("plain", *parts)


@pytest.mark.parametrize("name", [None, 7, ["a"], "", "\ud800", "a\0b"])
def test_what_is_no_name_is_refused(folder, name):
    with pytest.raises(StorageError, match="is not an object name"):
        joined(folder, name)


@pytest.fixture
def put(request, bucket):
    """A function that writes an object by its whole key, as anybody with access to the bucket can; S3 keeps any."""
    if bucket("x").startswith("gs"):
        pytest.skip("fake-gcs-server keeps objects as files and refuses such names itself")
    with bucket_client(request.getfixturevalue("s3_server")) as client:
        root = bucket("run").removeprefix(f"s3://{BUCKET}/")
        yield lambda name, data: client.put_object(Bucket=BUCKET, Key=f"{root}/{name}", Body=data)


@pytest.fixture
def there(bucket) -> Store:
    return open_store(bucket("run"), QUICK)


def test_extras_manifests_data_sets_and_archives_write_nothing_elsewhere(put, there, tmp_path):
    home, secret = tmp_path / "home", tmp_path / "secret"
    home.mkdir()
    put(f"extra/{secret}", b"planted")
    with pytest.raises(StorageError, match="is not an object name"):
        Mirror(there).fetch_extras(home)
    with pytest.raises(StorageError, match="is not an object name"):
        fetch_store(there, tmp_path / "cache")
    entry = {"name": str(secret), "bytes": 7, "sha256": hashlib.sha256(b"planted").hexdigest()}
    manifest = {"format": 1, "step": 7, "score": None, "token": "t", "files": [entry]}
    put("step-00000007/part-00000-of-00001.json", json.dumps(manifest).encode())
    put(f"step-00000007/t/{secret}", b"planted")
    mirror = Mirror(there)
    with pytest.raises(StorageError, match="is not an object name"):
        mirror.fetch(mirror.list()[0], home)
    put(f"plots/{secret}", b"planted")
    here = open_store(tmp_path / "results")
    with pytest.raises(StorageError, match="is not an object name"):
        send(there, here, differing(there, here)[0])
    assert not secret.exists()
    assert list(home.iterdir()) == []


def test_an_archive_neither_follows_links_out_nor_writes_through_them(tmp_path):
    """Links within the results are files like others."""
    root, others = tmp_path / "results", tmp_path / "others"
    for path, text in ((root / "plots/a.pdf", "figure"), (others / "key", "secret")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (root / "plots/b.pdf").symlink_to("a.pdf")
    (root / "plots/c.pdf").symlink_to(others / "key")
    (root / "runs").symlink_to(others)
    (root / "elsewhere").symlink_to(others)  # no result
    here, there = open_store(root), open_store(tmp_path / "archive")
    files, _ = differing(here, there)
    assert links_out(here) == ["plots/c.pdf", "runs"]
    send(here, there, files)
    assert {info.name: there.get_bytes(info.name) for info in there.list()} == {
        "plots/a.pdf": b"figure",
        "plots/b.pdf": b"figure",
    }
    there.put_bytes("runs/a-1/training.json", b"{}")
    with pytest.raises(StorageError, match="is reached by a link that leads out of"):
        send(there, here, differing(there, here)[0])
    assert [path.name for path in others.iterdir()] == ["key"]
