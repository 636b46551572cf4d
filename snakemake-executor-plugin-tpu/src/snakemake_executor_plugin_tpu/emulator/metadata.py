"""What a host of the emulated pod finds at metadata.google.internal and, for the guard, at tpu.googleapis.com."""

import json
import uuid
from collections.abc import Callable
from typing import Any

from .web import Handler, HttpServer

NAMES = ("metadata.google.internal", "metadata", "tpu.googleapis.com")
ROOT = "/computeMetadata/v1/"


class MetadataServer(HttpServer):
    """Serves each host by its address. `of_host` returns (rank, node, addresses of all hosts) for an address.

    Like the real servers it answers nothing without the header Metadata-Flavor, requires one of its tokens for the
    API, and answers 403 if the hosts' account lacks the permission, before it looks whether the resource exists.
    """

    def __init__(
        self, address: str, project: str, of_host: Callable[..., Any], delete: Callable[[str, bool], int]
    ) -> None:
        super().__init__((address, 80), MetadataHandler)
        self.project, self.of_host, self.delete = project, of_host, delete
        self.may_delete, self.token_status = True, 200
        self.tokens: set[str] = set()

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


class MetadataHandler(Handler):
    """Answers GET as the metadata server and DELETE as the TPU API."""

    server: MetadataServer

    def do_GET(self) -> None:
        """Return an entry of the host's metadata."""
        host = self.server.of_host(self.client_address[0])
        if self.headers.get("Metadata-Flavor") != "Google":
            self._text(403, "Missing Metadata-Flavor:Google header.")
        elif self.path.endswith("/token") and self.server.token_status != 200:
            self._text(self.server.token_status, "Service account is disabled.")
        elif host is None or not self.path.startswith(ROOT):
            self._text(404, "not found")
        else:
            text = self.server.value(self.path.removeprefix(ROOT), *host)
            self._text(404 if text is None else 200, text or "not found")

    def do_DELETE(self) -> None:
        """Delete a node or a queued resource."""
        path, _, query = self.path.partition("?")
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.server.tokens:
            self._text(401, "Request had invalid authentication credentials.")
        elif not self.server.may_delete:
            self._text(403, "Permission 'tpu.nodes.delete' denied on resource (or it may not exist).")
        else:
            status = self.server.delete(path.removeprefix("/v2/"), "force=true" in query)
            self._text(status, json.dumps({"error": {"code": status}} if status >= 400 else {}))

    def _text(self, status: int, text: str) -> None:
        self.answer(status, text.encode(), ("Metadata-Flavor", "Google"))
