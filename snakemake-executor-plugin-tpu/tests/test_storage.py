"""The GCS storage classes against fake-gcs-server behind a proxy that counts requests and injects faults."""

import re
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta
from email.utils import formatdate
from types import SimpleNamespace

import pytest
from google.api_core.exceptions import Forbidden
from google.cloud.storage.retry import DEFAULT_RETRY
from snakemake.io import IOCache
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_common.logging import get_logger
from snakemake_interface_storage_plugins.registry import StoragePluginRegistry
from snakemake_storage_plugin_gcs import StorageProviderSettings

from snakemake_executor_plugin_tpu import storage
from snakemake_executor_plugin_tpu.emulator import gcs
from snakemake_executor_plugin_tpu.emulator.gcs import GcsServer
from snakemake_executor_plugin_tpu.emulator.iam import needed_for_storage


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server with an empty bucket."""
    server = GcsServer(tmp_path_factory.mktemp("gcs") / "log")
    server.start()
    server.create_bucket("bucket")
    yield server
    server.stop()


@pytest.fixture
def provider(server, tmp_path, monkeypatch):
    """Return a storage provider that talks to it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    monkeypatch.setattr(storage.StorageProvider, "patience", 20.0)
    storage.use_listings()
    provider = (
        StoragePluginRegistry()
        .get_plugin("gcs")
        .storage_provider(
            local_prefix=tmp_path, logger=get_logger(), settings=StorageProviderSettings(project="p")
        )
    )
    server.proxy.failures, server.proxy.latency = 0, 0.0
    server.proxy.counts.clear()
    yield provider
    provider.client.close()


def stored(provider, key: str, content: str):
    """Return an object whose local copy has this content."""
    item = provider.object(f"gs://bucket/{key}")
    item.local_path().parent.mkdir(parents=True, exist_ok=True)
    item.local_path().write_text(content)
    return item


async def test_one_listing_covers_all_objects(provider, server):
    for number in range(30):
        provider.client.bucket("bucket").blob(f"many/deep/{number}").upload_from_string("x" * number)
    server.proxy.counts.clear()
    cache = IOCache(20)
    items = [provider.object(f"gs://bucket/many/deep/{number}") for number in range(1000)]
    for item in items:
        await item.inventory(cache)
    assert sum(server.proxy.counts.values()) == 1
    assert [cache.exists_in_storage[item.cache_key()] for item in items] == [True] * 30 + [False] * 970
    assert items[500].get_inventory_parent() in cache.exists_in_storage.has_inventory
    assert cache.size[items[29].cache_key()] == 29
    assert cache.exists_in_storage[
        provider.object("gs://bucket/many/deep").cache_key()
    ]  # a folder is there, too


def test_outages_are_survived(provider, server):
    item = stored(provider, "retry/a", "content")
    server.proxy.failures = 1
    item.store_object()
    server.proxy.failures = 1
    assert item.exists()
    item.local_path().unlink()
    server.proxy.failures = 1
    item.retrieve_object()
    assert item.local_path().read_text() == "content"
    assert not provider.object("gs://bucket/retry/none").exists()


def test_an_outage_outlasts_the_patience_of_googles_client(provider, server, monkeypatch):
    """google-cloud-storage gives up after two minutes (here one second) by RetryError."""
    monkeypatch.setattr(DEFAULT_RETRY, "_timeout", 1.0)
    item = stored(provider, "outage/a", "content")
    for act in (item.store_object, item._list, item.exists, item.retrieve_object):
        server.proxy.down = True
        timer = threading.Timer(2.5, server.proxy.clear_faults)
        timer.start()
        assert act() is not False
        timer.join()
    assert item.local_path().read_text() == "content"


def test_a_lost_upload_session_starts_anew(provider, server):
    item = stored(provider, "retry/large", "x" * (9 << 20))  # larger than what goes in one request
    server.proxy.lost_sessions = 1
    item.store_object()
    assert server.proxy.lost_sessions == 0
    assert provider.client.bucket("bucket").get_blob("retry/large").size == 9 << 20


def test_a_slow_clock_here_does_not_make_local_files_look_old(provider, server, monkeypatch):
    slow = 600.0
    real = gcs.ProxyHandler.answer

    def answer(handler, status, content, *headers):
        """Answer as a server whose clock is ten minutes ahead of this machine's, in dates and in objects."""
        for stamp in set(re.findall(rb'"(?:updated|timeCreated)":\s*"([^"]+)"', content)):
            later = datetime.fromisoformat(stamp.decode()) + timedelta(seconds=slow)
            content = content.replace(stamp, later.isoformat().replace("+00:00", "Z").encode())
        real(handler, status, content, *headers)

    monkeypatch.setattr(gcs.ProxyHandler, "answer", answer)
    monkeypatch.setattr(
        gcs.ProxyHandler,
        "date_time_string",
        lambda handler, stamp=None: formatdate(time.time() + slow, usegmt=True),
    )
    began = time.time()
    item = stored(provider, "counts/a.txt", "a")
    item.store_object()
    assert began - 2 < item.mtime() < time.time() + 2
    assert -slow - 2 < provider.skew < -slow + 2


