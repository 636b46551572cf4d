"""Checkpoints in a store: pushed in the background, kept, fetched, refused when damaged."""

import threading
from pathlib import Path

import pytest

from tests.shell import python
from trm.errors import UserError
from trm.storage import Patience, StorageError, Store
from trm.storage.gcs import GcsStore
from trm.storage.lease import Lease, LeaseLost
from trm.storage.mirror import Mirror
from trm.training.checkpoints.remote import SharedFolder

from .conftest import BUCKET, QUICK


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"step-{step:08d}"
    (path / "parts").mkdir(parents=True)
    (path / "weights.bin").write_bytes(step.to_bytes(4, "big") * 500)
    (path / "parts/carry.bin").write_bytes(b"carry")
    return path


def push(mirror: Mirror, folder: Path, steps: list[int], scores: dict[int, float] | None = None) -> None:
    for step in steps:
        mirror.push(checkpoint(folder, step), step=step, score=(scores or {}).get(step)).result()


def burn(store: Store, sentence: str) -> None:
    """Have the store refuse whatever is written."""

    def refuse(*_: object, **__: object) -> None:
        raise UserError(sentence)

    store.put_bytes = refuse


def newest(store: Store, folder: Path) -> Path:
    """The newest checkpoint of a store, fetched on a new machine."""
    mirror = Mirror(store)
    return mirror.fetch(mirror.list()[0], folder)


def test_the_newest_and_the_best_are_kept_and_come_to_a_new_machine(store, tmp_path):
    mirror = Mirror(store, keep=2)
    push(mirror, tmp_path, [1, 2, 3, 4, 5], {2: 0.9, 4: 0.5})
    mirror.close()
    assert [(s.step, s.score) for s in mirror.list()] == [(5, None), (4, 0.5), (2, 0.9)]
    assert {info.name.partition("/")[0] for info in store.list()} == {s.name for s in mirror.list()}
    assert not list(tmp_path.glob(".upload-*"))
    path = newest(store, tmp_path / "new")
    assert path == tmp_path / "new/step-00000005"
    for name in ("weights.bin", "parts/carry.bin"):
        assert (path / name).read_bytes() == (tmp_path / "step-00000005" / name).read_bytes()


@pytest.mark.parametrize(("status", "said"), [(403, "No permission to read"), (503, "Could not read")])
def test_manifests_that_may_not_be_read_are_not_missing(broken, tmp_path, status, said):
    """LIST is allowed and GET is not: training from step 0 would go over good checkpoints."""
    _, proxy = broken
    store = GcsStore(f"gs://{BUCKET}/run", Patience(minutes=0.001, first=0.01, longest=0.02))
    push(Mirror(store), tmp_path, [1, 2])
    proxy.fault = lambda method, path, count: status if method == "GET" and "part-00000" in path else None
    shared = SharedFolder(tmp_path / "new", None, Mirror(store))
    for look in (Mirror(store).list, lambda: shared._choose(Mirror(store))):
        with pytest.raises(StorageError, match=said):
            look()


def test_one_deleted_while_they_are_listed_is_none(store, tmp_path, monkeypatch):
    push(Mirror(store), tmp_path, [1, 2])
    listed = list(store.list())
    for info in store.list("step-00000001/"):
        store.delete(info.name)
    monkeypatch.setattr(store, "list", lambda prefix="": iter(listed))
    assert [snapshot.step for snapshot in Mirror(store).list()] == [2]


@pytest.mark.parametrize("damage", ["cut", "flip", "missing"])
def test_a_damaged_one_is_refused_and_leaves_nothing(store, tmp_path, damage):
    push(Mirror(store), tmp_path, [1, 2])
    weights = next(info.name for info in store.list("step-00000002/") if info.name.endswith("weights.bin"))
    content = store.get_bytes(weights)
    if damage == "missing":
        store.delete(weights)
    else:
        store.put_bytes(weights, content[:-1] if damage == "cut" else b"x" + content[1:])
    with pytest.raises(UserError):
        newest(store, tmp_path / "new")
    assert list((tmp_path / "new").glob("step-*")) == []


def test_one_with_a_damaged_manifest_is_not_listed(store, tmp_path, caplog):
    push(Mirror(store), tmp_path, [1, 2])
    manifest = next(info.name for info in store.list("step-00000002/") if info.name.endswith(".json"))
    store.put_bytes(manifest, b"{")
    assert newest(store, tmp_path / "new").name == "step-00000001"
    assert "checkpoint step-00000002 in" in caplog.text


