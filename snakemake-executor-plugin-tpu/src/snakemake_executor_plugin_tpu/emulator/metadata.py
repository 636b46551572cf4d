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
        self.may_delete, self.may_get, self.token_status = True, True, 200
        self.tokens: set[str] = set()
        self.attributes: dict[tuple[str, int], dict[str, str]] = {}
        """What each host of a node, by the node's id, has written."""

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
    """Answers GET and PUT as the metadata server, POST and DELETE as the TPU API."""

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

    def do_PUT(self) -> None:
        """Take a guest attribute of the host."""
        rank, node, _ = self.server.of_host(self.client_address[0])
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        path, key = self.path.removeprefix(f"{ROOT}instance/guest-attributes/").split("/")
        if dict(node.metadata).get("enable-guest-attributes") != "TRUE":
            self._text(403, "Guest attributes endpoint access is disabled.")
        else:
            self.server.attributes.setdefault((node.id, rank), {})[f"{path}/{key}"] = text
            self._text(200, "")

    def do_POST(self) -> None:
        """Return guest attributes of all hosts of a node."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, node, addresses = self.server.of_host(self.client_address[0])
        name, _, method = self.path.removeprefix("/v2/").partition(":")
        assert (name, method) == (node.name, "getGuestAttributes")
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.server.tokens:
            self._text(401, "Request had invalid authentication credentials.")
        elif not self.server.may_get:
            self._text(403, "Permission 'tpu.nodes.get' denied on resource (or it may not exist).")
        else:
            space = body["queryPath"]
            found = [self.server.attributes.get((node.id, rank), {}) for rank in range(len(addresses))]
            items = [
                [
                    {"namespace": space.rstrip("/"), "key": key.removeprefix(space), "value": value}
                    for key, value in of_host.items()
                    if key.startswith(space)
                ]
                for of_host in found
            ]
            answers = [{"queryPath": space, "queryValue": {"items": each}} for each in items if each]
            self._text(200, json.dumps({"guestAttributes": answers} if answers else {}))

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