def test_missing_credentials_are_one_sentence(tmp_path, monkeypatch):
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "NO_GCE_CHECK": "true",
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    settings = StorageProviderSettings(project="p")
    with pytest.raises(WorkflowError, match="This machine has no Google credentials: run `gcloud auth"):
        storage.StorageProvider(local_prefix=tmp_path, logger=get_logger(), settings=settings)


def test_folders_are_uploaded_and_downloaded(provider):
    item = provider.object("gs://bucket/folder/out")
    for name in ("x", "deep/y"):
        path = item.local_path() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    item.store_object()
    assert provider.object("gs://bucket/folder/out").exists()
    names = {blob.name for blob in provider.client.list_blobs("bucket", prefix="folder/")}
    assert names == {"folder/out/x", "folder/out/deep/y"}


def test_only_permissions_on_objects_are_needed(provider, server, monkeypatch):
    """roles/storage.objectUser may neither look at the bucket nor name a project to bill."""
    monkeypatch.setattr(server.proxy, "roles", {"roles/storage.objectUser"})
    with pytest.raises(Forbidden, match="storage.buckets.get"):
        provider.client.bucket("bucket").exists()
    with pytest.raises(Forbidden, match=r"serviceusage\.services\.use"):
        provider.client.bucket("bucket", user_project="p").blob("x").exists()
    item = stored(provider, "least/a", "content")
    item.store_object()
    assert item.exists()
    assert item.size() == 0
    assert item.mtime() > 0
    item.local_path().unlink()
    item.retrieve_object()
    item.remove()
    assert not item.exists()
    monkeypatch.setattr(server.proxy, "roles", {"roles/storage.objectViewer"})
    with pytest.raises(
        WorkflowError, match="refuses gs://bucket/least/b: give the account roles/storage.objectUser"
    ):
        stored(provider, "least/b", "content").store_object()


OBJECT_WORK = {"list", "read", "write", "label", "copy", "delete"}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("objectViewer", {"list", "read"}),
        ("legacyBucketReader", {"look", "list"}),
        ("objectUser", OBJECT_WORK),
        ("objectAdmin", OBJECT_WORK),
        ("admin", OBJECT_WORK | {"look"}),
    ],
)
def test_a_role_allows_what_google_says_and_nothing_else(provider, server, monkeypatch, role, allowed):
    bucket = provider.client.bucket("bucket")
    for name in ("a", "b"):
        bucket.blob(f"roles/{name}").upload_from_string("x")
    monkeypatch.setattr(server.proxy, "roles", {f"roles/storage.{role}"})
    labelled = bucket.blob("roles/a")
    labelled.metadata = {"kind": "text"}
    work = {
        "look": bucket.exists,
        "list": lambda: list(bucket.list_blobs(prefix="roles/")),
        "read": bucket.blob("roles/a").download_as_bytes,
        "write": lambda: bucket.blob("roles/a").upload_from_string("y"),
        "label": labelled.patch,
        "copy": lambda: bucket.blob("roles/c").rewrite(bucket.blob("roles/a")),
        "delete": bucket.blob("roles/b").delete,
    }
    done = set()
    for name, act in work.items():
        with suppress(Forbidden):
            act()
            done.add(name)
    assert done == allowed


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("PATCH", "/storage/v1/b/x/o/y", {"storage.objects.get", "storage.objects.update"}),
        ("POST", "/storage/v1/b/x/iam/testPermissions", set()),
        ("GET", "/storage/v1/b/x/o/y?userProject=p", {"serviceusage.services.use", "storage.objects.get"}),
        ("POST", "/upload/storage/v1/b/x/o?uploadType=resumable", {"storage.objects.create"}),
    ],
)
def test_requests_need_what_google_publishes(method, path, needed):
    assert needed_for_storage(method, path) == needed


@pytest.mark.parametrize("path", ["/batch/storage/v1", "/x/y", "/storage/v1/b/x/o/y/acl"])
def test_unknown_requests_are_refused(path):
    with pytest.raises(ValueError, match="POST"):
        needed_for_storage("POST", path)


def test_missing_bucket_is_one_sentence(provider):
    with pytest.raises(
        WorkflowError, match="gs://elsewhere does not exist: run `gcloud storage buckets create"
    ):
        provider.object("gs://elsewhere/a").exists()


async def test_the_graph_is_built_from_listings_and_jobs_ask_anew(provider, server, monkeypatch):
    workflow = SimpleNamespace(iocache=IOCache(20))
    monkeypatch.setattr(storage.StorageProvider, "workflow", workflow)
    provider.client.bucket("bucket").blob("graph/runs/a").upload_from_string("x")
    server.proxy.counts.clear()
    items = [provider.object(f"gs://bucket/graph/runs/{name}") for name in "abc"]
    assert [await item.managed_exists() for item in items] == [True, False, False]
    assert sum(server.proxy.counts.values()) == 1
    provider.client.bucket("bucket").blob("graph/runs/b").upload_from_string("x")
    workflow.iocache.deactivate()
    assert [await item.managed_exists() for item in items] == [True, True, False]
