"""Reproduces the faults that snakemake-storage-plugin-gcs.patch corrects (see README.md)."""

import asyncio
import os
import tempfile
from pathlib import Path

from google.api_core.exceptions import BadGateway, GatewayTimeout
from snakemake.io import IOCache
from snakemake_interface_common.logging import get_logger
from snakemake_storage_plugin_gcs import (
    StorageObject,
    StorageProvider,
    StorageProviderSettings,
    google_cloud_retry_predicate,
)

from snakemake_executor_plugin_tpu.emulator.gcs import GcsServer


def objects(folder: Path) -> list[StorageObject]:
    """Return objects of two folders in a bucket that this account may only use."""
    provider = StorageProvider(
        local_prefix=folder, logger=get_logger(), settings=StorageProviderSettings(project="p")
    )
    return [provider.object(f"gs://bucket/{place}/{number}") for place in "ab" for number in range(5)]


def main() -> None:
    """Print one line for each fault."""
    with tempfile.TemporaryDirectory() as name:
        server = GcsServer(Path(name) / "log")
        server.start()
        server.create_bucket("bucket")
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        try:
            first, *_, last = found = objects(Path(name))
            server.proxy.roles = {"roles/storage.objectUser"}
            try:
                first.exists()
            except Exception as error:
                print(f"a question about the bucket, or for whom to bill: {str(error)[:150]}")
            server.proxy.roles = {"roles/storage.admin", "roles/serviceusage.serviceUsageConsumer"}
            cache = IOCache(60)
            for each in found:
                asyncio.run(each.inventory(cache))
            if last.get_inventory_parent() == first.get_inventory_parent():
                print("one inventory for the whole bucket, filled from the folder of the first object")
            for error in (BadGateway("x"), GatewayTimeout("x"), ConnectionResetError()):
                if not google_cloud_retry_predicate(error):
                    print(f"not repeated: {type(error).__name__}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
