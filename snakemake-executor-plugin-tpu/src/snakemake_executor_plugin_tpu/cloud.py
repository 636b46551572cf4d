"""The pod as the Cloud TPU API (v2) sees it: described, created, adopted, deleted."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import CloudError, explain, is_transient
from .google import auth, gx, load

GONE_NODE = {"PREEMPTED", "TERMINATED", "STOPPED"}
GONE_QUEUED = {"SUSPENDED", "FAILED"}
CALL_TIMEOUT = 60.0


@dataclass(frozen=True)
class Endpoint:
    """Where one host of the pod is, and the keys by which ssh knows that it is the one."""

    address: str
    internal: str = ""
    host_keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class PodState:
    """What the API says about the pod."""

    node: str = "ABSENT"
    queued: str = "ABSENT"
    health: str = ""
    accelerator_type: str = ""
    addresses: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_ready(self) -> bool:
        """Tell whether the hosts should be up."""
        return self.node == "READY" and bool(self.addresses)

    @property
    def is_absent(self) -> bool:
        """Tell whether there is nothing to wait for and nothing to delete."""
        return self.node == "ABSENT" and self.queued == "ABSENT"

    @property
    def is_gone(self) -> bool:
        """Tell whether the pod has to be deleted before it can come back."""
        return self.node in GONE_NODE or self.queued in GONE_QUEUED

    def __str__(self) -> str:
        """Say it in a few words."""
        return f"node {self.node}, queued resource {self.queued}" + (f" ({self.error})" if self.error else "")


@dataclass(frozen=True)
class PodSpec:
    """What to create."""

    accelerator_type: str = "v4-64"
    runtime_version: str = "tpu-ubuntu2204-base"
    provisioning: str = "spot"
    reservation: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    internal_ips: bool = False
    service_account: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    ssh_user: str | None = None
    ssh_public_key: Path | None = None


class TpuCloud:
    """One pod: a node and the queued resource of the same name."""

    def __init__(self, project: str, zone: str, name: str, spec: PodSpec, endpoint: str | None = None):
        self.parent = f"projects/{project}/locations/{zone}"
        self.project, self.zone, self.name, self.spec, self.endpoint = project, zone, name, spec, endpoint
        self.poll_seconds = (0.2, 1.0) if endpoint else (5.0, 30.0)
        self._client = None

    @property
    def node_name(self) -> str:
        """Return the node's full name."""
        return f"{self.parent}/nodes/{self.name}"

    @property
    def queued_name(self) -> str:
        """Return the queued resource's full name."""
        return f"{self.parent}/queuedResources/{self.name}"

    def _connect(self):
        tpu_v2 = load("google.cloud.tpu_v2")
        if self._client is None:
            if self.endpoint:
                import grpc
                from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcAsyncIOTransport

                if self.endpoint.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
                    raise CloudError(
                        f"tpu-api-endpoint {self.endpoint} is not on this machine: it has no encryption."
                    )
                transport = TpuGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(self.endpoint))
                self._client = tpu_v2.TpuAsyncClient(transport=transport)
            else:
                self._client = tpu_v2.TpuAsyncClient()
        return self._client

    async def close(self) -> None:
        """Close the connection to the API."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.transport.close()

    async def _call(self, method: str, attempts: int = 40, **arguments):
        pause = 0.5
        for attempt in range(1, attempts + 1):
            try:
                return await getattr(self._connect(), method)(retry=None, timeout=CALL_TIMEOUT, **arguments)
            except (gx.NotFound, gx.AlreadyExists):
                raise
            except (gx.GoogleAPICallError, gx.RetryError, auth.GoogleAuthError) as error:
                if attempt == attempts or not is_transient(error):
                    action = f"{method.replace('_', ' ')} {self.name}"
                    raise CloudError(explain(error, self.project, self.zone, action, self.spec)) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 30.0)

    async def describe(self, attempts: int = 40) -> PodState:
        """Return the pod's state."""
        try:
            node = await self._call("get_node", attempts, name=self.node_name)
        except gx.NotFound:
            node = None
        try:
            queued = await self._call("get_queued_resource", attempts, name=self.queued_name)
        except gx.NotFound:
            queued = None
        state = {}
        if node is not None:
            external = not self.spec.internal_ips
            addresses = [
                (external and point.access_config.external_ip) or point.ip_address
                for point in node.network_endpoints
            ]
            state |= {"node": node.state.name, "health": node.health.name, "addresses": tuple(addresses)}
            state["internal"] = tuple(point.ip_address for point in node.network_endpoints)
            state["accelerator_type"] = node.accelerator_type
        if queued is not None:
            state["queued"] = queued.state.state.name
            state["error"] = queued.state.failed_data.error.message if state["queued"] == "FAILED" else ""
        return PodState(**state)

    async def endpoints(self) -> list[Endpoint]:
        """Return where the hosts are, with their host keys as the API (not the network) tells them."""
        state = await self.describe()
        keys = await asyncio.gather(*(self._host_keys(str(rank)) for rank in range(len(state.addresses))))
        return [Endpoint(*host) for host in zip(state.addresses, state.internal, keys, strict=True)]

    async def _host_keys(self, rank: str) -> tuple[str, ...]:
        request = {"name": self.node_name, "query_path": "hostkeys/", "worker_ids": [rank]}
        try:
            answer = await self._call("get_guest_attributes", attempts=3, request=request)
        except (gx.NotFound, CloudError):
            return ()  # an image without guest attributes: ssh then keeps the first key it sees
        items = [item for attribute in answer.guest_attributes for item in attribute.query_value.items]
        return tuple(f"{item.key} {item.value}" for item in items if item.namespace == "hostkeys")

    async def create(self) -> None:
        """Ask for the pod; it comes when there is capacity."""
        tpu_v2 = load("google.cloud.tpu_v2")
        spec = self.spec
        node = tpu_v2.Node(
            accelerator_type=spec.accelerator_type,
            runtime_version=spec.runtime_version,
            labels=dict(spec.labels),
        )
        node.network_config = tpu_v2.NetworkConfig(
            network=spec.network or "",
            subnetwork=spec.subnetwork or "",
            enable_external_ips=not spec.internal_ips,
        )
        node.metadata = {"enable-guest-attributes": "TRUE"}
        if spec.ssh_public_key and spec.ssh_user:
            node.metadata["ssh-keys"] = f"{spec.ssh_user}:{spec.ssh_public_key.read_text().strip()}"
        if spec.service_account:
            scope = ["https://www.googleapis.com/auth/cloud-platform"]
            node.service_account = tpu_v2.ServiceAccount(email=spec.service_account, scope=scope)
        node_spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=self.parent, node_id=self.name, node=node)
        resource = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[node_spec]))
        if spec.provisioning == "spot":
            resource.spot = tpu_v2.QueuedResource.Spot()
            node_spec.node.scheduling_config = tpu_v2.SchedulingConfig(spot=True)
        else:
            resource.guaranteed = tpu_v2.QueuedResource.Guaranteed()
        if spec.provisioning == "reserved":
            node_spec.node.scheduling_config = tpu_v2.SchedulingConfig(reserved=True)
            resource.reservation_name = spec.reservation or ""
        resource.tpu = tpu_v2.QueuedResource.Tpu(node_spec=[node_spec])
        try:
            await self._call(
                "create_queued_resource",
                parent=self.parent,
                queued_resource_id=self.name,
                queued_resource=resource,
            )
        except gx.AlreadyExists:
            pass  # a call whose answer was lost, or somebody else was faster: either way it is there

    async def delete(self) -> None:
        """Delete the pod and wait until it is gone."""
        tpu_v2 = load("google.cloud.tpu_v2")
        pause, most = self.poll_seconds
        while not (state := await self.describe()).is_absent:
            try:
                if state.queued not in ("ABSENT", "DELETING"):
                    request = tpu_v2.DeleteQueuedResourceRequest(name=self.queued_name, force=True)
                    await self._call("delete_queued_resource", request=request)
                elif state.queued == "ABSENT" and state.node not in ("ABSENT", "DELETING"):
                    await self._call("delete_node", name=self.node_name)
            except gx.NotFound:
                continue
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, most)

    async def ensure(self, create: bool, say: Callable[[str], None], timeout: float = 0) -> PodState:
        """Wait until the pod is ready; create it, or re-create what preemption left, where that is allowed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout if timeout else None
        pause, most = self.poll_seconds
        told = created = None
        while not (state := await self.describe()).is_ready or state.is_gone:
            if str(state) != told:
                told = str(state)
                say(f"TPU pod {self.name}: {told}")
            if state.is_gone or state.is_absent:
                if state.queued == "FAILED" and created:
                    raise CloudError(
                        explain(
                            gx.FailedPrecondition(state.error), self.project, self.zone, "create", self.spec
                        )
                    )
                if not create:
                    what = "does not exist" if state.is_absent else f"is gone ({state})"
                    raise CloudError(
                        f"TPU pod {self.name} {what}, and the profile does not allow creating it: "
                        "set tpu-create: true, or run `python -m snakemake_executor_plugin_tpu up`."
                    )
                if state.is_gone:
                    await self.delete()
                say(f"TPU pod {self.name}: asking for {self.spec.provisioning} {self.spec.accelerator_type}")
                await self.create()
                created = True
                pause = self.poll_seconds[0]
            if deadline and loop.time() > deadline:
                raise CloudError(
                    f"TPU pod {self.name} was not ready after {timeout:.0f} s ({state}): zone {self.zone} has no "
                    "capacity now. Its request stays queued; raise tpu-queue-timeout to wait longer."
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, most)
        return state
