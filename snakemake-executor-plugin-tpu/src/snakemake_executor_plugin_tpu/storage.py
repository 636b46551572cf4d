"""Cloud Storage for studies of thousands of files: subclasses of snakemake-storage-plugin-gcs that

- list a folder of folders once while Snakemake builds its graph, for all objects below it;
- never ask about the bucket itself: roles/storage.objectUser may not, nor may it name a project to bill;
- retry requests and transfers after transient errors, as long as `use_listings` says;
- give times by this machine's clock: with the bucket's, local outputs look too old if the clock here is slow.

docs/upstream has the first three as a patch for that plugin; once it is released, they go from here. This file is also
copied to the hosts and imports nothing from this package but the host's client.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

import snakemake_storage_plugin_gcs as plugin
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_common.logging import get_logger
from snakemake_interface_storage_plugins.io import Mtime
from snakemake_interface_storage_plugins.registry import StoragePluginRegistry

from .worker.bucket import NO_BUCKET, NO_CREDENTIALS, TELL_SECONDS, TRANSIENT, no_bucket, reason_of, remedy

# Otherwise a thread of the client asks for the bucket's metadata to label traces.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")

LEAST_SKEW = 5.0  # seconds; less is the delay of an answer


def is_transient(error: Exception) -> bool:
    """Whether a retry may succeed. RetryError: the client has given up after its own two minutes."""
    import requests
    from google.api_core import exceptions

    if isinstance(error, exceptions.GoogleAPICallError):
        return error.code in TRANSIENT or is_lost_session(error)
    return isinstance(error, (exceptions.RetryError, requests.RequestException, ConnectionError))


def is_lost_session(error: Any) -> bool:
    """Whether a resumable upload has to start anew: its session has expired."""
    request = getattr(error.response, "request", None)
    return error.code in (400, 404, 410) and "upload_id=" in str(getattr(request, "url", ""))


def with_retry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Retry after transient errors, first after 0.5 s, then twice as long each time; explain 403 and 404."""

    @functools.wraps(function)
    def call(self: Any, *arguments: Any) -> Any:
        from google.api_core import exceptions
        from google.api_core.retry import Retry

        began, told = time.time(), False

        def tell(error: Exception) -> None:
            nonlocal told
            if time.time() - began > TELL_SECONDS and not told:
                told, since = True, time.strftime("%H:%M", time.localtime(began))
                get_logger().warning(f"Cloud Storage does not answer since {since} ({error}): trying again")

        pauses = {"initial": 0.5, "multiplier": 2.0, "maximum": 30.0, "timeout": StorageProvider.patience}
        retry = Retry(predicate=is_transient, on_error=tell, **pauses)
        try:
            return retry(function)(self, *arguments)
        # a missing bucket or role, a retention policy, a bucket whose requester pays
        except exceptions.ClientError as error:
            reason = reason_of(error.response.content) if error.response is not None else str(error.message)
            if reason == NO_BUCKET:
                raise WorkflowError(no_bucket(self.bucket_name)) from None
            if error.code == 404:
                raise
            advice = remedy(int(error.code or 0), reason)
            raise WorkflowError(f"Cloud Storage refuses {self.query}{advice} ({reason}).") from None

    return call


def listed_prefix(key: str, levels: int = 2) -> str:
    """Return the prefix of one listing: runs/ for runs/a/result.json, or runs/a/ with one level."""
    folders = key.split("/")[:-1]
    if not folders:
        return key
    return "".join(f"{folder}/" for folder in folders[: max(1, len(folders) - levels + 1)])


