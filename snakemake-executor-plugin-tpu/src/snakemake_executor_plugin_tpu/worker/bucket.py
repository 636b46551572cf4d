"""Reads and writes a bucket from a host with the standard library only, as the host's service account."""

import errno
import json
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO

API = "https://storage.googleapis.com"
TOKEN = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
TROUBLE = (urllib.error.URLError, ssl.SSLError, ConnectionError, TimeoutError, HTTPException)
PAUSES = (1.0, 4.0, 16.0, 64.0)  # seconds before a request is repeated


class Bucket:
    """The objects below one gs:// address; `api` is the address of an emulator, which needs no token."""

    def __init__(self, url: str, api: str | None = None):
        scheme, _, rest = url.partition("://")
        if scheme != "gs" or not rest:
            raise ValueError(f"{url!r} is not an address in Cloud Storage: write gs://BUCKET/FOLDER")
        self.name, _, prefix = rest.partition("/")
        self.prefix = prefix.rstrip("/") + "/" if prefix else ""
        self.api, self.emulated = (api or API).rstrip("/"), bool(api)

    def _open(self, path: str, data: BinaryIO | None = None, size: int = 0) -> Any:
        headers = {"Content-Length": str(size)} if data else {}
        if not self.emulated:
            request = urllib.request.Request(TOKEN, headers={"Metadata-Flavor": "Google"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                headers["Authorization"] = f"Bearer {json.load(answer)['access_token']}"
        return urllib.request.urlopen(urllib.request.Request(self.api + path, data, headers), timeout=300)

    def _repeat(self, transfer: Callable[[], bool]) -> bool:
        """Do a transfer, again if the connection breaks or the server is in trouble; False if there is no object.

        Raises:
            OSError: it never succeeded.
            RuntimeError: the bucket refuses it.
        """
        for pause in (*PAUSES, 0.0):
            try:
                return transfer()
            except TROUBLE as error:
                problem, code = error, 503
                if isinstance(error, urllib.error.HTTPError):
                    code = error.code
                    error.close()
                if code == 404:
                    return False
                if code < 500 and code != 429:
                    raise RuntimeError(
                        f"gs://{self.name} answers {code} to this host's service account: it needs "
                        "roles/storage.objectUser on the bucket"
                    ) from None
            time.sleep(pause)
        raise OSError(errno.EIO, f"gs://{self.name} does not answer ({problem})")

    def download(self, name: str, path: Path, say: Callable[[str], None]) -> bool:
        """Download an object; False if there is none."""

        def transfer() -> bool:
            quoted = urllib.parse.quote(self.prefix + name, safe="")
            with self._open(f"/storage/v1/b/{self.name}/o/{quoted}?alt=media") as answer:
                say(f"Downloading {name} ({(answer.length or 0) >> 20} MB)")
                with open(path, "wb") as file:
                    shutil.copyfileobj(answer, file, 1 << 20)
                if answer.length:  # `read` does not complain
                    raise ConnectionError(f"{answer.length} bytes are missing")
            return True

        return self._repeat(transfer)

    def upload(self, name: str, path: Path) -> None:
        """Upload a file; the object appears when it is complete."""

        def transfer() -> bool:
            query = urllib.parse.urlencode({"uploadType": "media", "name": self.prefix + name})
            with open(path, "rb") as file:
                self._open(f"/upload/storage/v1/b/{self.name}/o?{query}", file, path.stat().st_size).close()
            return True

        if not self._repeat(transfer):
            raise RuntimeError(f"There is no bucket gs://{self.name}")
