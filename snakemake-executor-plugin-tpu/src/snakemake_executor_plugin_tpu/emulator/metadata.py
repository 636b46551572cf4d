"""What a host of the emulated pod finds at metadata.google.internal."""

import json
import uuid
from collections.abc import Callable
from typing import Any

from .web import Handler, HttpServer

ROOT = "/computeMetadata/v1/"
ACCOUNT = "instance/service-accounts/default/"


class Google(HttpServer):
    """What all hosts share: the tokens they were given, what their account may do, and the REST of the TPU API.

    Requests to the API need a token, and the account the permission, before anybody looks whether the resource exists.
    """

    def __init__(self, project: str, delete: Callable[[str, bool], int]) -> None:
        super().__init__(("127.0.0.1", 0), ApiHandler)
        self.project, self.delete = project, delete
        self.may_delete, self.token_status = True, 200
        self.tokens: dict[str, int] = {}

    def make_token(self, rank: int) -> str:
        """Return a new access token for a host."""
        token = f"ya29.{uuid.uuid4().hex}"
        self.tokens[f"Bearer {token}"] = rank
        return token

    def knows(self, headers: Any) -> bool:
        """Return whether a request shows a token of the hosts' account."""
        return headers.get("Authorization", "") in self.tokens


class ApiHandler(Handler):
    """Answers DELETE as the TPU API."""

    server: Google

    def do_DELETE(self) -> None:
        """Delete a node or a queued resource."""
        path, _, query = self.path.partition("?")
        if not self.server.knows(self.headers):
            self.say(401, "Request had invalid authentication credentials.")
        elif not self.server.may_delete:
            self.say(403, "Permission 'tpu.nodes.delete' denied on resource (or it may not exist).")
        else:
            status = self.server.delete(path.removeprefix("/v2/"), "force=true" in query)
            self.say(status, "{}" if status < 400 else "not deleted")

    def say(self, status: int, text: str) -> None:
        """Answer in the form of Google's APIs."""
        error = {"error": {"code": status, "message": text}}
        self.answer(status, (text if status < 400 else json.dumps(error)).encode())


class MetadataServer(HttpServer):
    """The metadata server of one host, which has the metadata of its node.

    Like the real one it answers nothing without the header Metadata-Flavor, nor to a request that was forwarded.
    """

    def __init__(self, google: Google, rank: int) -> None:
        super().__init__(("127.0.0.1", 0), MetadataHandler)
        self.google, self.rank = google, rank
        self.node: Any = None

    def value(self, key: str) -> str | None:
        """Return one entry of the host's metadata."""
        node = self.node
        if node is None:
            return None
        if key == f"{ACCOUNT}token":
            return json.dumps(
                {
                    "access_token": self.google.make_token(self.rank),
                    "expires_in": 3599,
                    "token_type": "Bearer",
                }
            )
        addresses = [point.ip_address for point in node.network_endpoints]
        attributes = {
            **dict(node.metadata),
            "agent-worker-number": str(self.rank),
            "worker-network-endpoints": ",".join(f"unknown:unknown:{address}" for address in addresses),
            "accelerator-type": node.accelerator_type,
        }
        values = {
            "project/project-id": self.google.project,
            "project/numeric-project-id": "123456",
            "instance/id": str(1000 * int(node.id) + self.rank),
            "instance/zone": f"projects/123456/zones/{node.name.split('/')[3]}",
            "instance/hostname": f"t1v-n-emulated-w-{self.rank}",
            f"{ACCOUNT}email": node.service_account.email or "123456-compute@developer.gserviceaccount.com",
            **{f"instance/attributes/{name}": value for name, value in attributes.items()},
        }
        return values.get(key)


class MetadataHandler(Handler):
    """Answers GET as the metadata server."""

    server: MetadataServer

    def do_GET(self) -> None:
        """Return an entry of the host's metadata."""
        path = self.path.partition("?")[0]
        key = path.removeprefix(ROOT)
        if self.headers.get("Metadata-Flavor") != "Google" or self.headers.get("X-Forwarded-For"):
            self.say(403, "Missing Metadata-Flavor:Google header.")
        elif self.server.google.token_status != 200 and key == f"{ACCOUNT}token":
            self.say(self.server.google.token_status, "Service account is disabled.")
        elif path == "/" or path == ROOT:  # how Google's clients look whether they run on its hosts
            self.say(200, "computeMetadata/\n")
        else:
            text = self.server.value(key) if path.startswith(ROOT) else None
            self.say(404 if text is None else 200, text or "not found")

    def say(self, status: int, text: str) -> None:
        """Answer as the metadata server does."""
        self.answer(status, text.encode(), ("Metadata-Flavor", "Google"))
