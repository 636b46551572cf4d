"""What goes wrong with a bucket of either kind, by really doing it: a server that dies, a proxy that fails, damages
and denies."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.api_core import exceptions
from google.cloud import storage
from google.oauth2.credentials import Credentials

from snakemake_executor_plugin_tpu.worker.bucket import TRANSIENT
from trm.storage import ABSENT, AccessDenied, BucketMissing, Conflict, ObjectMissing, StorageError, open_store
from trm.storage import gcs as gcs_store
from trm.storage.base import TRANSIENT_CODES
from trm.storage.gcs import GcsStore

from .cloud import Proxy
from .conftest import BUCKET, QUICK

URI = f"gs://{BUCKET}/faults"


def test_transient_errors_are_retried(proxied, tmp_path, monkeypatch):
    """Among them a download that arrives whole, but damaged, also from an S3 server that sends no checksums."""
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
    proxy, bucket = proxied
    store, content, copy = open_store(f"{bucket}/retried", QUICK), b"content" * 100, tmp_path / "a"
    for script, operation, answer in (
        ((503, "drop", 429), lambda: store.put_bytes("a", content).size, len(content)),
        ((500, "cut"), lambda: store.get_bytes("a"), content),
        (("flip",), lambda: store.get_file("a", copy), None),
        ((502,), lambda: [info.name for info in store.list()], ["a"]),
        ((504,), lambda: store.delete("a"), None),
    ):
        before = len(proxy.requests)
        proxy.answer(*script)
        assert operation() == answer
        assert len(proxy.requests) > before + len(script)
    assert copy.read_bytes() == content
    assert store.stat("a") is None


@pytest.fixture
def big(tmp_path, monkeypatch) -> Path:
    """A file of three chunks."""
    monkeypatch.setattr(gcs_store, "CHUNK", 4 << 20)
    path = tmp_path / "big"
    path.write_bytes(b"0123456789abcdef" * (10 << 16))  # 10 MiB
    return path


def same(store: GcsStore, path: Path) -> bool:
    """Whether the store holds the file's content under its name."""
    store.get_file(path.name, path.with_suffix(".copy"))
    return path.with_suffix(".copy").read_bytes() == path.read_bytes()


def chunks_of(proxy: Proxy, answer: Callable[[list[str]], int | str | None]) -> list[str]:
    """The addresses, one a session, to which chunks of uploads are sent; `answer` may make a fault of the last."""
    chunks: list[str] = []

    def fault(method: str, path: str, count: int) -> int | str | None:
        if method != "PUT" or "upload_id" not in path:
            return None
        chunks.append(path)
        return answer(chunks)

    proxy.fault = fault
    return chunks


def test_resumable_upload_goes_on_where_it_was(broken, big):
    store = GcsStore(URI, QUICK)
    chunks = chunks_of(broken[1], lambda sent: 503 if len(sent) == 2 else None)
    store.put_file("big", big)
    assert len(chunks) == 4  # the second chunk twice, the first once
    assert same(store, big)


def test_a_write_whose_answer_was_lost_is_ours(proxied):
    proxy, bucket = proxied
    store = open_store(f"{bucket}/lost", QUICK)
    proxy.answer("deaf")
    info = store.put_bytes("claim", b"mine", generation=ABSENT)
    assert info == store.stat("claim")
    with pytest.raises(Conflict, match="changed by another writer"):
        store.put_bytes("claim", b"theirs", generation=ABSENT)
    store.delete("claim", generation=info.generation)
    with pytest.raises(Conflict):  # it was deleted by another job
        store.put_bytes("claim", b"mine", generation=info.generation)


def test_deletes_send_their_preconditions(broken):
    _, proxy = broken
    store = GcsStore(URI, patience=QUICK)
    store.put_bytes("a", b"x")
    store.delete("a", generation="7")
    (sent,) = [line for line in proxy.requests if line.startswith("DELETE")]
    assert "ifGenerationMatch=7" in sent
    proxy.fault = lambda method, path, count: 412 if method == "DELETE" else None
    with pytest.raises(Conflict):
        store.delete("a", generation="7")


def test_damage_that_stays_is_an_error(broken, tmp_path):
    _, proxy = broken
    store = open_store(URI, QUICK)
    store.put_bytes("a", b"content")
    proxy.answer(then="flip")
    with pytest.raises(StorageError, match="does not match its checksum"):
        store.get_file("a", tmp_path / "a")
    assert list(tmp_path.glob("*a*")) == []


ADVICE = {"gs": "Storage Object User on the bucket .*made by the test", "s3": "s3:GetObject"}


def test_denials_say_what_to_do(proxied):
    proxy, bucket = proxied
    proxy.answer(then=403)
    store, advice = open_store(bucket, QUICK), ADVICE[bucket[:2]]
    with pytest.raises(AccessDenied, match=f"No permission to read {bucket}/a: .*{advice}"):
        store.get_bytes("a")
    with pytest.raises(AccessDenied, match=f"No permission to write {bucket}/a: .*{advice}"):
        store.put_bytes("a", b"x")


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
def test_an_expired_or_revoked_token_is_said_to_be_one(broken, monkeypatch, fields, status, words):
    _, proxy = broken
    proxy.answer(then=status)
    own = {"token_uri": f"{proxy.url}/token", "client_id": "id", "client_secret": "secret"}
    client = storage.Client(project="test", credentials=Credentials(**own, **fields))
    monkeypatch.setattr(storage, "Client", lambda: client)
    # not a read: google-auth leaves the body of a refused download open, and its socket to the garbage collector
    with pytest.raises(AccessDenied, match=words):
        GcsStore(URI, QUICK).stat("a")
    assert (set(proxy.requests) == {"POST /token"}) is (status == 400)


def test_no_credentials_at_all(monkeypatch, tmp_path):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(AccessDenied, match="no Google credentials were found"):
        open_store(URI, QUICK).get_bytes("a")


def test_a_missing_bucket_is_no_missing_object(bucket):
    scheme = bucket("x")[:2]
    missing = f"{scheme}://no-such-bucket"
    store = open_store(f"{missing}/x", QUICK)
    actions = [lambda: store.get_bytes("a"), lambda: store.put_bytes("a", b"x"), lambda: next(store.list())]
    if scheme == "s3":  # Google's client takes a missing bucket for an object that is not there
        actions.append(lambda: store.stat("a"))
    for action in actions:
        with pytest.raises(BucketMissing, match=f"The bucket {missing} does not exist: create it"):
            action()
    with pytest.raises(ObjectMissing):
        open_store(bucket("x"), QUICK).get_bytes("a")


def test_listing_is_lazy(broken):
    _, proxy = broken
    store = open_store(URI, QUICK)
    store.put_bytes("a", b"x")
    before = len(proxy.requests)
    listing = store.list()
    assert len(proxy.requests) == before
    assert next(listing).name == "a"
    assert len(proxy.requests) == before + 1


def test_program_and_plugin_repeat_after_the_same_answers():
    assert set(TRANSIENT_CODES) == TRANSIENT - {0}
