"""Signed documents in Cloud Storage, with preconditions on their generation. Standard library only, for Python 3.10.

Uploads are `multipart`. The age of an object is the difference of two times of the server (Date, Last-Modified), so no
clock of a host or a controller matters. A write of unknown outcome is read back: every document names its writer.
"""

import hashlib
import hmac
import json
import os
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

API = "https://storage.googleapis.com"
TRANSIENT = frozenset({0, 408, 429, 500, 502, 503, 504})
"""Answers after which a request to Cloud Storage is repeated; 0 is no answer."""
NO_BUCKET = "The specified bucket does not exist."
TIMEOUT = 60.0
MOST_PAUSE = 30.0
TELL_SECONDS = 60.0
BYTES = "application/octet-stream"
NO_CREDENTIALS = (
    "This machine has no Google credentials: run `gcloud auth application-default login`, or set "
    "GOOGLE_APPLICATION_CREDENTIALS to a key file."
)

Document = dict[str, Any]
Answer = tuple[int, Mapping[str, str], bytes]
Transport = Callable[[str, str, "bytes | None", dict[str, str]], Answer]
"""Sends a request (method, path with query, body, headers); returns status, headers, body, or raises OSError."""


class Offline(OSError):
    """The bucket has not answered for as long as the patience."""


class Refused(RuntimeError):
    """The bucket answers and refuses, as for a missing role."""


class Lost(Exception):
    """The precondition failed: somebody else has written the object."""


class Forged(ValueError):
    """The document was not signed with the pod's key."""


class Found:
    """An object: its bytes, generation, and age in seconds."""

    def __init__(self, data: bytes, generation: int, age: float) -> None:
        self.data, self.generation, self.age = data, generation, age


class Account:
    """Tokens of the host's service account."""

    def __init__(self) -> None:
        self._token, self._until = "", 0.0

    def token(self) -> str:
        """Return a valid token. Raises OSError, ValueError or KeyError if there is none."""
        if time.monotonic() > self._until:
            host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
            url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
            request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
            with urllib.request.urlopen(request, timeout=20) as answer:
                found = json.loads(answer.read())
            self._token = str(found["access_token"])
            self._until = time.monotonic() + float(found["expires_in"]) / 2
        return self._token

    def forget(self) -> None:
        self._until = 0.0


class HostTransport:
    """Requests of a host to Cloud Storage over one connection, as the host's service account."""

    def __init__(self) -> None:
        address = os.environ.get("STORAGE_EMULATOR_HOST") or API
        self._api = urllib.parse.urlsplit(address if "//" in address else f"http://{address}")
        self._account, self._connection = Account(), None
        self._emulated = address != API

    def __call__(self, method: str, path: str, body: "bytes | None", headers: dict[str, str]) -> Answer:
        if self._connection is None:
            kind = HTTPSConnection if self._api.scheme == "https" else HTTPConnection
            self._connection = kind(self._api.netloc, timeout=TIMEOUT)  # type: ignore[assignment]
        connection: Any = self._connection
        try:
            connection.request(method, path, body, headers | self._authorization())
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, HTTPException) as error:
            connection.close()
            self._connection = None
            raise OSError(f"{type(error).__name__}: {error}") from None
        if answer.status == 401:
            self._account.forget()
            raise OSError("the token had expired")
        return answer.status, answer.headers, data

    def _authorization(self) -> dict[str, str]:
        try:
            return {"Authorization": f"Bearer {self._account.token()}"}
        except (OSError, ValueError, KeyError) as error:
            if self._emulated:
                return {}
            raise OSError(f"the host's service account gets no token ({error})") from None


def reason_of(data: bytes) -> str:
    """Return Google's own reason for a refusal: a missing role, a retention policy, a key, a project to bill."""
    text = data.decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return text[:300]


def no_bucket(name: str) -> str:
    create = f"gcloud storage buckets create gs://{name}"
    return f"The bucket gs://{name} does not exist: run `{create}` with the location of the TPUs."


def remedy(status: int, reason: str) -> str:
    """Return what helps against a refusal of Cloud Storage, "" if its own reason has to say it."""
    lacks = any(words in reason.lower() for words in ("permission", "does not have"))
    found = status == 401 or (status == 403 and lacks)
    return ": give the account roles/storage.objectUser on the bucket" if found else ""


