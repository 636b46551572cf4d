"""Who may do what, as far as slices and buckets go: roles and the permissions in them, and what each request needs.

The lists are from the published references "IAM roles for Cloud Storage", "IAM permissions for JSON methods" and "Cloud
TPU roles and permissions" (docs.cloud.google.com/iam/docs/roles-permissions/tpu), compared on 2026-11-22 with a stored
copy. A role holds only what is listed here: what the references do not grant is refused.

Cloud TPU publishes no permissions for queued resources or guest attributes. The page on its audit logs has
GetQueuedResource, ListQueuedResources and GetGuestAttributes under ADMIN_READ, as GetNode and ListNodes are. So these
calls, and those that create and delete queued resources, are taken to need the permissions of nodes.
"""

import re
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qs

TPU_PERMISSIONS = frozenset(
    f"tpu.{kind}.{verb}"
    for kind, verbs in {
        "acceleratortypes": "get list",
        "locations": "get list",
        "nodes": "create createTagBinding delete deleteTagBinding get list listEffectiveTags listTagBindings "
        "performMaintenance reimage reset simulateMaintenanceEvent start stop update",
        "operations": "get list",
        "runtimeversions": "get list",
        "tensorflowversions": "get list",
    }.items()
    for verb in verbs.split()
)
ROLES: dict[str, frozenset[str]] = {
    "roles/storage.objectViewer": frozenset({"storage.objects.get", "storage.objects.list"}),
    "roles/storage.objectUser": frozenset(
        {
            "storage.multipartUploads.*",
            *(
                f"storage.objects.{verb}"
                for verb in ("create", "delete", "get", "list", "move", "restore", "update")
            ),
        }
    ),
    "roles/storage.admin": frozenset({"storage.*"}),
    "roles/tpu.viewer": frozenset(one for one in TPU_PERMISSIONS if one.endswith((".get", ".list"))),
    "roles/tpu.admin": TPU_PERMISSIONS,
    "roles/iam.serviceAccountUser": frozenset({"iam.serviceAccounts.actAs", "iam.serviceAccounts.get"}),
    "roles/serviceusage.serviceUsageConsumer": frozenset({"serviceusage.services.use"}),
    "roles/logging.logWriter": frozenset({"logging.logEntries.create"}),
}
TPU_METHODS = {
    "GetNode": "tpu.nodes.get",
    "ListNodes": "tpu.nodes.list",
    "DeleteNode": "tpu.nodes.delete",
    "GetGuestAttributes": "tpu.nodes.get",
    "CreateQueuedResource": "tpu.nodes.create",
    "GetQueuedResource": "tpu.nodes.get",
    "ListQueuedResources": "tpu.nodes.list",
    "DeleteQueuedResource": "tpu.nodes.delete",
}
OBJECT_VERBS = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "update", "DELETE": "delete"}


def denied(roles: set[str], needed: set[str]) -> str | None:
    """Return the first permission that none of the roles holds, or None."""
    held = [pattern for role in roles for pattern in ROLES[role]]
    return next(
        (one for one in sorted(needed) if not any(fnmatchcase(one, pattern) for pattern in held)), None
    )


def needed_for_storage(method: str, url: str) -> set[str]:
    """Return the permissions that a request of Cloud Storage's JSON API needs."""
    path, _, query = url.partition("?")
    needed = {"serviceusage.services.use"} if "userProject" in parse_qs(query) else set()
    if path.startswith(("/upload/", "/resumable/")):
        return needed | {"storage.objects.create"}
    place = re.fullmatch(r"(?:/download)?/storage/v1/b(?:/[^/]+(?P<rest>/.*)?)?", path)
    if place is None:
        return needed | {"storage.objects.get"}  # a media link
    rest = place["rest"]
    if re.fullmatch(r"(/download)?/storage/v1/b", path):
        return needed | {"storage.buckets.create" if method == "POST" else "storage.buckets.list"}
    if rest is None:
        return needed | {f"storage.buckets.{OBJECT_VERBS.get(method, 'update')}"}
    if rest.startswith("/iam"):
        return needed | {f"storage.buckets.{'getIamPolicy' if method == 'GET' else 'setIamPolicy'}"}
    if rest == "/o":
        return needed | {"storage.objects.list" if method == "GET" else "storage.objects.create"}
    if re.search(r"/(rewriteTo|copyTo|compose)", rest):
        return needed | {"storage.objects.get", "storage.objects.create", "storage.objects.delete"}
    if rest.startswith("/o/"):
        return needed | {f"storage.objects.{OBJECT_VERBS.get(method, 'update')}"}
    return needed | {"storage.buckets.update"}


def needed_for_tpus(method: str, request: Any) -> set[str]:
    """Return the permissions that a call of the TPU API needs: whoever starts a node as an account acts as it."""
    needed = {TPU_METHODS[method]}
    if method == "CreateQueuedResource" and any(
        spec.node.service_account.email for spec in request.queued_resource.tpu.node_spec
    ):
        needed.add("iam.serviceAccounts.actAs")
    return needed
