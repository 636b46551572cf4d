"""Reads and writes a bucket from a host with the standard library only, as the host's service account."""

import json
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

API = "https://storage.googleapis.com"
TOKEN = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"


def token() -> str:
    """Return an access token of the host's service account, from the metadata server."""
    request = urllib.request.Request(TOKEN, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["access_token"])


class Bucket:
    """The objects below one gs:// address; `api` is the address of an emulator, which needs no token."""

    def __init__(self, url: str, api: str | None = None):
        scheme, _, rest = url.partition("://")
        if scheme != "gs" or not rest:
            raise ValueError(f"{url!r} is not an address in Cloud Storage: write gs://BUCKET/FOLDER")
        self.name, _, prefix = rest.partition("/")
        self.prefix = prefix.rstrip("/") + "/" if prefix else ""
        self.api = (api or API).rstrip("/")
        self.headers = {} if api else {"Authorization": f"Bearer {token()}"}

    def _open(self, path: str, data: Any = None, size: int = 0, **query: str) -> Any:
        query = {key: value for key, value in query.items() if value}
        url = f"{self.api}{path}?{urllib.parse.urlencode(query)}"
        headers = {**self.headers, "Content-Length": str(size)} if data else self.headers
        try:
            return urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=300)
        except urllib.error.HTTPError as error:
            raise RuntimeError(
                f"gs://{self.name} answers {error.code} to this host's service account: it needs "
                "roles/storage.objectUser on the bucket"
            ) from None

    def list(self) -> dict[str, int]:
        """Return the names, relative to the address, and sizes in bytes of the objects directly below it."""
        sizes: dict[str, int] = {}
        page = ""
        while True:
            with self._open(
                f"/storage/v1/b/{self.name}/o", prefix=self.prefix, delimiter="/", pageToken=page
            ) as answer:
                content = json.load(answer)
            for item in content.get("items", ()):
                sizes[item["name"][len(self.prefix) :]] = int(item["size"])
            page = content.get("nextPageToken", "")
            if not page:
                return sizes

    def download(self, name: str, path: Path) -> None:
        """Download an object; the file appears when it is complete."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        quoted = urllib.parse.quote(self.prefix + name, safe="")
        path_of_object = f"/storage/v1/b/{self.name}/o/{quoted}"
        with self._open(path_of_object, alt="media") as answer, open(temporary, "wb") as file:
            shutil.copyfileobj(answer, file, 1 << 20)
        os.replace(temporary, path)

    def upload(self, name: str, path: Path) -> None:
        """Upload a file; the object appears when it is complete."""
        with open(path, "rb") as file:
            place, query = (
                f"/upload/storage/v1/b/{self.name}/o",
                {"uploadType": "media", "name": self.prefix + name},
            )
            self._open(place, file, path.stat().st_size, **query).close()