class StorageProvider(plugin.StorageProvider):
    levels = 2
    workflow: Any = None
    patience = 300.0
    skew: float | None = None
    """Seconds by which this machine's clock is ahead of Cloud Storage's; measured at the first answer."""

    def __post_init__(self) -> None:
        """Make the client, which compares the clocks at the first answer."""
        from google.auth.exceptions import DefaultCredentialsError

        try:
            super().__post_init__()
        except DefaultCredentialsError:
            raise WorkflowError(NO_CREDENTIALS) from None
        self.client._http.hooks["response"].append(self._compare_clocks)

    def _compare_clocks(self, response: Any, *_: Any, **__: Any) -> None:
        if self.skew is None and (date := response.headers.get("Date")):
            skew = time.time() - parsedate_to_datetime(date).timestamp()
            self.skew = skew if abs(skew) > LEAST_SKEW else 0.0
            if self.skew:
                ahead = "ahead of" if self.skew > 0 else "behind"
                get_logger().warning(
                    f"The clock of this machine is {abs(self.skew):.0f} s {ahead} Google's: set it by `timedatectl "
                    "set-ntp true`. Until then the times of files in the bucket are corrected."
                )

    def here(self, stamp: float) -> float:
        return stamp + (self.skew or 0.0)

    @classmethod
    def cache(cls) -> Any:
        """Return Snakemake's cache while it builds its graph, and None while jobs run."""
        cache = getattr(cls.workflow, "iocache", None)
        return cache if cache is not None and cache.active else None


class StorageObject(plugin.StorageObject):
    """An object, or a folder of objects, in a bucket."""

    @property
    def bucket(self) -> Any:
        """Return the bucket as one that exists, without a project to bill: objectUser may neither ask nor bill."""
        bucket = self.client.bucket(self.bucket_name)
        bucket.exists = lambda: True
        return bucket

    def get_inventory_parent(self) -> str:
        """Return the cache key of the listing that covers this object."""
        # Below a parent with an inventory Snakemake treats objects that are not in the inventory as missing.
        return str(self.cache_key(f"{self.bucket_name}/{listed_prefix(self.key, self.provider.levels)}"))

    async def inventory(self, cache: Any) -> None:
        """Fill Snakemake's cache from one listing."""
        parent = self.get_inventory_parent()
        if parent in cache.exists_in_storage.has_inventory:
            return
        for key, (updated, size) in self._list().items():
            name = self.cache_key(self._local_suffix_from_key(key))
            cache.exists_in_storage[name] = True
            cache.mtime[name] = Mtime(storage=updated)
            cache.size[name] = size
        cache.exists_in_storage.has_inventory.add(parent)

    @with_retry
    def _list(self) -> dict[str, tuple[float, int]]:
        prefix, found = listed_prefix(self.key, self.provider.levels), {}
        fields = "items(name,updated,size),nextPageToken"
        for blob in self.client.list_blobs(self.bucket_name, prefix=prefix, fields=fields):
            updated = self.provider.here(blob.updated.timestamp())
            found[blob.name] = (updated, blob.size)
            # An output may be a folder: it exists if it is not empty, and is as new as its newest object.
            folder = os.path.dirname(blob.name.rstrip("/"))
            while len(folder) >= len(prefix) and folder:
                found[folder] = (max(found.get(folder, (0.0, 0))[0], updated), 0)
                folder = os.path.dirname(folder)
        return found

    async def managed_exists(self) -> bool:
        """Answer from the listing while the graph is built; Snakemake itself lists only for targets in storage."""
        cache = self.provider.cache()
        if cache is None:
            return bool(await super().managed_exists())
        await self.inventory(cache)
        return bool(cache.exists_in_storage[self.cache_key()])

    exists = with_retry(plugin.StorageObject.exists)
    retrieve_object = with_retry(plugin.StorageObject.retrieve_object)

    @with_retry
    def mtime(self) -> float:
        """Return the time of the newest change by this machine's clock."""
        return float(self.provider.here(super().mtime()))

    @with_retry
    def store_object(self) -> None:
        if self.local_path().is_dir():
            self.upload_directory(local_directory_path=self.local_path())
        else:
            self.blob.upload_from_filename(str(self.local_path()))


def use_listings(workflow: Any = None, levels: int = 2, patience: float | None = None) -> None:
    """Have `storage.gcs` and `default-storage-provider: gcs` use these classes.

    `workflow` of a Snakefile: its cache is filled from listings. A workflow lists the parent folders of its files'
    folders (2 levels), a single job those folders (1). Requests are repeated for `patience` seconds.
    """
    plugins = StoragePluginRegistry().plugins
    StorageProvider.patience = patience or StorageProvider.patience
    StorageProvider.levels, StorageProvider.workflow = levels, workflow or StorageProvider.workflow
    classes = {"storage_provider": StorageProvider, "storage_object": StorageObject}
    plugins["gcs"] = dataclasses.replace(plugins["gcs"], **classes)
