"""HTTP servers in threads."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HttpServer(ThreadingHTTPServer):
    """A server that runs in the background until it is stopped."""

    daemon_threads = True
    request_queue_size = 128

    def start(self) -> None:
        """Start serving."""
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that were killed in the middle of a request."""


class Handler(BaseHTTPRequestHandler):
    """Handles requests without logging them."""

    disable_nagle_algorithm = True

    def answer(self, status: int, content: bytes, *headers: tuple[str, str]) -> None:
        """Send a complete response; `headers` may name its Date."""
        self.send_response_only(status)
        for key, value in (("Date", self.date_time_string()), *headers):
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
