"""What goes wrong with a bucket of either kind, by really doing it: a proxy that fails, damages and denies, for
moments or for minutes of a clock that only waiting moves."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from google.api_core import exceptions
from google.cloud import storage
from google.oauth2.credentials import Credentials

from snakemake_executor_plugin_tpu.worker.bucket import TRANSIENT
from tests.shell import ROOT
from trm.backends.workers import wait_for_storage
from trm.pipeline.files import Files
from trm.storage import ABSENT, Patience, Store, base, open_store
from trm.storage import gcs as gcs_store
from trm.storage.gcs import GcsStore, is_transient

from .cloud import Proxy
from .conftest import QUICK


@pytest.fixture
def remote(bucket) -> Store:
    """An empty store in a bucket of each kind, whose patience soon ends."""
    return open_store(bucket, QUICK)


def test_every_operation_waits_for_an_outage_to_end(bucket, proxy, clock, tmp_path, monkeypatch, caplog):
    """Then other faults follow, among them a download that arrives whole, but damaged, also from an S3 server that
    sends no checksums."""
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
    store, file, copy = open_store(bucket), tmp_path / "file", tmp_path / "copy"
    file.write_bytes(b"weights" * 1000)
    operations = (
        (lambda: store.put_bytes("lease", b"1", generation=ABSENT).size, ["drop", 429], 1),
        (lambda: store.put_file("file", file).size, [500], 7000),
        (lambda: store.get_file("file", copy), ["flip"], None),
        (lambda: store.get_bytes("file"), ["cut"], file.read_bytes()),
        (lambda: store.stat("lease").size, [502], 1),
        (lambda: [info.name for info in store.list()], [504], ["file", "lease"]),
        (lambda: store.delete("lease"), [408], None),
        (lambda: Files(store.uri).exists("results/runs/a"), [], False),
    )
    for operation, faults, answer in operations:
        ends, pauses = clock.now + 60 * 15, 30 * (1 + len(faults))
        left = iter(faults)
        proxy.fault = lambda *_, ends=ends, left=left: 503 if clock.now < ends else next(left, None)
        assert operation() == answer
        assert list(left) == []
        assert ends <= clock.now < ends + pauses
    assert copy.read_bytes() == file.read_bytes()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) <= 5 * len(operations)
    assert f"Could not write {store.uri}/lease for 1 minutes" in said[0]
    assert said[0].endswith("trying for up to 720.")


def test_patience_ends(bucket, proxy, clock):
    proxy.answer(then=503)
    store = open_store(bucket, Patience(minutes=15))
    with pytest.raises(
        base.Unreachable, match=f"Could not read {bucket}/a for 15 minutes .*check the network"
    ):
        store.get_bytes("a")
    assert clock.now == pytest.approx(900)
    with pytest.raises(base.Unreachable, match="write"):
        store.put_bytes("a", b"x")


@pytest.fixture
def big(tmp_path, monkeypatch) -> Path:
    """A file of three chunks."""
    monkeypatch.setattr(gcs_store, "CHUNK", 4 << 20)
    path = tmp_path / "big"
    path.write_bytes(b"0123456789abcdef" * (10 << 16))  # 10 MiB
    return path


def chunks_of(proxy: Proxy, answer: Callable[[list[str]], int | str | None]) -> list[str]:
    """The addresses, one a session, to which chunks of uploads are sent; `answer` may make a fault of the last."""
    chunks: list[str] = []

    def fault(method: str, path: str) -> int | str | None:
        if method != "PUT" or "upload_id" not in path:
            return None
        chunks.append(path)
        return answer(chunks)

    proxy.fault = fault
    return chunks


def test_resumable_upload_goes_on_where_it_was(gcs, proxy, big):
    chunks = chunks_of(proxy, lambda sent: 503 if len(sent) == 2 else None)
    gcs.put_file("big", big)
    assert len(chunks) == 4  # the second chunk twice, the first once
    assert gcs.get_bytes("big") == big.read_bytes()


@pytest.mark.parametrize(("fault", "lost"), [(404, 2), (410, 2), ("drop", 1)])
def test_upload_sessions_that_are_lost_or_never_answer_are_given_up(gs, proxy, big, clock, fault, lost):
    chunks, store = chunks_of(proxy, lambda sent: fault if len(set(sent)) <= lost else None), open_store(gs)
    store.put_file("big", big)
    assert len(set(chunks)) == lost + 1
    assert clock.now < 900
    assert store.get_bytes("big") == big.read_bytes()


def test_a_write_whose_answer_was_lost_is_ours(remote, proxy):
    proxy.answer("deaf")
    info = remote.put_bytes("claim", b"mine", generation=ABSENT)
    assert info == remote.stat("claim")
    with pytest.raises(base.Conflict, match="changed by another writer"):
        remote.put_bytes("claim", b"theirs", generation=ABSENT)
    remote.delete("claim", generation=info.generation)
    with pytest.raises(base.Conflict):  # it was deleted by another job
        remote.put_bytes("claim", b"mine", generation=info.generation)


def test_deletes_send_their_preconditions(gcs, proxy):
    proxy.answer(then=412)
    with pytest.raises(base.Conflict):
        gcs.delete("a", generation="7")
    (sent,) = proxy.requests
    assert "ifGenerationMatch=7" in sent


def test_damage_that_stays_is_an_error(remote, proxy, tmp_path):
    remote.put_bytes("a", b"content")
    proxy.answer(then="flip")
    with pytest.raises(base.StorageError, match="does not match its checksum"):
        remote.get_file("a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


ADVICE = {"gs": "Storage Object User on the bucket .*made by the test", "s3": "s3:GetObject"}


def test_denials_say_what_to_do(remote, proxy):
    proxy.answer(then=403)
    for verb, action in (
        ("read", lambda: remote.get_bytes("a")),
        ("write", lambda: remote.put_bytes("a", b"x")),
    ):
        sentence = f"No permission to {verb} {remote.uri}/a: .*{ADVICE[remote.uri[:2]]}"
        with pytest.raises(base.AccessDenied, match=sentence):
            action()


def test_a_refusal_that_no_role_mends_gives_googles_reason_only():
    error = exceptions.Forbidden("Object 'b/a' is subject to bucket's retention policy")
    said = str(GcsStore._explain(SimpleNamespace(url=lambda name: "gs://b/a"), error, "write", "a"))
    assert said.startswith("No permission to write gs://b/a: no role of this account would help (")
    assert "retention policy" in said


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"token": "stale"}, 401, "credentials have expired"),
        # the token endpoint is the proxy: it refuses the refresh as Google's does
        ({"token": None, "refresh_token": "old"}, 400, "gcloud auth application-default login"),
    ],
)
def test_an_expired_or_revoked_token_is_said_to_be_one(gs, proxy, monkeypatch, fields, status, words):
    proxy.answer(then=status)
    own = {"token_uri": f"{proxy.url}/token", "client_id": "id", "client_secret": "secret"}
    client = storage.Client(project="test", credentials=Credentials(**own, **fields))
    monkeypatch.setattr(storage, "Client", lambda: client)
    # not a read: google-auth leaves the body of a refused download open, and its socket to the garbage collector
    with pytest.raises(base.AccessDenied, match=words):
        open_store(gs, QUICK).stat("a")
    assert (set(proxy.requests) == {"POST /token"}) is (status == 400)


NONE = {"gs": "no Google credentials were found", "s3": "no complete AWS credentials"}


def test_no_credentials_at_all(bucket, monkeypatch, tmp_path):
    for name in ("STORAGE_EMULATOR_HOST", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none.json"))
    with pytest.raises(base.AccessDenied, match=NONE[bucket[:2]]):
        open_store(bucket, QUICK).get_bytes("a")


def test_a_missing_bucket_is_no_missing_object(remote):
    missing = f"{remote.uri[:2]}://no-such-bucket"
    store = open_store(f"{missing}/x", QUICK)
    actions = [lambda: store.get_bytes("a"), lambda: store.put_bytes("a", b"x"), lambda: next(store.list())]
    if missing.startswith("s3"):  # Google's client takes a missing bucket for an object that is not there
        actions.append(lambda: store.stat("a"))
    for action in actions:
        with pytest.raises(base.BucketMissing, match=f"The bucket {missing} does not exist: create it"):
            action()
    with pytest.raises(base.ObjectMissing):
        remote.get_bytes("a")


def test_listing_is_lazy(gcs, proxy):
    gcs.put_bytes("a", b"x")
    before = len(proxy.requests)
    listing = gcs.list()
    assert len(proxy.requests) == before
    assert next(listing).name == "a"
    assert len(proxy.requests) == before + 1


def test_program_and_plugin_repeat_after_the_same_answers():
    assert set(base.TRANSIENT_CODES) == TRANSIENT - {0}


def test_jobs_wait_as_long_as_they_go_on_without_a_controller():
    text = (ROOT / "profiles/tpu/config.yaml").read_text().replace("?", "")
    (lease,) = (line for line in text.splitlines() if line.startswith("tpu-lease:"))
    assert yaml.safe_load(lease)["tpu-lease"] == 60 * Patience().minutes


@pytest.mark.parametrize(
    ("place", "given", "seconds"),
    [
        ("s3://bucket/run", {}, str(300 + 60 * 15.0)),
        ("run", {}, None),
        ("gs://bucket/run", {"TRM_WORKER_TIMEOUT": "60"}, "60"),
    ],
)
def test_workers_wait_longer_than_the_one_that_asks_the_bucket(monkeypatch, place, given, seconds):
    monkeypatch.setattr(os, "environ", {"TRM_STORAGE_MINUTES": "15"} | given)
    wait_for_storage("data", place, None)
    assert os.environ.get("TRM_WORKER_TIMEOUT") == seconds


def test_a_patience_of_the_library_that_ended_is_no_end_of_ours():
    assert is_transient(
        exceptions.RetryError("Timeout of 120.0s exceeded", exceptions.ServiceUnavailable(""))
    )
