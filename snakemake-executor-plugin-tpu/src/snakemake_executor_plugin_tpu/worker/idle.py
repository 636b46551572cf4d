"""What a host does without a controller: it ends unattended jobs, and deletes a pod that is idle or past its end date.

The pod is idle if every host is, no controller with work is fresh, and nobody holds it. A host that writes no
heartbeats any more has stopped its job by the fence. The first host deletes the pod as the node's service account; if
it fails to, the others follow.
"""

import os
import time
import urllib.error
import urllib.request
import uuid
from http.client import HTTPException

from .bucket import Account, Bucket, Document, Forged, sign, verify

CHECK_SECONDS = 900.0
API = "https://tpu.googleapis.com"


def held_for(bucket: Bucket) -> float:
    """Return for how many seconds a person still holds the pod, 0 if nobody does: without the key nobody can."""
    if (found := bucket.get("hold")) is None:
        return 0.0
    try:
        return max(0.0, float(verify(bucket.key, "hold", found.data)["seconds"]) - found.age)
    except Forged:
        return 0.0


class Idle:
    """The rules of one host. `orders` are those of the loop."""

    def __init__(self, orders: Document, bucket: Bucket) -> None:
        self.orders, self.bucket, self.account = orders, bucket, Account()
        self.rank, self.hosts = int(orders["rank"]), int(orders["hosts"])
        self.limit, self.end = float(orders["idle_seconds"]), float(orders["end"])
        self.times: dict[str, float] = orders["times"]
        self.looked_at, self.checked_at = 0.0, float("-inf")
        self.error, self.deleting = "", ""

    def about(self) -> Document:
        return {"limit": self.limit, "end": self.end, "error": self.error, "deleting": self.deleting}

    def step(self, idle: "float | None", current: "Document | None") -> str:
        """Look from time to time; `idle` is None while a job runs. Return why the current job has to stop."""
        now = time.monotonic()
        if now - self.looked_at < self.times["look"]:
            return ""
        self.looked_at = now
        if (self.limit or self.end) and now - self.checked_at > (60.0 if self.error else CHECK_SECONDS):
            self._check()
            self.checked_at = now
        why = self._why_delete(idle)
        if why or self.deleting:
            # "" takes the word back: from now on a person has deleted the pod if it is gone.
            name = f"ended/{self.orders['node']}"
            self.bucket.put(name, sign(self.bucket.key, name, {"why": why}))
            self.deleting = why
        if why:
            self._delete()
        found = self.bucket.get("controller") if current else None
        lease = float(current["lease"]) if current else 0.0
        return "lease" if lease and found and found.age > lease else ""

    def _why_delete(self, idle: "float | None") -> str:
        patience = self.rank * min(60.0, self.limit or 60.0)
        if self.end and time.time() > self.end + patience:
            return "its end date has passed"
        if not self.limit or idle is None or idle < self.limit + patience or self._is_wanted():
            return ""
        for rank in set(range(self.hosts)) - {self.rank}:
            name = f"hosts/{rank}/beat"
            found = self.bucket.get(name)
            if found is None or found.age > self.times["fence"] + self.times["silence"]:
                continue  # its runner has stopped what ran there
            told = verify(self.bucket.key, name, found.data)
            if told["job"] or told["idle"] + found.age < self.limit:
                return ""
        return f"it has been idle for {idle / 60:.0f} minutes"

    def _is_wanted(self) -> bool:
        """Whether a fresh controller has work, or a person holds the pod."""
        found = self.bucket.get("controller")
        if found is not None and found.age < self.times["silence"]:
            try:
                if verify(self.bucket.key, "controller", found.data).get("busy"):
                    return True
            except Forged:
                pass  # somebody without the key cannot keep it
        return held_for(self.bucket) > 0

    def _check(self) -> None:
        """Find out whether this host could delete, by deleting something that does not exist."""
        nothing = f"none-{uuid.uuid4().hex}"
        places = (f"queuedResources/{nothing}?force=true", f"nodes/{nothing}")
        if any(self._call(place) == 404 for place in places):
            self.error = ""

    def _delete(self) -> None:
        """Delete the queued resource with its node, or the node alone, which ends the costs as well."""
        # Which permission a queued resource needs is not published, and it may be in a state that refuses.
        if self._call(f"queuedResources/{self.orders['name']}?force=true") != 200:
            self._call(f"nodes/{self.orders['name']}")

    def _call(self, what: str) -> int:
        """Delete something through the TPU API; return the status code, 0 for none."""
        place = f"projects/{self.orders['project']}/locations/{self.orders['zone']}"
        try:
            token = self.account.token()
        except (OSError, ValueError, KeyError) as error:
            self.error = (
                f"its service account gets no token ({error}): set tpu-service-account to an account that is enabled, "
                "and create the pod again"
            )
            return 0
        url = f"{os.environ.get('SNAKEMAKE_TPU_API', API)}/v2/{place}/{what}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"}, method="DELETE")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            self.error = f"the TPU API answers {error.code} ({error.read().decode(errors='replace')[:300]})"
            if error.code in (401, 403):
                self.account.forget()
                self.error += ": give its service account the permission tpu.nodes.delete"
            return error.code
        except (OSError, HTTPException) as error:
            self.error = (
                f"it cannot reach the TPU API ({getattr(error, 'reason', error)}): give the hosts a way to "
                "tpu.googleapis.com, by Private Google Access with its DNS zone or by external addresses"
            )
            return 0
