"""Access to slices and buckets: roles, their permissions, and the permissions that each request needs.

The roles are those of the IAM API on 2026-08-22 (github.com/darkbitio/gcp-iam-role-permissions, commit 8ab2a6ff),
reduced to slices and buckets; the permissions on resource tags in roles/tpu.admin are from Google's page on TPU roles.
The permissions for requests are from "IAM permissions for JSON methods" (cloud.google.com/storage/docs/access-control/
iam-json, read on 2026-11-22), for buckets with uniform access. An upload that replaces an object also needs
storage.objects.delete: every role here that may create objects may delete them.

Cloud TPU publishes no permissions for queued resources. The page on its audit logs lists GetQueuedResource under
ADMIN_READ, like GetNode. So this call, and those that create and delete queued resources, are assumed to need the
permissions of nodes.
"""

import re
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
OBJECT_VIEWER = frozenset(
    f"storage.{kind}.{verb}" for kind in ("folders", "managedFolders", "objects") for verb in ("get", "list")
)
OBJECT_USER = OBJECT_VIEWER | {
    *(f"storage.folders.{verb}" for verb in ("create", "delete", "rename")),
    *(f"storage.managedFolders.{verb}" for verb in ("create", "delete")),
    *(f"storage.multipartUploads.{verb}" for verb in ("abort", "create", "list", "listParts")),
    *(f"storage.objects.{verb}" for verb in ("create", "delete", "move", "restore", "update")),
    *(f"storage.objects.{verb}Context" for verb in ("create", "delete", "update")),
}
OBJECT_ADMIN = OBJECT_USER | {
    f"storage.objects.{verb}"
    for verb in ("getIamPolicy", "overrideUnlockedRetention", "setIamPolicy", "setRetention")
}
ROLES: dict[str, frozenset[str]] = {
    "roles/storage.objectViewer": OBJECT_VIEWER,
    "roles/storage.objectUser": OBJECT_USER,
    "roles/storage.legacyBucketReader": OBJECT_VIEWER - {"storage.objects.get"}
    | {"storage.buckets.get", "storage.multipartUploads.list"},
    "roles/storage.admin": OBJECT_ADMIN
    | {
        f"storage.buckets.{verb}"
        for verb in ("create", "delete", "get", "getIamPolicy", "list", "setIamPolicy", "update")
    },
    "roles/tpu.viewer": frozenset(one for one in TPU_PERMISSIONS if one.endswith((".get", ".list"))),
    "roles/tpu.admin": TPU_PERMISSIONS,
    "roles/iam.serviceAccountUser": frozenset(
        f"iam.serviceAccounts.{verb}" for verb in ("actAs", "get", "list")
    ),
    "roles/serviceusage.serviceUsageConsumer": frozenset({"serviceusage.services.use"}),
}
TPU_METHODS = {
    "GetNode": "tpu.nodes.get",
    "DeleteNode": "tpu.nodes.delete",
    "CreateQueuedResource": "tpu.nodes.create",
    "GetQueuedResource": "tpu.nodes.get",
    "DeleteQueuedResource": "tpu.nodes.delete",
}
OBJECTS = {
    "GET": {"storage.objects.get"},
    "HEAD": {"storage.objects.get"},
    "PUT": {"storage.objects.get", "storage.objects.update"},
    "PATCH": {"storage.objects.get", "storage.objects.update"},
    "DELETE": {"storage.objects.delete"},
}
BUCKET_VERBS = {"GET": "get", "HEAD": "get", "DELETE": "delete"}


def denied(roles: set[str], needed: set[str]) -> str | None:
    """Return the first permission that none of the roles holds, or None."""
    return min(needed.difference(*(ROLES[role] for role in roles)), default=None)


def needed_for_storage(method: str, url: str) -> set[str]:
    """Return the permissions that a request to Cloud Storage's JSON API needs.

    Raises:
        ValueError: the request is not part of that API, or was not compared with Google's documentation.
    """
    path, _, query = url.partition("?")
    needed = {"serviceusage.services.use"} if "userProject" in parse_qs(query) else set()
    if path.startswith(("/upload/storage/v1/b/", "/resumable/")):
        return needed | {"storage.objects.create"}
    place = re.fullmatch(r"(?:/download)?/storage/v1/b(?P<bucket>/[^/]+)?(?P<rest>/.*)?", path)
    if place is None:
        raise ValueError(f"{method} {path} is not a request of the JSON API")
    rest = place["rest"]
    if place["bucket"] is None:
        return needed | {"storage.buckets.create" if method == "POST" else "storage.buckets.list"}
    if rest is None:
        return needed | {f"storage.buckets.{BUCKET_VERBS.get(method, 'update')}"}
    if rest == "/iam/testPermissions":
        return needed
    if rest == "/iam":
        return needed | {f"storage.buckets.{'getIamPolicy' if method == 'GET' else 'setIamPolicy'}"}
    if rest == "/o":
        return needed | {"storage.objects.list" if method == "GET" else "storage.objects.create"}
    if re.search(r"/(rewriteTo|copyTo|compose)", rest):
        return needed | {"storage.objects.get", "storage.objects.create", "storage.objects.delete"}
    if rest.startswith("/o/") and method in OBJECTS:
        return needed | OBJECTS[method]
    raise ValueError(f"{method} {path} is not among the compared requests")


def needed_for_tpus(method: str, request: Any) -> set[str]:
    """Return the permissions that a call of the TPU API needs, actAs for a node with a service account."""
    needed = {TPU_METHODS[method]}
    if method == "CreateQueuedResource" and any(
        spec.node.service_account.email for spec in request.queued_resource.tpu.node_spec
    ):
        needed.add("iam.serviceAccounts.actAs")
    return needed
