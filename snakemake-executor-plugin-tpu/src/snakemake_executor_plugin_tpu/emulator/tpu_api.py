"""The Cloud TPU API (v2) over loopback gRPC: queued resources and nodes whose hosts are the emulated ones."""

import re
import threading
import time
import uuid
from collections.abc import Callable
from concurrent import futures

import grpc
from google.cloud import tpu_v2
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2

NodeState = tpu_v2.Node.State
QueuedState = tpu_v2.QueuedResourceState.State
WAITING = (QueuedState.ACCEPTED, QueuedState.WAITING_FOR_RESOURCES, QueuedState.PROVISIONING)


class ApiError(Exception):
    """An answer other than OK."""

    def __init__(self, code: grpc.StatusCode, message: str):
        super().__init__(message)
        self.code, self.message = code, message


class TpuApi:
    """State and methods of the service. `boot` and `destroy` are called with a node when its hosts come and go."""

    METHODS = (
        "GetNode",
        "ListNodes",
        "DeleteNode",
        "CreateQueuedResource",
        "GetQueuedResource",
        "ListQueuedResources",
        "DeleteQueuedResource",
        "GetGuestAttributes",
    )

    def __init__(self, boot: Callable, destroy: Callable, seconds_per_state: float = 0.05):
        self.boot, self.destroy, self.seconds_per_state = boot, destroy, seconds_per_state
        self.nodes: dict[str, tpu_v2.Node] = {}
        self.queued: dict[str, tpu_v2.QueuedResource] = {}
        self.created: dict[str, float] = {}
        self.operations: dict[str, operations_pb2.Operation] = {}
        self.host_keys: dict[str, list[str]] = {}
        self.failures: list[tuple[str, ApiError]] = []
        self.calls: list[str] = []
        self.requests: list = []
        self.lock = threading.RLock()
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers(self._handlers())
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    def start(self) -> None:
        """Begin to serve."""
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

    def preempt(self) -> None:
        """Take every node away, as Google does with spot capacity. The hosts are the caller's to kill."""
        with self.lock:
            for node in self.nodes.values():
                node.state = NodeState.PREEMPTED
            for resource in self.queued.values():
                resource.state = tpu_v2.QueuedResourceState(state=QueuedState.SUSPENDED)

    def _handlers(self) -> tuple:
        def serve(name: str):
            def method(request, context):
                with self.lock:
                    self.calls.append(name)
                    self.requests.append(request)
                    try:
                        for index, (wanted, error) in enumerate(self.failures):
                            if wanted in ("", name):
                                del self.failures[index]
                                raise error
                        self._advance()
                        return getattr(self, f"_{re.sub(r'(?<!^)(?=[A-Z])', '_', name).lower()}")(request)
                    except ApiError as error:
                        context.abort(error.code, error.message)

            request_type = getattr(tpu_v2, f"{name}Request")
            return grpc.unary_unary_rpc_method_handler(method, request_type.deserialize, _serialize)

        operations = grpc.unary_unary_rpc_method_handler(
            lambda request, context: self.operations[request.name],
            operations_pb2.GetOperationRequest.FromString,
            _serialize,
        )
        generic = grpc.method_handlers_generic_handler
        return (
            generic("google.cloud.tpu.v2.Tpu", {name: serve(name) for name in self.METHODS}),
            generic("google.longrunning.Operations", {"GetOperation": operations}),
        )

    def _advance(self) -> None:
        for name, resource in self.queued.items():
            if resource.state.state in WAITING:
                age = int((time.monotonic() - self.created[name]) / self.seconds_per_state)
                if age < len(WAITING):
                    resource.state = tpu_v2.QueuedResourceState(state=WAITING[age])
                    continue
                for spec in resource.tpu.node_spec:
                    self._make_node(spec)
                resource.state = tpu_v2.QueuedResourceState(state=QueuedState.ACTIVE)

    def _make_node(self, spec) -> None:
        name = f"{spec.parent}/nodes/{spec.node_id}"
        node = tpu_v2.Node(spec.node)
        node.name, node.state, node.health = name, NodeState.READY, tpu_v2.Node.Health.HEALTHY
        addresses, self.host_keys[name] = self.boot(node)
        node.network_endpoints = [
            tpu_v2.NetworkEndpoint(
                ip_address=address, port=8470, access_config=tpu_v2.AccessConfig(external_ip=address)
            )
            for address in addresses
        ]
        self.nodes[name] = node

    def _done(self, parent: str, result) -> operations_pb2.Operation:
        operation = operations_pb2.Operation(name=f"{parent}/operations/{uuid.uuid4()}", done=True)
        packed = any_pb2.Any()
        packed.Pack(getattr(result, "_pb", None) or result)
        operation.response.CopyFrom(packed)
        self.operations[operation.name] = operation
        return operation

    def _find(self, kind: dict, name: str):
        if name not in kind:
            raise ApiError(grpc.StatusCode.NOT_FOUND, f"Resource '{name}' was not found")
        return kind[name]

    def _get_node(self, request):
        return self._find(self.nodes, request.name)

    def _list_nodes(self, request):
        return tpu_v2.ListNodesResponse(nodes=list(self.nodes.values()))

    def _delete_node(self, request):
        node = self._find(self.nodes, request.name)
        self.destroy(node)
        del self.nodes[request.name]
        return self._done(request.name.partition("/nodes/")[0], empty_pb2.Empty())

    def _create_queued_resource(self, request):
        name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
        if name in self.queued:
            raise ApiError(grpc.StatusCode.ALREADY_EXISTS, f"Resource '{name}' already exists")
        resource = tpu_v2.QueuedResource(request.queued_resource)
        resource.name = name
        resource.state = tpu_v2.QueuedResourceState(state=QueuedState.ACCEPTED)
        self.queued[name], self.created[name] = resource, time.monotonic()
        return self._done(request.parent, resource)

    def _get_queued_resource(self, request):
        return self._find(self.queued, request.name)

    def _list_queued_resources(self, request):
        return tpu_v2.ListQueuedResourcesResponse(queued_resources=list(self.queued.values()))

    def _delete_queued_resource(self, request):
        resource = self._find(self.queued, request.name)
        if resource.state.state == QueuedState.ACTIVE and not request.force:
            raise ApiError(
                grpc.StatusCode.FAILED_PRECONDITION, "an ACTIVE queued resource is deleted by force only"
            )
        for spec in resource.tpu.node_spec:
            if node := self.nodes.pop(f"{spec.parent}/nodes/{spec.node_id}", None):
                self.destroy(node)
        del self.queued[request.name]
        return self._done(request.name.partition("/queuedResources/")[0], empty_pb2.Empty())

    def _get_guest_attributes(self, request):
        self._find(self.nodes, request.name)
        keys = self.host_keys[request.name]
        wanted = [int(rank) for rank in request.worker_ids] or range(len(keys))
        attributes = []
        for rank in wanted:
            kind, value = keys[rank].split()
            item = tpu_v2.GuestAttributesEntry(namespace="hostkeys", key=kind, value=value)
            attributes.append(tpu_v2.GuestAttributes(query_path="hostkeys/", query_value={"items": [item]}))
        return tpu_v2.GetGuestAttributesResponse(guest_attributes=attributes)


def _serialize(message) -> bytes:
    return (
        getattr(message, "_pb", message).SerializeToString()
        if hasattr(message, "_pb")
        else message.SerializeToString()
    )
