"""Writes to a bucket from a host with the standard library only, as the host's service account."""

import errno
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

API = "https://storage.googleapis.com"
TOKEN = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
TROUBLE = (urllib.error.URLError, ssl.SSLError, ConnectionError, TimeoutError, HTTPException)
PAUSES = (1.0, 4.0, 16.0, 64.0)  # seconds before a request is repeated


def reason_of(error: urllib.error.HTTPError) -> str:
    """Return Google's own reason for a refusal: a missing role, a retention policy, a key, a project to bill."""
    text = error.read().decode(errors="replace")
    error.close()
    try:
        return str(json.loads(text)["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return text[:300]


class Bucket:
    """The objects below one gs:// address; `api` is the address of an emulator, which needs no token."""

    def __init__(self, url: str, api: str | None = None, pauses: Sequence[float] = PAUSES):
        scheme, _, rest = url.partition("://")
        if scheme != "gs" or not rest:
            raise ValueError(f"{url!r} is not an address in Cloud Storage: write gs://BUCKET/FOLDER")
        self.name, _, prefix = rest.partition("/")
        self.prefix = prefix.rstrip("/") + "/" if prefix else ""
        self.api, self.emulated, self.pauses = (api or API).rstrip("/"), bool(api), pauses

    def _open(self, path: str, data: bytes) -> Any:
        headers = {}
        if not self.emulated:
            request = urllib.request.Request(TOKEN, headers={"Metadata-Flavor": "Google"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                headers["Authorization"] = f"Bearer {json.load(answer)['access_token']}"
        return urllib.request.urlopen(urllib.request.Request(self.api + path, data, headers), timeout=300)

    def put(self, name: str, data: bytes) -> dict[str, Any]:
        """Upload an object, again if the connection breaks or the server is in trouble; return its description.

        Raises:
            OSError: it never succeeded.
            RuntimeError: the bucket refuses it.
        """
        for pause in (*self.pauses, 0.0):
            try:
                with self._open(self.upload_path(name), data) as answer:
                    found: dict[str, Any] = json.load(answer)
                    return found
            except TROUBLE as error:
                problem, code = error, 503
                if isinstance(error, urllib.error.HTTPError):
                    code, reason = error.code, reason_of(error)
                if code < 500 and code != 429:
                    raise RuntimeError(
                        f"gs://{self.name} answers {code} to this host's service account ({reason}): unless that says "
                        "otherwise, it needs roles/storage.objectUser on the bucket"
                    ) from None
            time.sleep(pause)
        raise OSError(errno.EIO, f"gs://{self.name} does not answer ({problem})")

    def upload_path(self, name: str) -> str:
        """Return the path of a request that uploads an object."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": self.prefix + name})
        return f"/upload/storage/v1/b/{self.name}/o?{query}"
