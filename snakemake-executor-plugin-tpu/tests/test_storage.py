"""The GCS storage classes against fake-gcs-server behind a proxy that counts requests and injects faults."""

import re
import threading
import time
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
from snakemake_executor_plugin_tpu.emulator.gcs import ProxyHandler
from snakemake_executor_plugin_tpu.emulator.iam import needed_for_storage


@pytest.fixture
def provider(gcs, tmp_path, monkeypatch):
    """Return a storage provider that talks to it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    monkeypatch.setattr(storage.StorageProvider, "patience", 20.0)
    storage.use_listings()
    make = StoragePluginRegistry().get_plugin("gcs").storage_provider
    provider = make(local_prefix=tmp_path, logger=get_logger(), settings=StorageProviderSettings(project="p"))
    yield provider
    gcs.proxy.clear_faults()
    provider.client.close()


def stored(provider, key: str, content: str):
    """Return an object whose local copy has this content."""
    item = provider.object(f"gs://tests/{key}")
    item.local_path().parent.mkdir(parents=True, exist_ok=True)
    item.local_path().write_text(content)
    return item


def test_an_outage_outlasts_the_patience_of_googles_client(provider, gcs, monkeypatch):
    """google-cloud-storage gives up after two minutes (here 0.2 s) by RetryError."""
    monkeypatch.setattr(DEFAULT_RETRY, "_timeout", 0.2)
    item = stored(provider, "outage/a", "content")
    for act in (item.store_object, item._list, item.exists, item.retrieve_object):
        gcs.proxy.down = True
        timer = threading.Timer(0.8, gcs.proxy.clear_faults)
        timer.start()
        assert act() is not False
        timer.join()
    assert item.local_path().read_text() == "content"


def test_a_lost_upload_session_starts_anew(provider, gcs):
    item = stored(provider, "retry/large", "x" * (9 << 20))  # larger than what goes in one request
    gcs.proxy.lost_sessions = 1
    item.store_object()
    assert gcs.proxy.lost_sessions == 0
    assert provider.client.bucket("tests").get_blob("retry/large").size == 9 << 20


def test_a_slow_clock_here_does_not_make_local_files_look_old(provider, gcs, monkeypatch):
    slow = 600.0
    real = ProxyHandler.answer

    def answer(handler, status, content, *headers):
        """Answer as a server whose clock is ten minutes ahead of this machine's, in dates and in objects."""
        for stamp in set(re.findall(rb'"(?:updated|timeCreated)":\s*"([^"]+)"', content)):
            later = datetime.fromisoformat(stamp.decode()) + timedelta(seconds=slow)
            content = content.replace(stamp, later.isoformat().replace("+00:00", "Z").encode())
        real(handler, status, content, *headers)

    monkeypatch.setattr(ProxyHandler, "answer", answer)
    monkeypatch.setattr(
        ProxyHandler, "date_time_string", lambda *_: formatdate(time.time() + slow, usegmt=True)
    )
    began = time.time()
    item = stored(provider, "counts/a.txt", "a")
    item.store_object()
    assert began - 2 < item.mtime() < time.time() + 2
    assert -slow - 2 < provider.skew < -slow + 2


def test_missing_credentials_are_one_sentence(tmp_path, monkeypatch):
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"NO_GCE_CHECK": "true", "HOME": tmp_path, "CLOUDSDK_CONFIG": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    settings = StorageProviderSettings(project="p")
    with pytest.raises(WorkflowError, match="This machine has no Google credentials: run `gcloud auth"):
        storage.StorageProvider(local_prefix=tmp_path, logger=get_logger(), settings=settings)


def test_folders_are_uploaded_and_downloaded(provider):
    item = provider.object("gs://tests/folder/out")
    for name in ("x", "deep/y"):
        path = item.local_path() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    item.store_object()
    assert provider.object("gs://tests/folder/out").exists()
    names = {blob.name for blob in provider.client.list_blobs("tests", prefix="folder/")}
    assert names == {"folder/out/x", "folder/out/deep/y"}


def test_only_permissions_on_objects_are_needed(provider, gcs, monkeypatch):
    """roles/storage.objectUser may neither look at the bucket nor name a project to bill."""
    monkeypatch.setattr(gcs.proxy, "roles", {"roles/storage.objectUser"})
    with pytest.raises(Forbidden, match="storage.buckets.get"):
        provider.client.bucket("tests").exists()
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
    monkeypatch.setattr(gcs.proxy, "roles", {"roles/storage.objectViewer"})
    refusal = "refuses gs://tests/least/b: give the account roles/storage.objectUser"
    with pytest.raises(WorkflowError, match=refusal):
        stored(provider, "least/b", "content").store_object()


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/storage/v1/b/x?fields=location", {"storage.buckets.get"}),
        ("GET", "/storage/v1/b/x/o?prefix=y", {"storage.objects.list"}),
        ("GET", "/download/storage/v1/b/x/o/y?alt=media", {"storage.objects.get"}),
        ("DELETE", "/storage/v1/b/x/o/y", {"storage.objects.delete"}),
        ("PATCH", "/storage/v1/b/x/o/y", {"storage.objects.get", "storage.objects.update"}),
        ("POST", "/storage/v1/b/x/iam/testPermissions", set()),
        ("GET", "/storage/v1/b/x/o/y?userProject=p", {"serviceusage.services.use", "storage.objects.get"}),
        ("POST", "/upload/storage/v1/b/x/o?uploadType=resumable", {"storage.objects.create"}),
    ],
)
def test_requests_need_what_google_publishes(method, path, needed):
    assert needed_for_storage(method, path) == needed
    for unknown in ("/batch/storage/v1", "/x/y", "/storage/v1/b/x/o/y/acl"):
        with pytest.raises(ValueError, match="POST"):
            needed_for_storage("POST", unknown)


def test_missing_bucket_is_one_sentence(provider):
    missing = "gs://elsewhere does not exist: run `gcloud storage buckets create"
    with pytest.raises(WorkflowError, match=missing):
        provider.object("gs://elsewhere/a").exists()


async def test_the_graph_is_built_from_one_listing_and_jobs_ask_anew(provider, gcs, monkeypatch):
    workflow, bucket = SimpleNamespace(iocache=IOCache(20)), provider.client.bucket("tests")
    monkeypatch.setattr(storage.StorageProvider, "workflow", workflow)
    for number in range(30):
        bucket.blob(f"graph/runs/{number}").upload_from_string("x" * number)
    gcs.proxy.counts.clear()
    items = [provider.object(f"gs://tests/graph/runs/{number}") for number in range(1000)]
    assert [await item.managed_exists() for item in items] == [True] * 30 + [False] * 970
    assert await provider.object("gs://tests/graph/runs").managed_exists()  # a folder
    assert sum(gcs.proxy.counts.values()) == 1
    assert workflow.iocache.size[items[29].cache_key()] == 29
    assert items[500].get_inventory_parent() in workflow.iocache.exists_in_storage.has_inventory
    bucket.blob("graph/runs/30").upload_from_string("x")
    workflow.iocache.deactivate()
    assert [await item.managed_exists() for item in items[29:32]] == [True, True, False]
