"""A small HTTP proxy before the server of a bucket, which makes faults."""

import contextlib
import http.client
import json
import threading
from collections.abc import Callable

from snakemake_executor_plugin_tpu.emulator.web import Handler, HttpServer

BUCKET = "trm-test"


class Proxy(HttpServer):
    """Forwards every request to `target`. `fault(method, path)` may answer instead: an HTTP status to send, "drop" to
    close the connection without an answer, "deaf" to do so after the request was forwarded, "cut" to send half of the
    answer, "flip" to damage a byte of it, None to let it pass."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Forward)
        self.target, self.url = "", f"http://127.0.0.1:{self.server_port}"
        self.requests: list[str] = []
        self.lock = threading.Lock()
        self.answer()
        self.start()

    def answer(self, *script: int | str | None, then: int | str | None = None) -> None:
        """Answer the next requests so, and all that follow with `then`."""
        left = list(script)
        self.fault: Callable[[str, str], int | str | None] = lambda *_: left.pop(0) if left else then


class Forward(Handler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def forward(self) -> None:
        proxy, body = self.server, self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with proxy.lock:
            proxy.requests.append(f"{self.command} {self.path}")
            fault = proxy.fault(self.command, self.path)
        self.close_connection = fault in ("drop", "deaf", "cut")
        if isinstance(fault, int):
            error = {"error": {"code": fault, "message": "made by the test"}}
            self.answer(fault, json.dumps(error).encode(), ("Content-Type", "application/json"))
        elif fault != "drop":
            connection = http.client.HTTPConnection(proxy.target.removeprefix("http://"), timeout=30)
            with contextlib.closing(connection):
                connection.request(self.command, self.path, body=body, headers=dict(self.headers))
                response = connection.getresponse()
                if fault != "deaf":
                    self.pass_on(response, fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = forward

    def pass_on(self, response: http.client.HTTPResponse, fault: str | None) -> None:
        content = response.read()
        self.send_response_only(response.status)
        for key, value in response.getheaders():
            if key.lower() not in ("transfer-encoding", "content-length", "connection"):
                # the requests of an upload in several stay with the proxy
                self.send_header(key, value.replace(self.server.target, self.server.url))
        head = self.command == "HEAD"
        self.send_header("Content-Length", response.headers["Content-Length"] if head else str(len(content)))
        self.end_headers()
        if fault == "cut":
            content = content[: len(content) // 2]
        elif fault == "flip" and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        self.wfile.write(content)
