#!/usr/bin/env python3
"""Deletes the pod when it is idle or at its end date. It runs on every host from boot, as the startup script.

It needs no controller: a laptop that was lost, killed or closed leaves no pod behind. Its settings are in the node's
metadata. Each host writes every few seconds into its guest attributes how long it has been idle; an idle one reads
those of the others through the TPU API, which it needs for the deletion as well. A host that was heard before and
that answers nothing any more is dead, and the others decide; any other silent host counts as busy until the lease of
its jobs has ended. The first host deletes the pod, as the node's service account; if it fails to, the others follow
one after the other. What goes wrong is in guard.json for Snakemake and `status`.
"""

import contextlib
import fcntl
import json
import os
import re
import socket
import sys
import time
import urllib.error
import urllib.request
import uuid
from http.client import HTTPException
from pathlib import Path
from typing import Any

METADATA = "http://metadata.google.internal/computeMetadata/v1/"
ATTRIBUTES = "snakemake-tpu/"
RUN = Path("/run/snakemake-tpu")
MOST_SECONDS = 10.0  # between two checks
RETRY_SECONDS = 60.0
CHECK_SECONDS = 900.0


def ask(url: str, method: str = "GET", token: str = "", data: bytes | None = None) -> str:
    """Call the metadata server, or with a token the TPU API. Raises urllib.error.HTTPError, OSError."""
    header = {"Authorization": f"Bearer {token}"} if token else {"Metadata-Flavor": "Google"}
    request = urllib.request.Request(url, data, {**header, "Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(answer.read().decode())
    except HTTPException as error:  # a connection that broke
        raise OSError(f"{type(error).__name__}: {error}") from None


def marks() -> dict[Path, float]:
    """Return the times of files that change while jobs run, a controller has jobs or somebody types on a terminal.

    Only a change counts, by the guard's own clock: a mark may be from the future.
    """
    found = {}
    for path in [*RUN.glob("active/*"), *Path("/dev/pts").glob("[0-9]*")]:
        with contextlib.suppress(OSError):
            found[path] = path.stat().st_mtime
    return found


class Guard:
    """What one host knows about itself and the others."""

    def __init__(self, orders: dict[str, Any], rank: int):
        self.orders, self.rank, self.hosts = orders, rank, int(orders["hosts"])
        self.limit, self.end = float(orders["idle_seconds"]), float(orders["end"])
        self.pause = min(MOST_SECONDS, self.limit / 5 if self.limit else MOST_SECONDS)
        # Idle time uses the monotonic clock: the other one may be set at boot.
        self.started = self.changed = time.monotonic()
        self.seen = marks()
        self.heard: dict[int, tuple[float, float]] = {}
        self.error = ""
        self.checked = False
        self.retry_at = self.check_at = 0.0
        self.read: set[str] = set()

    def idle(self) -> float:
        now, seen = time.monotonic(), marks()
        if seen != self.seen:
            self.seen, self.changed = seen, now
        return now - self.changed

    def tell(self) -> None:
        """Tell the other hosts how long this one has been idle."""
        told = {"rank": self.rank, "idle": self.idle(), "at": time.monotonic()}  # each differs from the last
        with contextlib.suppress(OSError):
            ask(
                f"{METADATA}instance/guest-attributes/{ATTRIBUTES}idle", "PUT", data=json.dumps(told).encode()
            )

    def look(self) -> None:
        """Read what the hosts have written since the last look; what this version does not know is ignored."""
        error = self.error
        query = json.dumps({"queryPath": ATTRIBUTES}).encode()
        status, answer = self.call("POST", f"nodes/{self.orders['name']}:getGuestAttributes", query)
        self.error = error  # which is about deleting
        if status != 200:
            return
        values = set()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found = json.loads(answer).get("guestAttributes", [])
            values = {str(item.get("value")) for one in found for item in one["queryValue"]["items"]}
        for value in values - self.read:  # a dead host's last words stay there
            with contextlib.suppress(ValueError, KeyError, TypeError):
                told = json.loads(value)
                self.heard[int(told["rank"])] = (time.monotonic(), float(told["idle"]))
        self.read |= values

    def pod_idle(self) -> float:
        """Return how many seconds all hosts have been idle."""
        now, idle, lease = time.monotonic(), [self.idle()], float(self.orders["lease"])
        silent = self.silent()
        for rank in range(self.hosts):
            at, seconds = self.heard.get(rank, (self.started, 0.0))
            if rank != self.rank and rank not in silent:
                idle.append(seconds + now - at)
            elif rank in silent and (not self.limit or min(idle) <= self.limit):
                break  # in use anyway
            elif rank in silent and (rank not in self.heard or self.answers(rank)):
                # It may run a job: nothing but its messages is missing.
                idle.append(max(0.0, now - at - lease) if lease else 0.0)
        return min(idle)

    def silent(self) -> list[int]:
        """Return the other hosts of which nothing has been heard lately."""
        since = time.monotonic() - 5 * self.pause
        ranks = [rank for rank in range(self.hosts) if rank != self.rank]
        return [rank for rank in ranks if self.heard.get(rank, (self.started, 0.0))[0] < since]

    def answers(self, rank: int) -> bool:
        """Whether a host answers at all: a refused connection is an answer, and so is an address that is not known."""
        try:
            hosts = ask(f"{METADATA}instance/attributes/worker-network-endpoints").split(",")
            address = re.findall(r"\d+(?:\.\d+){3}", hosts[rank])[0]
        except (OSError, IndexError):
            return True
        try:
            socket.create_connection((address, 22), timeout=2).close()
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)
        return True

    def why_delete(self) -> str:
        """Return why the pod has to be deleted now, or an empty string."""
        patience = self.rank * min(60.0, self.limit or 60.0)
        if self.end and time.time() > self.end + patience:
            return "its end date has passed"
        if self.limit and (idle := self.pod_idle()) > self.limit + patience:
            return f"it has been idle for {idle:.0f} s"
        return ""

    def token(self) -> str:
        return str(json.loads(ask(f"{METADATA}instance/service-accounts/default/token"))["access_token"])

    def call(self, method: str, what: str, data: bytes | None = None) -> tuple[int, str]:
        """Call the TPU API; return the status code and the answer."""
        try:
            token = self.token()
        except (OSError, ValueError, KeyError) as error:
            self.error = (
                f"its service account gets no token ({error}): set tpu-service-account to an account that is enabled, "
                "and create the pod again"
            )
            return 0, ""
        place = f"projects/{self.orders['project']}/locations/{self.orders['zone']}"
        try:
            return 200, ask(f"{self.orders['api']}/v2/{place}/{what}", method, token, data)
        except urllib.error.HTTPError as error:
            self.error = f"the TPU API answers {error.code} ({error.read().decode(errors='replace')[:300]})"
            if error.code in (401, 403):
                self.error += ": give its service account the permission tpu.nodes.delete"
            return error.code, ""
        except OSError as error:
            self.error = (
                f"it cannot reach the TPU API ({getattr(error, 'reason', error)}): give the hosts a way to "
                "tpu.googleapis.com, by Private Google Access with its DNS zone or by external addresses"
            )
            return 0, ""

    def check(self) -> None:
        """Find out whether this host could delete, by deleting something that does not exist."""
        nothing = f"none-{uuid.uuid4().hex}"
        places = (f"queuedResources/{nothing}?force=true", f"nodes/{nothing}")
        if any(self.call("DELETE", place)[0] == 404 for place in places):
            self.error = ""
        self.look()
        if not self.error and not self.is_young() and (silent := self.silent()):
            names = ", ".join(f"w{rank}" for rank in silent)
            self.error = (
                f"w{self.rank} hears nothing of {names}, which counts as in use for {self.orders['lease']} s unless it "
                "is dead: give the hosts' service account the permission tpu.nodes.get"
            )
        self.checked = True

    def is_young(self) -> bool:
        """Whether the other hosts may still be booting."""
        return time.monotonic() - self.started <= 6 * self.pause

    def leave_word(self, why: str) -> None:
        """Write why the pod ends to the bucket: a controller that was away must not take it for a person's."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            url = (RUN / "active" / "last-words").read_text()
            ask(url, "POST", self.token(), json.dumps({"why": why}).encode())

    def delete(self) -> None:
        """Delete the pod: the queued resource with its node, or the node alone, which ends the costs as well."""
        # Which permission a queued resource needs is not published, and it may be in a state that refuses.
        if self.call("DELETE", f"queuedResources/{self.orders['name']}?force=true")[0] != 200:
            self.call("DELETE", f"nodes/{self.orders['name']}")

    def note(self, why: str) -> None:
        told = {
            "idle": round(self.pod_idle()),
            "limit": self.limit,
            "end": self.end,
            "heard": len(self.heard),
        }
        state = {**told, "checked": self.checked, "error": self.error, "deleting": why}
        new = RUN / ".guard.json"
        new.write_text(json.dumps(state))
        os.replace(new, RUN / "guard.json")

    def run(self) -> None:
        while True:
            try:
                self.watch()
            except Exception as error:  # nothing may end the guard
                self.error = f"its guard failed ({type(error).__name__}: {error})"
                time.sleep(self.pause)

    def watch(self) -> None:
        why = ""
        while True:
            self.tell()
            if time.monotonic() > self.check_at:
                self.check()
                soon = min(RETRY_SECONDS, 7 * self.pause)
                self.check_at = time.monotonic() + (soon if self.error or self.is_young() else CHECK_SECONDS)
            with contextlib.suppress(OSError):
                self.note(why)
            time.sleep(self.pause)
            if self.limit and self.idle() > self.limit / 2:
                self.look()
            why = self.why_delete()
            if why and time.monotonic() > self.retry_at:
                self.retry_at = time.monotonic() + min(RETRY_SECONDS, 6 * self.pause)
                self.leave_word(why)
                self.delete()


def guard_of_this_host() -> Guard:
    """Read the settings, waiting for the metadata server and the network."""
    while True:
        try:
            orders = json.loads(ask(f"{METADATA}instance/attributes/snakemake-tpu"))
            return Guard(orders, int(ask(f"{METADATA}instance/attributes/agent-worker-number")))
        except (OSError, ValueError) as error:
            print(f"waiting for the metadata server: {error}", flush=True)
            time.sleep(1.0)


def main() -> int:
    """Continue in the background: the startup script has to end, and its runner waits for everyone with its output."""
    (RUN / "active").mkdir(parents=True, exist_ok=True)
    (RUN / "active").chmod(0o1777)
    lock = open(RUN / "lock", "w")  # noqa: SIM115 (held to the end)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    if os.fork():
        return 0
    os.setsid()
    with open(RUN / "guard.log", "ab") as log, open(os.devnull, "rb") as nothing:
        for number, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), number)
    guard_of_this_host().run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
