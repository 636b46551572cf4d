"""What a host of the emulated pod finds at metadata.google.internal and, for it, at tpu.googleapis.com."""

import json
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAMES = ("metadata.google.internal", "metadata", "tpu.googleapis.com")
ROOT = "/computeMetadata/v1/"


class MetadataServer:
    """Serves each host by its address. `of_host` returns (rank, node, addresses of all hosts) for one.

    Like the real ones: no answer without the header Metadata-Flavor, none of the API without a living token, 403 where
    the hosts' account lacks the permission, 404 for what does not exist, and the permission is looked at first.
    """

    def __init__(
        self, address: str, project: str, of_host: Callable[..., Any], delete: Callable[[str, bool], int]
    ) -> None:
        self.project, self.of_host, self.delete = project, of_host, delete
        self.may_delete = True
        self.tokens: set[str] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = server.of_host(self.client_address[0])
                if self.headers.get("Metadata-Flavor") != "Google":
                    self.answer(403, "Missing Metadata-Flavor:Google header.")
                elif found is None or not self.path.startswith(ROOT):
                    self.answer(404, "not found")
                else:
                    text = server.value(self.path.removeprefix(ROOT), *found)
                    self.answer(404 if text is None else 200, text or "not found")

            def do_DELETE(self) -> None:
                path, _, query = self.path.partition("?")
                if self.headers.get("Authorization", "").removeprefix("Bearer ") not in server.tokens:
                    self.answer(401, "Request had invalid authentication credentials.")
                elif not server.may_delete:
                    self.answer(
                        403,
                        "Permission 'tpu.nodes.delete' denied on resource (or it may not exist).",
                    )
                else:
                    status = server.delete(path.removeprefix("/v2/"), "force=true" in query)
                    self.answer(status, json.dumps({"error": {"code": status}} if status >= 400 else {}))

            def answer(self, status: int, text: str) -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Metadata-Flavor", "Google")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self.server = Server((address, 80), Handler)

    def value(self, key: str, rank: int, node: Any, addresses: list[str]) -> str | None:
        """Return one entry of a host's metadata."""
        if key == "instance/service-accounts/default/token":
            token = uuid.uuid4().hex
            self.tokens.add(token)
            return json.dumps({"access_token": token, "expires_in": 3599, "token_type": "Bearer"})
        attributes = {
            **dict(node.metadata),
            "agent-worker-number": str(rank),
            "worker-network-endpoints": ",".join(f"unknown:unknown:{address}" for address in addresses),
            "accelerator-type": node.accelerator_type,
        }
        values = {
            "project/project-id": self.project,
            "instance/zone": f"projects/123456/zones/{node.name.split('/')[3]}",
            **{f"instance/attributes/{name}": value for name, value in attributes.items()},
        }
        return values.get(key)

    def start(self) -> None:
        """Begin to serve."""
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()
