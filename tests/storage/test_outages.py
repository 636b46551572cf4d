"""Outages of minutes, in the time of a clock that only waiting moves: whatever asks a bucket waits for it."""

import logging
import os

import pytest
import yaml
from google.api_core import exceptions

from tests.shell import ROOT
from tests.training.conftest import train_words
from tests.training.puzzles import write_dataset
from trm.backends.workers import wait_for_storage
from trm.cli import main
from trm.pipeline.files import Files
from trm.storage import ABSENT, Patience, Unreachable, open_store
from trm.storage.gcs import GcsStore, is_transient
from trm.storage.mirror import Mirror

from .conftest import BUCKET
from .test_faults import big, chunks_of, same  # noqa: F401 (a fixture)
from .test_training import EAGER, RUN


@pytest.mark.parametrize(("minutes", "fault"), [(3, "drop"), (15, 503)])
def test_every_operation_waits_for_an_outage_to_end(proxied, clock, tmp_path, minutes, fault, caplog):
    proxy, bucket = proxied
    store = open_store(f"{bucket}/outage{minutes}{fault}")
    file = tmp_path / "file"
    file.write_bytes(b"weights" * 1000)
    operations = (
        lambda: store.put_bytes("lease", b"1", generation=ABSENT),
        lambda: store.put_file("file", file),
        lambda: store.get_file("file", tmp_path / "copy"),
        lambda: store.stat("lease").size,
        lambda: [info.name for info in store.list()],
        lambda: store.delete("lease"),
        lambda: Files(store.uri).exists("results/runs/a"),
    )
    answers = []
    for operation in operations:
        ends = clock.now + 60 * minutes
        proxy.fault = lambda *_, ends=ends: fault if clock.now < ends else None
        answers.append(operation())
        assert ends <= clock.now < ends + 60  # seconds without an answer are never more than one pause
    assert answers[3:] == [1, ["file", "lease"], None, False]
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) <= 5 * len(operations)
    assert f"Could not write {store.uri}/lease for 1 minutes" in said[0]
    assert said[0].endswith("trying for up to 720.")


def test_patience_ends(proxied, clock):
    proxy, bucket = proxied
    proxy.answer(then=503)
    store = open_store(bucket, Patience(minutes=15))
    with pytest.raises(Unreachable, match=f"Could not read {bucket}/a for 15 minutes .*check the network"):
        store.get_bytes("a")
    assert clock.now == pytest.approx(900)
    with pytest.raises(Unreachable, match="write"):
        store.put_bytes("a", b"x")


def test_jobs_wait_as_long_as_they_go_on_without_a_controller():
    text = (ROOT / "profiles/tpu/config.yaml").read_text().replace("?", "")
    (lease,) = (line for line in text.splitlines() if line.startswith("tpu-lease:"))
    assert yaml.safe_load(lease)["tpu-lease"] == 60 * Patience().minutes


@pytest.mark.parametrize(
    ("places", "given", "seconds"),
    [
        (("data", "gs://bucket/run", None), "", 300 + 60 * 15),
        (("s3://bucket/data", "run", None), "", 300 + 60 * 15),
        (("data", "run", None), "", None),
        (("data", "gs://bucket/run", None), "60", 60),
    ],
)
def test_workers_wait_longer_than_the_one_that_asks_the_bucket(monkeypatch, places, given, seconds):
    monkeypatch.setenv("TRM_WORKER_TIMEOUT", given)  # restored after the test
    if not given:
        monkeypatch.delenv("TRM_WORKER_TIMEOUT")
    monkeypatch.setenv("TRM_STORAGE_MINUTES", "15")
    wait_for_storage(*places)
    found = os.environ.get("TRM_WORKER_TIMEOUT")
    assert (float(found) if found else None) == seconds


def test_a_patience_of_the_library_that_ended_is_no_end_of_ours():
    assert is_transient(
        exceptions.RetryError("Timeout of 120.0s exceeded", exceptions.ServiceUnavailable(""))
    )


@pytest.mark.parametrize(("fault", "lost"), [(404, 2), (410, 2), ("drop", 1)])
def test_upload_sessions_that_are_lost_or_never_answer_are_given_up(broken, big, clock, fault, lost):  # noqa: F811
    def answer(chunks: list[str]) -> int | str | None:
        return fault if len(set(chunks)) <= lost else None

    chunks, store = chunks_of(broken[1], answer), GcsStore(f"gs://{BUCKET}/lost")
    store.put_file("big", big)
    assert len(set(chunks)) == lost + 1
    assert clock.now < 900
    assert same(store, big)


def test_a_finished_training_waits_for_its_last_upload(broken, clock, tmp_path, monkeypatch, capsys):
    """503 for a quarter of an hour, from the moment that the last checkpoint is written."""
    _, proxy = broken
    monkeypatch.setenv("TRM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRM_WORKER_TIMEOUT", "60")
    dataset, began = write_dataset(tmp_path / "tiny"), []

    def fault(method: str, path: str, count: int) -> int | None:
        if began or list(tmp_path.glob("cache/checkpoints/*/step-00000040")):
            began.append(clock.now)
        return 503 if began and clock.now < began[0] + 900 else None

    proxy.fault = fault
    where = ("--out", f"gs://{BUCKET}/runs/tiny", "--checkpoints", f"gs://{BUCKET}/checkpoints/tiny")
    words = train_words(RUN, dataset, tmp_path, "--backend", "cpu", *where, **EAGER)
    assert main(list(map(str, words))) == 0
    assert clock.now >= 900
    assert Mirror(open_store(where[3])).list()[0].step == 40
    assert open_store(where[1]).stat("training.json")
