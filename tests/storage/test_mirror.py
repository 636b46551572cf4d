"""Checkpoints in a store: pushed in the background, kept, fetched, refused when damaged."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shell import python
from trm.backends.cpu.device import CpuBackend
from trm.errors import UserError
from trm.storage import AccessDenied, StorageError, Store, open_store
from trm.storage.lease import Lease, LeaseLost
from trm.storage.mirror import Mirror
from trm.training.checkpoints.remote import SharedFolder, open_checkpoints


def checkpoint(folder: Path, step: int, **parts: bytes) -> Path:
    """A folder of two files, or of `parts`."""
    path = folder / f"step-{step:08d}"
    path.mkdir(parents=True)
    for name, content in (parts or {"weights": step.to_bytes(4, "big") * 500, "carry": b"carry"}).items():
        (path / name).mkdir()
        (path / name / "all.bin").write_bytes(content)
    return path


def push(mirror: Mirror, folder: Path, *steps: int, **scores: float) -> None:
    for step in steps:
        mirror.push(checkpoint(folder, step), step=step, score=scores.get(f"step{step}")).result()


def steps(store: Store) -> list[int]:
    return [snapshot.step for snapshot in Mirror(store).list()]


def newest(store: Store, folder: Path) -> Path:
    """The newest checkpoint of a store, fetched on a new machine."""
    mirror = Mirror(store)
    return mirror.fetch(mirror.list()[0], folder)


def object_named(store: Store, end: str) -> str:
    """The object of step 2 whose name ends so."""
    return next(info.name for info in store.list("step-00000002/") if info.name.endswith(end))


@pytest.fixture
def local(tmp_path) -> Store:
    return open_store(tmp_path / "store")


def test_the_newest_and_the_best_are_kept_and_come_to_a_new_machine(store, tmp_path):
    mirror = Mirror(store, keep=2)
    push(mirror, tmp_path, 1, 2, 3, 4, 5, step2=0.9, step4=0.5)
    push(mirror, tmp_path / "resumed", 5)  # kept once
    mirror.close()
    assert [(s.step, s.score) for s in mirror.list()] == [(5, None), (4, 0.5), (2, 0.9)]
    assert len(list(store.list())) == 3 * 3  # two files and a manifest
    assert not list(tmp_path.glob(".upload-*"))
    path = newest(store, tmp_path / "new")
    assert path == tmp_path / "new/step-00000005"
    for name in ("weights/all.bin", "carry/all.bin"):
        assert (path / name).read_bytes() == (tmp_path / "step-00000005" / name).read_bytes()


def test_manifests_that_may_not_be_read_are_not_missing(gcs, proxy, tmp_path):
    """LIST is allowed and GET is not: training from step 0 would go over good checkpoints."""
    push(Mirror(gcs), tmp_path, 1, 2)
    proxy.fault = lambda method, path: 403 if method == "GET" and "part-00000" in path else None
    shared = SharedFolder(tmp_path / "new", None, Mirror(gcs))
    for look in (Mirror(gcs).list, lambda: shared._choose(Mirror(gcs))):
        with pytest.raises(AccessDenied, match="No permission to read"):
            look()


def test_one_deleted_while_they_are_listed_is_none(local, tmp_path, monkeypatch):
    push(Mirror(local), tmp_path, 1, 2)
    listed = list(local.list())
    for info in local.list("step-00000001/"):
        local.delete(info.name)
    monkeypatch.setattr(local, "list", lambda prefix="": iter(listed))
    assert steps(local) == [2]


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: b"x" + data[1:], None])
def test_a_damaged_one_is_refused_and_leaves_nothing(local, tmp_path, change: Callable[[bytes], bytes]):
    push(Mirror(local), tmp_path, 1, 2)
    name = object_named(local, "weights/all.bin")
    local.put_bytes(name, change(local.get_bytes(name))) if change else local.delete(name)
    with pytest.raises(StorageError):
        newest(local, tmp_path / "new")
    assert list((tmp_path / "new").glob("*step-*")) == []


def test_one_with_a_damaged_manifest_is_not_listed(local, tmp_path, caplog):
    push(Mirror(local), tmp_path, 1, 2)
    local.put_bytes(object_named(local, ".json"), b"{")
    assert steps(local) == [1]
    assert "checkpoint step-00000002 in" in caplog.text


def test_pushing_never_waits_and_of_those_that_wait_the_last_is_uploaded(local, tmp_path):
    mirror, started, release = Mirror(local), threading.Event(), threading.Event()
    put = local.put_file
    local.put_file = lambda name, path: (started.set(), release.wait(30), put(name, path))
    for step in (1, 2, 3):
        path = checkpoint(tmp_path, step)
        mirror.push(path, step=step)
        assert started.wait(30)
        for file in path.rglob("*.bin"):
            file.unlink()  # the folder may go
    assert len(list(tmp_path.glob(".upload-*"))) == 2
    release.set()
    mirror.close()
    assert steps(local) == [3, 1]
    assert newest(local, tmp_path / "new").name == "step-00000003"
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
    assert steps(store) == [1]


def test_progress_is_what_is_published_and_failures_in_a_row_end_the_run(local, tmp_path, caplog):
    def refuse(*_: object, **__: object) -> None:
        raise UserError("billing is disabled")

    mirror, told = Mirror(local), []
    folder = SharedFolder(tmp_path, None, mirror)
    folder.on_published = told.append
    local.put_bytes = refuse
    for step in (1, 2, 3):
        checkpoint(tmp_path, step)
        folder.saved(step, None)
        with pytest.raises(UserError):
            mirror._last[0].result()
    assert "step-00000001 failed: billing is disabled" in caplog.text
    checkpoint(tmp_path, 4)
    with pytest.raises(UserError, match=r"The last 3 uploads of checkpoints failed \(billing is disabled\)"):
        folder.saved(4, None)
    assert told == []
    del local.put_bytes
    push(mirror, tmp_path, 5)
    assert (mirror.failures, told) == ([], [5])  # made good


def test_a_last_upload_that_fails_is_a_warning(gs, proxy, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TRM_CACHE", str(tmp_path))
    with open_checkpoints(f"{gs}/run", "run", CpuBackend()) as folder:
        checkpoint(folder.root, 1)
        proxy.answer(then=403)
        folder.saved(1, None)
    assert "the last checkpoint is on this machine only: No permission" in caplog.text


def test_every_host_pushes_its_part(local, tmp_path):
    for part in range(2):
        assert steps(local) == []  # not before all parts are there
        host = Mirror(local, part=part, parts=2)
        host.push(checkpoint(tmp_path / f"host{part}", 7, **{f"carry-{part}": b"carry"}), step=7)
        host.close()
    path = newest(local, tmp_path / "new")
    assert sorted(p.name for p in path.iterdir()) == ["carry-0", "carry-1"]


def test_a_job_that_lost_the_run_publishes_nothing(local, tmp_path):
    lease = Lease(local, "tiny")
    lease.acquire()
    mirror = Mirror(local, lease=lease)
    local.put_bytes("lease.json", b"{}")  # another job took it over
    mirror.push(checkpoint(tmp_path, 1), step=1)
    with pytest.raises(LeaseLost):
        mirror.close()
    assert steps(local) == []
    with pytest.raises(LeaseLost):
        mirror.push(checkpoint(tmp_path, 2), step=2)