class Bucket:
    """The objects below gs://BUCKET/PREFIX.

    Each call is repeated after answers in `TRANSIENT` for `patience` seconds (0: it is tried once), or until `stop` is
    set. `tell` hears of an outage of more than a minute, and of its end.
    """

    def __init__(
        self,
        url: str,
        key: bytes = b"",
        transport: "Transport | None" = None,
        patience: float = 0.0,
        tell: Callable[[str], None] = lambda sentence: None,
        stop: "threading.Event | None" = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.name, _, prefix = self.url.removeprefix("gs://").partition("/")
        self.prefix = f"{prefix}/" if prefix else ""
        self.key, self.patience, self.tell = key, patience, tell
        self.transport: Transport = transport or HostTransport()
        self.stop = stop or threading.Event()
        self._silent_since, self._told = 0.0, False

    def _call(
        self, method: str, path: str, body: "bytes | None" = None, kind: str = ""
    ) -> "tuple[Answer, bool]":
        """Return the answer, and whether an earlier try may have succeeded unseen."""
        began, pause, doubt = time.monotonic(), 0.2, False
        while True:
            try:
                answer = self.transport(method, path, body, {"Content-Type": kind} if kind else {})
            except OSError as error:
                answer = (0, {}, str(error).encode())
            status, _, data = answer
            if status not in TRANSIENT:
                self._heard()
                if status >= 400 and status not in (404, 412):
                    raise Refused(self._explain(status, data))
                return answer, doubt
            doubt = doubt or status != 429
            sentence = self._silence(status, data)
            if time.monotonic() + pause - began > self.patience or self.stop.is_set():
                raise Offline(sentence)
            self.stop.wait(pause)
            pause = min(2 * pause, MOST_PAUSE)

    def _silence(self, status: int, data: bytes) -> str:
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        since = time.strftime("%H:%M", time.localtime(time.time() - now + self._silent_since))
        why = f"does not answer ({status or reason_of(data)})"
        why = "asks too often for fewer requests" if status == 429 else why
        sentence = f"Cloud Storage (gs://{self.name}) {why} since {since}; jobs go on, and it is tried again."
        if now - self._silent_since > TELL_SECONDS and not self._told:
            self._told = True
            self.tell(sentence)
        return sentence

    def _heard(self) -> None:
        if self._told:
            self.tell(f"Cloud Storage (gs://{self.name}) answers again.")
        self._silent_since, self._told = 0.0, False

    def _explain(self, status: int, data: bytes) -> str:
        reason = reason_of(data)
        return f"gs://{self.name} answers {status}{remedy(status, reason)} ({reason})."

    def location(self) -> str:
        """Return where the bucket is, such as us-central2 or us. Refused: roles/storage.objectUser may not ask."""
        (_, _, data), _ = self._call("GET", f"/storage/v1/b/{self.name}?fields=location")
        return str(json.loads(data).get("location", "")).lower()

    def _path(self, name: str) -> str:
        return f"/storage/v1/b/{self.name}/o/{urllib.parse.quote(self.prefix + name, safe='')}?alt=media"

    def get(self, name: str) -> "Found | None":
        """Return an object, None if there is none."""
        (status, headers, data), _ = self._call("GET", self._path(name))
        if status == 404:
            if reason_of(data) == NO_BUCKET:
                raise Refused(no_bucket(self.name))
            return None
        now, written = (parsedate_to_datetime(headers[key]) for key in ("Date", "Last-Modified"))
        return Found(data, int(headers["X-Goog-Generation"]), max(0.0, (now - written).total_seconds()))

    def put(self, name: str, data: bytes, generation: "int | None" = None) -> int:
        """Write an object if its generation is still this one (0: none, None: any); return the new one.

        Raises Lost if the generation is another.
        """
        mark = uuid.uuid4().hex
        about = {"name": self.prefix + name, "cacheControl": "no-store", "contentType": BYTES}
        parts = (json.dumps(about).encode(), data)
        kinds = (b"application/json; charset=UTF-8", BYTES.encode())
        body = b"".join(
            b"--%s\r\nContent-Type: %s\r\n\r\n%s\r\n" % (mark.encode(), kind, part)
            for kind, part in zip(kinds, parts)
        )
        query: dict[str, Any] = {"uploadType": "multipart"}
        if generation is not None:
            query["ifGenerationMatch"] = generation
        path = f"/upload/storage/v1/b/{self.name}/o?{urllib.parse.urlencode(query)}"
        kind = f"multipart/related; boundary={mark}"
        (status, _, answer), doubt = self._call("POST", path, body + f"--{mark}--\r\n".encode(), kind)
        if status == 412:
            # An earlier try of this call may have succeeded.
            if doubt and (found := self.get(name)) and found.data == data:
                return found.generation
            raise Lost(name)
        if status == 404:
            raise Refused(no_bucket(self.name))
        return int(json.loads(answer)["generation"])

    def create(self, name: str, document: Document) -> "tuple[Document, bool]":
        """Write a document that must not exist; return the one that is there now, and whether it is this one."""
        data = sign(self.key, name, document)
        try:
            self.put(name, data, 0)
            return document, True
        except Lost:
            found = self.get(name)
            if found is None:
                raise Offline(f"{name} was deleted while it was read") from None
            return verify(self.key, name, found.data), found.data == data

    def create_content(self, folder: str, data: bytes) -> str:
        """Write bytes under the name of their hash unless they are there; return the hash."""
        name = hashlib.sha256(data).hexdigest()
        try:
            self.put(f"{folder}/{name}", data, 0)
        except Lost:
            pass
        return name

    def content(self, folder: str, name: str) -> bytes:
        """Return what `create_content` wrote. Raises Forged if it is something else, Offline if it is not there."""
        found = self.get(f"{folder}/{name}")
        if found is None:
            raise Offline(f"{self.url}/{folder}/{name} does not exist")
        if hashlib.sha256(found.data).hexdigest() != name:
            raise Forged(f"{self.url}/{folder}/{name} has another content than its name says")
        return found.data

    def read(self, name: str) -> "Document | None":
        """Return a signed document, None if there is none."""
        found = self.get(name)
        return verify(self.key, name, found.data) if found else None


class Cell:
    """A document of which this process is the only writer. If another has taken it over, `write` raises Lost."""

    def __init__(self, bucket: Bucket, name: str, empty: Document) -> None:
        found = bucket.get(name)
        self.bucket, self.name = bucket, name
        self.generation, self.age = (found.generation, found.age) if found else (0, float("inf"))
        self.document = verify(bucket.key, name, found.data) if found else empty
        self._pending = b""

    def write(self, document: Document) -> None:
        """Write the document. A write that went Offline may have succeeded, so the next one looks first."""
        if self._pending and (found := self.bucket.get(self.name)) and found.data == self._pending:
            self.generation = found.generation
        self._pending = sign(self.bucket.key, self.name, document)
        self.generation = self.bucket.put(self.name, self._pending, self.generation)
        self.document, self._pending = document, b""


def sign(key: bytes, name: str, document: Document) -> bytes:
    """Return the bytes of a document that holds for this object's name only."""
    text = json.dumps(document, sort_keys=True)
    mac = hmac.new(key, f"{name}\n{text}".encode(), "sha256").hexdigest()
    return json.dumps({"mac": mac, "text": text}).encode()


def verify(key: bytes, name: str, data: bytes) -> Document:
    """Return a signed document. Raises Forged."""
    try:
        found = json.loads(data)
        mac = hmac.new(key, f"{name}\n{found['text']}".encode(), "sha256").hexdigest()
        if hmac.compare_digest(mac, str(found["mac"])):
            return dict(json.loads(found["text"]))
    except (ValueError, KeyError, TypeError):
        pass
    raise Forged(f"{name} in the bucket is not signed with the pod's key: somebody else has written it")


def seal(key: bytes, variables: Mapping[str, str]) -> Document:
    """Encrypt variables: SHAKE-256 of the key and a fresh nonce is the key stream. The document around it is signed."""
    nonce = uuid.uuid4().hex
    return {"nonce": nonce, "sealed": _mix(key, nonce, json.dumps(dict(variables)).encode()).hex()}


def unseal(key: bytes, document: Document) -> dict[str, str]:
    return dict(json.loads(_mix(key, document["nonce"], bytes.fromhex(document["sealed"]))))


def _mix(key: bytes, nonce: str, data: bytes) -> bytes:
    stream = hashlib.shake_256(b"seal" + key + nonce.encode()).digest(len(data))
    return bytes(a ^ b for a, b in zip(data, stream))