def test_pushing_never_waits_and_the_folder_may_go(broken, tmp_path):
    _, proxy = broken
    store, release = GcsStore(f"gs://{BUCKET}/run", patience=QUICK), threading.Event()
    proxy.fault = lambda method, path, count: None if release.wait(30) else 500
    mirror, path = Mirror(store), checkpoint(tmp_path, 1)
    mirror.push(path, step=1)  # returns though the bucket hangs
    for file in path.rglob("*.bin"):
        file.unlink()
    release.set()
    mirror.close()
    assert newest(store, tmp_path / "new").name == path.name


def test_of_pushes_that_wait_the_last_is_uploaded(store, tmp_path):
    mirror, started, release = Mirror(store), threading.Event(), threading.Event()
    put = store.put_file
    store.put_file = lambda name, path: (started.set(), release.wait(30), put(name, path))
    mirror.push(checkpoint(tmp_path, 1), step=1)
    assert started.wait(30)
    for step in (2, 3):
        mirror.push(checkpoint(tmp_path, step), step=step)
    assert len(list(tmp_path.glob(".upload-*"))) == 2
    release.set()
    mirror.close()
    assert [snapshot.step for snapshot in mirror.list()] == [3, 1]
    assert not list(tmp_path.glob(".upload-*"))


FORGETFUL = """
import sys
from pathlib import Path
from trm.storage import open_store
from trm.storage.mirror import Mirror
Mirror(open_store(sys.argv[1])).push(Path(sys.argv[2]), step=1)
"""


def test_the_end_of_the_program_awaits_uploads(store, tmp_path):
    python("-m", "tests.script", FORGETFUL, store.uri, checkpoint(tmp_path, 1), check=True)
    assert [snapshot.step for snapshot in Mirror(store).list()] == [1]


def test_a_failed_push_is_logged_and_made_good_by_the_next(store, tmp_path, caplog):
    mirror, published = Mirror(store), []
    mirror.on_published = published.append
    burn(store, "the bucket is on fire")
    with pytest.raises(UserError, match="on fire"):
        mirror.push(checkpoint(tmp_path, 1), step=1).result()
    assert "step-00000001 failed: the bucket is on fire" in caplog.text
    assert ([str(error) for error in mirror.failures], published) == (["the bucket is on fire"], [])
    del store.put_bytes
    push(mirror, tmp_path, [2])
    mirror.close()
    assert (mirror.failures, published) == ([], [2])


def test_progress_is_what_is_published_and_failures_in_a_row_end_the_run(store, tmp_path):
    mirror, told = Mirror(store), []
    folder = SharedFolder(tmp_path, None, mirror)
    folder.on_published = told.append
    burn(store, "billing is disabled")
    for step in (1, 2, 3):
        checkpoint(tmp_path, step)
        folder.saved(step, None)
        with pytest.raises(UserError):
            mirror._last[0].result()
    checkpoint(tmp_path, 4)
    with pytest.raises(UserError, match=r"The last 3 uploads of checkpoints failed \(billing is disabled\)"):
        folder.saved(4, None)
    assert told == []
    del store.put_bytes
    SharedFolder(tmp_path, None, Mirror(store)).saved(4, None)


def test_every_host_pushes_its_part(store, tmp_path):
    hosts = [Mirror(store, part=k, parts=2) for k in range(2)]
    for k, host in enumerate(hosts):
        path = tmp_path / f"host{k}/step-00000007"
        path.mkdir(parents=True)
        (path / f"carry-{k}.bin").write_bytes(bytes([k]))
        assert Mirror(store).list() == []  # not before all parts are there
        host.push(path, step=7)
        host.close()
    (snapshot,) = Mirror(store).list()
    path = Mirror(store).fetch(snapshot, tmp_path / "one", parts={1})
    assert [p.name for p in path.iterdir()] == ["carry-1.bin"]
    path = Mirror(store).fetch(snapshot, tmp_path / "all")
    assert sorted(p.name for p in path.iterdir()) == ["carry-0.bin", "carry-1.bin"]


def test_a_job_that_lost_the_run_publishes_nothing(store, tmp_path):
    lease = Lease(store, "tiny")
    lease.acquire()
    mirror = Mirror(store, lease=lease)
    store.put_bytes("lease.json", b"{}")  # another job took it over
    mirror.push(checkpoint(tmp_path, 1), step=1)
    with pytest.raises(LeaseLost):
        mirror.close()
    assert Mirror(store).list() == []
    with pytest.raises(LeaseLost):
        mirror.push(checkpoint(tmp_path, 2), step=2)


def test_a_step_pushed_twice_is_kept_once(store, tmp_path):
    push(Mirror(store), tmp_path / "a", [1])
    push(Mirror(store), tmp_path / "b", [1])
    assert len(Mirror(store).list()) == 1
    assert len(list(store.list())) == 3  # two files and a manifest
