"""Documents in the bucket: creates exclude each other, one writer knows its generation, and outages lose nothing."""

import concurrent.futures
import threading

import pytest

from snakemake_executor_plugin_tpu.control import NOBODY, Control
from snakemake_executor_plugin_tpu.emulator.web import Handler, HttpServer
from snakemake_executor_plugin_tpu.worker.bucket import (
    Bucket,
    Cell,
    Forged,
    HostTransport,
    Lost,
    Offline,
    Refused,
    seal,
    sign,
    unseal,
    verify,
)

KEY = bytes(range(32))


@pytest.fixture
def bucket(gcs, monkeypatch, request):
    """Return a function that makes clients of a folder of its own."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    ways = []

    def client(**options):
        ways.append(HostTransport())
        return Bucket(f"gs://tests/{request.node.name}", KEY, ways[-1], **options)

    yield client
    gcs.proxy.clear_faults()
    for way in ways:
        if way._connection is not None:
            way._connection.close()


def test_of_creates_at_once_one_succeeds(bucket):
    clients = [bucket() for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda client: client.create("x", {"by": id(client)}), clients))
    assert sum(ours for _, ours in made) == 1
    assert len({str(document) for document, _ in made}) == 1


def test_of_two_writers_the_one_who_knows_less_loses(bucket):
    one, other = Cell(bucket(), "x", {}), Cell(bucket(), "x", {})
    one.write({"by": 1})
    with pytest.raises(Lost):
        other.write({"by": 2})
    Cell(bucket(), "x", {}).write({"by": 3})
    with pytest.raises(Lost):
        one.write({"by": 1})
    assert bucket().read("x") == {"by": 3}


def test_a_renewal_that_is_still_on_its_way_does_not_keep_a_released_lease(bucket):
    own, began, go = bucket(), threading.Event(), threading.Event()
    control = Control(own, 0, {"node": "n"}, {"silence": 60.0})
    control.acquire()
    put = own.put

    def slow(*arguments):
        own.put = put
        began.set()
        go.wait()
        return put(*arguments)

    own.put = slow
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        renewal = pool.submit(control.renew, True)
        began.wait()
        release = pool.submit(control.release)
        go.set()
        renewal.result()
        release.result()
        control.renew(busy=True)  # so does a look that begins too late
    assert bucket().read("controller")["who"] == NOBODY


@pytest.mark.parametrize("patience", [0.0, 30.0])
def test_a_write_of_unknown_outcome_is_read_back(bucket, gcs, patience):
    client = bucket(patience=patience)
    cell = Cell(client, "x", {})
    gcs.proxy.uploads.clear()
    gcs.proxy.lossy = True
    for count in range(3):
        for _ in range(4):
            try:
                cell.write({"by": 1, "count": count})
                break
            except Offline:
                assert not patience
        made = [client.create(f"c{count}", {"by": 1})[1]] if patience else [True]
        assert made == [True]
    gcs.proxy.lossy = False
    assert bucket().read("x") == {"by": 1, "count": 2}


def test_an_outage_is_waited_for_as_long_as_the_patience_and_said(bucket, gcs):
    said = []
    client = bucket(patience=60.0, tell=said.append)
    client._silent_since = 1e-9  # silent for longer than a minute
    gcs.proxy.down = True
    timer = threading.Timer(1.0, gcs.proxy.clear_faults)
    timer.start()
    client.put("x", b"1")
    timer.join()
    assert "does not answer (50" in said[0]
    assert said[1] == "Cloud Storage (gs://tests) answers again."
    gcs.proxy.down = True
    with pytest.raises(Offline, match=r"gs://tests\) does not answer \(50[03]\) since \d\d:\d\d; jobs go on"):
        bucket(patience=0.5).get("x")


def test_too_many_writes_of_one_name_are_slowed_down(bucket, gcs):
    gcs.proxy.limit = True
    client = bucket(patience=20.0)
    for count in range(2):
        client.put("x", str(count).encode())
    assert gcs.proxy.limited > 0
    with pytest.raises(Offline, match="asks too often"):
        bucket().put("x", b"2")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((403, b'{"error": {"message": "a retention policy"}}'), r"gs://tests answers 403 \(a retention policy\)"),
        ((403, b'{"error": {"message": "x does not have y"}}'), "give the account roles/storage.objectUser"),
        ((403, b'{"error": {"message": "prohibited: vpcServiceControlsUniqueIdentifier: x"}}'),
         "VPC Service Controls .* run it inside the bucket's perimeter"),
        ((403, b'{"error": {"message": "There is an IP filtering condition that is preventing access."}}'),
         "the bucket's IP filter forbids this machine's address"),
        ((400, b"what?"), r"answers 400 \(what\?\)"),
        ((404, b'{"error": {"message": "The specified bucket does not exist."}}'), "gs://tests does not exist"),
    ],
)  # fmt: skip
def test_a_refusal_is_said_in_googles_words(answer, error):
    client = Bucket("gs://tests/x", transport=lambda *request: (answer[0], {}, answer[1]))
    with pytest.raises(Refused, match=error):
        client.get("y")


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", b"rubbish\r\n\r\n", b""]
)
def test_a_connection_that_breaks_is_no_answer(answer, monkeypatch):
    class Broken(Handler):
        def handle(self):
            self.rfile.readline()
            self.wfile.write(answer)

    server = HttpServer(("127.0.0.1", 0), Broken)
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    with pytest.raises(Offline, match="does not answer"):
        Bucket("gs://tests/x", transport=HostTransport()).get("y")
    server.stop()


def test_documents_are_signed_for_their_name(bucket):
    client = bucket()
    assert verify(KEY, "x", sign(KEY, "x", {"a": 1})) == {"a": 1}
    signed = sign(KEY, "y", {"a": 1}), sign(b"other", "x", {"a": 1})
    for data in (*signed, b"", b"[]", b'{"mac": 1, "text": "{}"}'):
        client.put("x", data)
        with pytest.raises(Forged, match="not signed with the pod's key"):
            client.read("x")


def test_content_is_what_its_name_says(bucket):
    client = bucket()
    name = client.create_content("code", b"program")
    assert client.create_content("code", b"program") == name
    assert client.content("code", name) == b"program"
    client.put(f"code/{name}", b"other")
    with pytest.raises(Forged):
        client.content("code", name)


def test_sealed_variables_are_read_with_the_key_only():
    sealed = seal(KEY, {"WANDB_API_KEY": "hush"})
    assert unseal(KEY, sealed) == {"WANDB_API_KEY": "hush"}
    assert "hush" not in str(sealed)
    assert sealed["sealed"] != seal(KEY, {"WANDB_API_KEY": "hush"})["sealed"]
    with pytest.raises(ValueError):  # noqa: PT011 (whatever the bytes are)
        unseal(b"other", sealed)
