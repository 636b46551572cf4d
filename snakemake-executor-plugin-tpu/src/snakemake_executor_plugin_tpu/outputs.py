"""What outlives the pod: a job's outputs in Cloud Storage and, beside them, the record of its last launch."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .identity import members

FOLDER = ".snakemake-tpu"


@dataclass(frozen=True)
class Outputs:
    """The outputs of a job; `files` are bucket and name of each, or empty if a folder among them proves nothing."""

    client: Any
    files: tuple[tuple[str, str], ...]
    record: tuple[str, str]

    @classmethod
    def of(cls, job: Any, slot: str) -> "Outputs | None":
        """Return the outputs of a job, None if they are not in Google Cloud Storage."""
        made = [file for part in members(job) for file in part.output if file.is_storage]
        objects = [file.storage_object for file in made]
        if not objects or not all(hasattr(each, "bucket_name") for each in objects):
            return None
        first = objects[0]
        folder = first.key.rpartition("/")[0]
        record = f"{folder}/{FOLDER}/{slot}.json".lstrip("/")
        provable = not any(file.is_directory for file in made)
        files = tuple((each.bucket_name, each.key) for each in objects) if provable else ()
        return cls(first.client, files, (first.bucket_name, record))

    def place(self, pod: str, api: str | None) -> dict[str, Any]:
        """Return where the host writes the record, and the pod's guard why it deletes the pod."""
        bucket, record = self.record
        return {
            "url": f"gs://{bucket}/{record}",
            "last_words": f"gs://{bucket}/{FOLDER}/{pod}.json",
            "api": api,
        }

    def read(self, name: str) -> dict[str, Any]:
        """Read a record, empty if there is none; `since` is the start of the launch by the bucket's clock."""
        blob = self.client.bucket(self.record[0]).get_blob(name)
        if blob is None:
            return {}
        return {"since": blob.updated.isoformat(), **json.loads(blob.download_as_bytes())}

    def last_words(self, pod: str) -> str:
        """Return why a pod deleted itself, empty if it did not."""
        return str(self.read(f"{FOLDER}/{pod}.json").get("why", ""))

    def end_of(self, launch: int, fingerprint: str) -> dict[str, Any] | None:
        """Return how a launch ended, None if that is not known. Complete outputs are a success."""
        found = self.read(self.record[1])
        if (found.get("launch"), found.get("fingerprint")) != (launch, fingerprint):
            return None
        if self._are_whole(found["since"]):
            return {"reason": "exited", **found, "code": 0}
        if found.get("state") == "ended" and (found.get("code") or not self.files):
            return found
        return None

    def _are_whole(self, since: str) -> bool:
        """Whether this launch has stored every output; older ones are from another."""
        blobs = [self.client.bucket(bucket).get_blob(name) for bucket, name in self.files]
        start = datetime.fromisoformat(since)
        return bool(blobs) and all(blob is not None and blob.updated >= start for blob in blobs)
