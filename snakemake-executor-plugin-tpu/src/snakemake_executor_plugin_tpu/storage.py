"""Makes the GCS storage plugin fit for studies of thousands of files.

Out of the box it asks five times, one after the other, for every object that does not exist, looks at the bucket
before each transfer, and uploads what is there already. `improve_gcs()` replaces some of its methods:

- one listing for each folder of folders tells which objects exist, with time and size; Snakemake takes stock like
  this only where the target itself is in storage, so its first question for any object is made to do so;
- transfers and questions are repeated on passing errors, with growing pauses;
- a file whose content is in the bucket already is not uploaded again.

This file is also copied to the workers: it imports nothing of the plugin.
"""

import base64
import os

RETRY_DEADLINE = 300.0


def is_transient(error: Exception) -> bool:
    """Tell whether trying again may help."""
    import requests
    from google.api_core import exceptions, retry
    from snakemake_interface_common.exceptions import WorkflowError

    passing = (
        exceptions.ServerError,
        exceptions.TooManyRequests,
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
        ConnectionError,
    )
    if isinstance(error, passing) or retry.if_transient_error(error):
        return True
    # The plugin reports a download whose checksum is wrong like this.
    return isinstance(error, WorkflowError) and "checksum" in str(error).lower()


def with_retry(function):
    """Call again after errors that pass, pausing 0.5 s, then twice as long each time."""
    from google.api_core.retry import Retry

    return Retry(predicate=is_transient, initial=0.5, multiplier=2.0, maximum=30.0, timeout=RETRY_DEADLINE)(
        function
    )


def crc32c_of(path: str) -> str:
    """Return a file's checksum as GCS states it."""
    from google_crc32c import Checksum

    checksum = Checksum()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()


def listed_prefix(key: str, levels: int = 2) -> str:
    """Return the part of a bucket that one listing covers: runs/ for runs/a/result.json, or with one level runs/a/."""
    folders = key.split("/")[:-1]
    if not folders:
        return key
    return "".join(f"{folder}/" for folder in folders[: max(1, len(folders) - levels + 1)])


def take_stock_first() -> None:
    """Have Snakemake list the storage before it asks for single objects, wherever in the workflow they stand."""
    from snakemake.io import _IOFile

    ask = _IOFile.exists_in_storage

    async def exists_in_storage(self):
        if self.is_storage:
            await self.inventory()  # nothing to do once it is made, or while jobs run
        return await ask(self)

    _IOFile.exists_in_storage = exists_in_storage


def improve_gcs(levels: int = 2) -> bool:
    """Replace the slow methods of snakemake-storage-plugin-gcs; return whether it is there to be improved.

    A single job (levels=1) lists the folders of its own files; a workflow the folders that hold such folders.
    """
    try:
        import snakemake_storage_plugin_gcs as plugin
        from snakemake_interface_storage_plugins.io import Mtime
    except ImportError:
        return False
    cls = plugin.StorageObject
    if getattr(cls, "improved_by_tpu_plugin", False):
        return True

    def bucket_exists(self) -> bool:
        known = self.provider.__dict__.setdefault("known_buckets", set())
        if self.bucket_name not in known:
            if not self.bucket.exists():
                return False
            known.add(self.bucket_name)
        return True

    def get_inventory_parent(self):
        # Snakemake takes objects below a parent with an inventory for absent unless the inventory named them.
        return self.cache_key(f"{self.bucket_name}/{listed_prefix(self.key, levels)}")

    async def inventory(self, cache) -> None:
        parent = self.get_inventory_parent()
        if parent in cache.exists_in_storage.has_inventory:
            return
        for key, blob in with_retry(lambda: _list(self))().items():
            name = self.cache_key(self._local_suffix_from_key(key))
            cache.exists_in_storage[name] = True
            cache.mtime[name] = Mtime(storage=blob["updated"])
            cache.size[name] = blob["size"]
        cache.exists_in_storage.has_inventory.add(parent)

    def _list(self) -> dict[str, dict]:
        if not bucket_exists(self):
            return {}
        prefix, found = listed_prefix(self.key, levels), {}
        fields = "items(name,updated,size),nextPageToken"
        for blob in self.client.list_blobs(self.bucket_name, prefix=prefix, fields=fields):
            entry = {"updated": blob.updated.timestamp(), "size": blob.size}
            found[blob.name] = entry
            # An output may be a folder: it exists as soon as something is in it, and is as old as its newest part.
            folder = os.path.dirname(blob.name.rstrip("/"))
            while len(folder) >= len(prefix) and folder:
                known = found.setdefault(folder, {"updated": 0.0, "size": 0})
                known["updated"] = max(known["updated"], entry["updated"])
                folder = os.path.dirname(folder)
        return found

    def exists(self) -> bool:
        if not bucket_exists(self):
            return False
        if self.blob.exists():
            return True
        below = self.client.list_blobs(self.bucket_name, prefix=self.key.rstrip("/") + "/", max_results=1)
        return any(True for _ in below)

    def ensure_bucket_exists(self) -> None:
        if not bucket_exists(self):
            self.client.create_bucket(self.bucket)

    def store_object(self) -> None:
        local = self.local_path()
        self.ensure_bucket_exists()
        if local.is_dir():
            self.upload_directory(local_directory_path=local)
            return
        present = self.bucket.get_blob(self.key)
        if (
            present is not None
            and present.size == local.stat().st_size
            and present.crc32c == crc32c_of(local)
        ):
            # It is copied onto itself inside the bucket: without a new time, what it was made from would look newer.
            token, _, _ = self.blob.rewrite(present)
            while token is not None:
                token, _, _ = self.blob.rewrite(present, token=token)
            return
        self.blob.upload_from_filename(str(local))

    for name, method in {
        "exists": with_retry(exists),
        "store_object": with_retry(store_object),
        "retrieve_object": with_retry(cls.retrieve_object),
        "ensure_bucket_exists": ensure_bucket_exists,
        "get_inventory_parent": get_inventory_parent,
        "inventory": inventory,
    }.items():
        setattr(cls, name, method)
    take_stock_first()
    cls.improved_by_tpu_plugin = True
    return True
