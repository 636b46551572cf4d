"""Download the published data sets from the Hugging Face Hub: pinned, checksummed, cached and resumable.

HF_ENDPOINT sets another hub (a mirror, or a test server); HF_HUB_OFFLINE=1 forbids requests. Files are cached in
$TRM_CACHE (default ~/.cache/trm).
"""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from trm.data.progress import Progress
from trm.errors import UserError
from trm.io import exclusive, sha256_file
from trm.storage.cache import default_folder
from trm.study.tasks import OfficialFiles, spec_of

ATTEMPTS = 5
"""Consecutive attempts without progress before giving up."""
PAUSE = 1.0
"""Seconds before the second attempt; doubles each time."""
CHUNK = 1 << 20


def official_files(task: str) -> list[tuple[str, Path]]:
    """Name and local path of train.csv and test.csv of a task, downloaded unless the cache has them.

    Raises:
        UserError: no network, an HTTP error, a wrong checksum, or a full disk.
    """
    source = spec_of(task).official
    assert source is not None
    folder = default_folder() / "official" / source.repository.replace("/", "--") / source.revision
    return [(f"{source.repository}/{name}", _cached(source, name, folder)) for name in source.sha256]


def _cached(source: OfficialFiles, name: str, folder: Path) -> Path:
    path, wanted = folder / name, source.sha256[name]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / f"{name}.lock"):
            if path.is_file() and sha256_file(path) == wanted:
                return path
            part = folder / f"{name}.part"
            url = f"{_endpoint()}/datasets/{source.repository}/resolve/{source.revision}/{name}"
            _download(url, part, f"{source.repository}/{name}")
            found = sha256_file(part)
            if found != wanted:
                part.unlink()
                raise UserError(
                    f"{url} gave a file with the SHA-256 {found}, not {wanted}: the download was damaged or the hub "
                    "serves another file; try again, or give your own copy with data.source=csv"
                )
            part.replace(path)
            return path
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: {error.strerror or error}; free space, or set TRM_CACHE to a folder that can "
            "be written"
        ) from error


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _download(url: str, part: Path, name: str) -> None:
    """Download the rest of `part`; retries as long as there is progress."""
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if os.environ.get("HF_HUB_OFFLINE") in ("1", "true", "TRUE", "yes"):
                raise UserError(_unreachable(url, "HF_HUB_OFFLINE forbids requests"))
            if _continue(url, part, before, name):
                return
            reason: object = "the connection broke"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # nothing after the bytes we have: complete, or longer than the file
                if before and _total(error) == before:
                    return
                part.unlink(missing_ok=True)
            elif error.code not in (408, 425, 429, 500, 502, 503, 504):
                raise UserError(_unreachable(url, f"HTTP status {error.code}")) from error
            reason = f"HTTP status {error.code}"
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = getattr(error, "reason", None) or error
        after = part.stat().st_size if part.exists() else 0
        failures = 0 if after > before else failures + 1
        if failures >= ATTEMPTS:
            raise UserError(_unreachable(url, str(reason)))
        if failures:
            time.sleep(PAUSE * 2 ** (failures - 1))


def _unreachable(url: str, reason: str) -> str:
    return (
        f"{url} cannot be fetched ({reason}): connect to the network and start again (what was fetched is kept), or "
        "use data.source=generate, which needs no network, or data.source=csv with your own copies of the files"
    )


def _total(error: urllib.error.HTTPError) -> int:
    text = (error.headers.get("Content-Range") or "").rpartition("/")[2]
    return int(text) if text.isdigit() else -1


def _continue(url: str, part: Path, start: int, name: str) -> bool:
    """One request for the bytes from `start` on; whether the file is now complete."""
    request = urllib.request.Request(url, headers={"User-Agent": "trm-scaling"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    with urllib.request.urlopen(request, timeout=60) as response:
        if start and response.status != 206:  # the server sends the whole file again
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else 0
        progress = Progress(f"downloading {name}", total >> 20, "MB")
        with open(part, "ab" if start else "wb") as out:
            done = start
            while piece := response.read(CHUNK):
                out.write(piece)
                done += len(piece)
                progress.update(done >> 20)
        progress.close(done >> 20)
    return not total or done == total
