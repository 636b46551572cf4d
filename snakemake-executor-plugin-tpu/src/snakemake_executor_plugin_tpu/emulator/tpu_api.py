"""The Cloud TPU API (v2) over loopback gRPC: queued resources, and nodes with emulated hosts."""

import itertools
import re
import threading
import time
import uuid
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
from google.cloud import tpu_v2
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2
from google.rpc import status_pb2

from snakemake_executor_plugin_tpu.allocation import slice_of

from .iam import TPU_METHODS, denied, needed_for_tpus

NodeState: Any = tpu_v2.Node.State
QueuedState: Any = tpu_v2.QueuedResourceState.State
WAITING = (
    QueuedState.CREATING,
    QueuedState.ACCEPTED,
    QueuedState.WAITING_FOR_RESOURCES,
    QueuedState.PROVISIONING,
)
NO_CAPACITY = 'There is no more capacity in the zone "{zone}"; you can try in another zone'


def _queued_state(state: str, **data: Any) -> Any:
    return tpu_v2.QueuedResourceState(state=getattr(QueuedState, state), **data)


class ApiError(Exception):
    """An answer other than OK."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class TpuApi:
    """State and methods of the service; it calls `boot` and `destroy` with a node when its hosts start and end."""

    ZONES = ("us-central2-b", "us-east5-a", "z")

    def __init__(
        self, boot: Callable[..., Any], destroy: Callable[..., Any], seconds_per_state: float = 0.05
    ) -> None:
        self.boot, self.destroy = boot, destroy
        self.free: Callable[[], int] = lambda: 1  # slices that it could give now
        self.most_hosts: int | None = None  # of a slice
        self.seconds_per_state = self.usual_seconds = seconds_per_state
        self.failing: list[str] = []  # why the next requests end in FAILED
        self.ids = itertools.count(1)
        self.created_nodes = 0
        self.full_zones: set[str] = set()
        self.refusals: dict[str, list[status_pb2.Status]] = {"create": [], "delete": []}
        self.deleting: dict[str, float] = {}
        self.nodes: dict[str, Any] = {}
        self.queued: dict[str, Any] = {}
        self.created: dict[str, float] = {}
        self.operations: dict[str, operations_pb2.Operation] = {}
        self.started: dict[str, float] = {}
        self.failures: list[tuple[str, ApiError]] = []
        self.roles = {"roles/tpu.admin", "roles/iam.serviceAccountUser"}  # of the callers
        self.offline = False  # nobody reaches the API
        self.calls: list[str] = []
        self.requests: list[Any] = []
        self.lock = threading.RLock()
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers(self._handlers())
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    def start(self) -> None:
        """Start serving."""
        self.server.start()

    def stop(self) -> None:
        """Stop serving."""
        self.server.stop(None).wait()

    def fail(
        self, count: int, code: str = "UNAVAILABLE", message: str = "emulated outage", method: str = ""
    ) -> None:
        """Answer the next `count` calls (of one method, if given) with an error."""
        with self.lock:
            self.failures += [(method, ApiError(grpc.StatusCode[code], message))] * count

    def planned(self) -> int:
        """Return how many planned errors nobody has been answered with yet."""
        return len(self.failures) + sum(map(len, self.refusals.values()))

    def clear_faults(self) -> None:
        """Forget the planned faults."""
        with self.lock:
            self.failures.clear()
            self.failing.clear()
            self.full_zones.clear()
            for refusals in self.refusals.values():
                refusals.clear()
            self.offline, self.seconds_per_state = False, self.usual_seconds

    def forget(self) -> None:
        """Forget every node and request."""
        with self.lock:
            for states in (self.nodes, self.queued, self.deleting):
                states.clear()

    def preempt(self, name: str = "") -> None:
        """Preempt every node or the named one; the caller ends the hosts."""
        with self.lock:
            for path, node in self.nodes.items():
                if not name or path.endswith(f"/{name}"):
                    node.state = NodeState.PREEMPTED
            for path, resource in self.queued.items():
                if resource.state.state == QueuedState.ACTIVE and (not name or path.endswith(f"/{name}")):
                    resource.state = _queued_state("SUSPENDED", state_initiator="SERVICE")

    def _fail(self, name: str) -> None:
        """Raise the next error planned for this method, if any."""
        for index, (wanted, error) in enumerate(self.failures):
            if wanted in ("", name):
                del self.failures[index]
                raise error

    def _handlers(self) -> tuple[Any, ...]:
        def serve(name: str) -> Any:
            def method(request: Any, context: Any) -> Any:
                with self.lock:
                    self.calls.append(name)
                    self.requests.append(request)
                    try:
                        where = getattr(request, "name", "") or request.parent
                        self._admit(needed_for_tpus(name, request), where)
                        self._fail(name)
                        self._check_zone(where)
                        self._advance()
                        return getattr(self, f"_{re.sub(r'(?<!^)(?=[A-Z])', '_', name).lower()}")(request)
                    except ApiError as error:
                        context.abort(error.code, error.message)

            request_type = getattr(tpu_v2, f"{name}Request")
            return grpc.unary_unary_rpc_method_handler(method, request_type.deserialize, _serialize)

        def operation(request: Any, context: Any) -> Any:
            with self.lock:
                try:
                    self._admit({"tpu.operations.get"}, request.name)
                    self._fail("GetOperation")
                    self._advance()
                    return self.operations[request.name]
                except ApiError as error:
                    context.abort(error.code, error.message)

        operations = grpc.unary_unary_rpc_method_handler(
            operation, operations_pb2.GetOperationRequest.FromString, _serialize
        )
        generic = grpc.method_handlers_generic_handler
        return (
            generic("google.cloud.tpu.v2.Tpu", {name: serve(name) for name in TPU_METHODS}),
            generic("google.longrunning.Operations", {"GetOperation": operations}),
        )

    def _admit(self, needed: set[str], where: str) -> None:
        if self.offline:
            raise ApiError(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses")
        if permission := denied(self.roles, needed):
            # the real words (github.com/tensorflow/tpu/issues/296)
            message = f"Permission '{permission}' denied on '{where}'"
            raise ApiError(grpc.StatusCode.PERMISSION_DENIED, message)

    def fail_requests(self, count: int, message: str = NO_CAPACITY) -> None:
        """Let the next `count` requests end in FAILED, for lack of capacity or for another reason."""
        self.failing += [message] * count

    def refuse(self, code: int, message: str, what: str = "create") -> None:
        """Let the operation of the next request, or of the next deletion, fail."""
        self.refusals[what].append(status_pb2.Status(code=code, message=message))

    def _advance(self) -> None:
        """Advance requests, operations and deletions."""
        now = time.monotonic()
        for name, resource in list(self.queued.items()):
            if resource.state.state not in WAITING:
                continue
            valid = resource.queueing_policy.valid_until_duration
            age = int((now - self.created[name]) / self.seconds_per_state)
            zone = name.split("/")[3]
            if valid and now - self.created[name] > valid.total_seconds():
                error = {"code": 4, "message": "The request expired: valid_until has passed"}
                resource.state = _queued_state("FAILED", failed_data={"error": error})
            elif zone in self.full_zones or not (self.free() or age < len(WAITING)):
                resource.state = _queued_state("WAITING_FOR_RESOURCES")
            elif age < len(WAITING):
                resource.state = _queued_state(WAITING[age].name)
            elif self.failing:
                error = {"code": 8, "message": self.failing.pop().format(zone=zone)}
                resource.state = _queued_state("FAILED", failed_data={"error": error})
            else:
                for spec in resource.tpu.node_spec:
                    self._make_node(spec)
                resource.state = _queued_state("ACTIVE")
        for name, since in list(self.deleting.items()):
            if now - since > self.seconds_per_state:
                del self.deleting[name]
                self.nodes.pop(name, None)
                self.queued.pop(name, None)
        for operation in self.operations.values():
            if not operation.done and now - self.started[operation.name] > self.seconds_per_state:
                operation.done = True

    def _make_node(self, spec: Any) -> None:
        name = f"{spec.parent}/nodes/{spec.node_id}"
        node: Any = tpu_v2.Node(spec.node)
        node.id = next(self.ids)
        node.name, node.state, node.health = name, NodeState.READY, tpu_v2.Node.Health.HEALTHY
        outside = tpu_v2.AccessConfig(
            external_ip="127.0.0.1" if node.network_config.enable_external_ips else ""
        )
        node.network_endpoints = [
            tpu_v2.NetworkEndpoint(ip_address="127.0.0.1", port=8470, access_config=outside)
            for _ in range(slice_of(node.accelerator_type).hosts)
        ]
        self.created_nodes += 1
        self.nodes[name] = node
        self.boot(node)

    def _operation(self, parent: str, result: Any, error: status_pb2.Status | None = None) -> Any:
        """Start an operation, which ends with its result or error some time later."""
        operation = operations_pb2.Operation(name=f"{parent}/operations/{uuid.uuid4()}")
        packed = any_pb2.Any()
        packed.Pack(getattr(result, "_pb", None) or result)
        if error is None:
            operation.response.CopyFrom(packed)
        else:
            operation.error.CopyFrom(error)
        self.operations[operation.name], self.started[operation.name] = operation, time.monotonic()
        return operation

    def _check_zone(self, parent: str) -> None:
        zone = parent.split("/")[3]
        if zone not in self.ZONES:
            # The real code (github.com/dstackai/gpuhunt/issues/98), also for a project without access to the zone.
            raise ApiError(
                grpc.StatusCode.PERMISSION_DENIED, f"Location {zone} is not found or access is unauthorized."
            )

    def _find(self, kind: dict[str, Any], name: str) -> Any:
        if name not in kind:
            raise ApiError(grpc.StatusCode.NOT_FOUND, f"Resource '{name}' was not found")
        return kind[name]

    def _get_node(self, request: Any) -> Any:
        return self._find(self.nodes, request.name)

    def _delete_node(self, request: Any) -> Any:
        node = self._find(self.nodes, request.name)
        self._end_node(request.name)
        for resource in self.queued.values():
            places = [f"{spec.parent}/nodes/{spec.node_id}" for spec in resource.tpu.node_spec]
            if request.name in places and resource.state.state == QueuedState.ACTIVE:
                resource.state = _queued_state("SUSPENDED", state_initiator="USER")
        return self._operation(request.name.partition("/nodes/")[0], node)

    def _end_node(self, name: str) -> None:
        if name in self.nodes:
            self.destroy(self.nodes[name])
            self.nodes[name].state = NodeState.DELETING
            self.deleting[name] = time.monotonic()

    def _create_queued_resource(self, request: Any) -> Any:
        name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
        if name in self.queued:
            raise ApiError(grpc.StatusCode.ALREADY_EXISTS, f"Resource '{name}' already exists")
        for spec in request.queued_resource.tpu.node_spec:
            if f"{spec.parent}/nodes/{spec.node_id}" in self.nodes:
                raise ApiError(grpc.StatusCode.ALREADY_EXISTS, f"Node '{spec.node_id}' already exists")
            kind = spec.node.accelerator_type
            if self.most_hosts and slice_of(kind).hosts > self.most_hosts:
                message = f"the slices of this emulator have {self.most_hosts} hosts, and a {kind} has more"
                raise ApiError(grpc.StatusCode.INVALID_ARGUMENT, message)
        resource = tpu_v2.QueuedResource(request.queued_resource)
        resource.name = name
        if self.refusals["create"]:
            return self._operation(request.parent, resource, self.refusals["create"].pop(0))
        resource.state = _queued_state("CREATING")
        self.queued[name], self.created[name] = resource, time.monotonic()
        return self._operation(request.parent, resource)

    def _get_queued_resource(self, request: Any) -> Any:
        return self._find(self.queued, request.name)

    def _delete_queued_resource(self, request: Any) -> Any:
        resource = self._find(self.queued, request.name)
        if resource.state.state == QueuedState.DELETING:
            raise ApiError(grpc.StatusCode.FAILED_PRECONDITION, "the queued resource is being deleted")
        nodes = [f"{spec.parent}/nodes/{spec.node_id}" for spec in resource.tpu.node_spec]
        if not request.force and any(node in self.nodes for node in nodes):
            raise ApiError(
                grpc.StatusCode.FAILED_PRECONDITION, "a queued resource with nodes is deleted by force only"
            )
        if self.refusals["delete"]:
            parent = request.name.partition("/queuedResources/")[0]
            return self._operation(parent, resource, self.refusals["delete"].pop(0))
        for node in nodes:
            self._end_node(node)
        resource.state = _queued_state("DELETING", state_initiator="USER")
        self.deleting[request.name] = time.monotonic()
        return self._operation(request.name.partition("/queuedResources/")[0], empty_pb2.Empty())

    def delete_by_rest(self, name: str, force: bool) -> int:
        """Delete a queued resource or a node for a host that asks by HTTPS; return the status code."""
        kind = "QueuedResource" if "/queuedResources/" in name else "Node"
        request = tpu_v2.DeleteQueuedResourceRequest(name=name, force=force)
        with self.lock:
            self.calls.append(f"REST Delete{kind}")
            self._advance()
            try:
                (self._delete_queued_resource if kind == "QueuedResource" else self._delete_node)(request)
            except ApiError as error:
                return 404 if error.code == grpc.StatusCode.NOT_FOUND else 400
        return 200


def _serialize(message: Any) -> bytes:
    encoded: bytes = getattr(message, "_pb", message).SerializeToString()
    return encoded
