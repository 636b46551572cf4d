"""The pod in the Cloud TPU API (v2): describe, create, delete."""

import asyncio
import json
import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from .errors import CloudError, Offline, explain, is_transient, red, short
from .google import auth, gx, tpu_v2
from .settings import ExecutorSettings

# Only these states prove that a pod is lost; silent hosts prove nothing.
LOST_NODE = {"PREEMPTED", "TERMINATED"}
LOST_QUEUED = {"SUSPENDED", "FAILED"}
JOBLESS_NODE = {"ABSENT", "CREATING", "STOPPED"}  # no job can run either
LABEL = {"snakemake-tpu": "created"}
CALL = "snakemake-tpu-call"  # the label that tells whose request it is
ORDERS = "snakemake-tpu"  # the metadata that tells the hosts where their jobs are
CALL_TIMEOUT = 60.0
TELL_AFTER = 4
PATIENCE = 120.0  # seconds, for people; a study waits for hours
QUEUE_SECONDS = 86400
REMIND_SECONDS = 3600.0
SLOW_DELETION = 20.0  # seconds after which a deletion is reported


@dataclass(frozen=True)
class PodState:
    node: str = "ABSENT"
    queued: str = "ABSENT"
    health: str = ""
    accelerator_type: str = ""
    error: str = ""
    error_code: int = 0
    incarnation: str = ""
    """The id that tells this node from earlier and later nodes of the same name."""
    created_here: bool = False
    """Whether the pod has the label of this plugin."""
    call: str = ""
    """Whose request it is, see CALL."""
    by_user: bool = False
    """Whether a person, not Google, ended the pod; Google says so in the states that follow an end."""
    orders: Mapping[str, Any] = field(default_factory=dict)
    """What the plugin has written into the node's metadata for its hosts."""

    @property
    def is_ready(self) -> bool:
        return self.node == "READY" and self.queued not in LOST_QUEUED

    @property
    def is_absent(self) -> bool:
        """Whether there is nothing to wait for and nothing to delete."""
        return self.node == "ABSENT" and self.queued == "ABSENT"

    @property
    def is_lost(self) -> bool:
        """Whether the pod cannot come back: it has to be deleted before it is created again."""
        return self.node in LOST_NODE or self.queued in LOST_QUEUED

    @property
    def may_run_jobs(self) -> bool:
        """Whether hosts may be at work, as in states between two others or that this client does not know."""
        return not (self.is_lost or self.node in JOBLESS_NODE)

    @property
    def was_deleted(self) -> bool:
        """Whether somebody is deleting or has deleted a pod that was up."""
        return self.is_absent or self.queued == "DELETING" or (self.by_user and self.queued != "ABSENT")

    def __str__(self) -> str:
        return f"node {self.node}, queued resource {self.queued}" + (f" ({self.error})" if self.error else "")


def word(value: Any) -> str:
    """Return the name of a state; one that this client does not know yet comes as a number."""
    return str(getattr(value, "name", f"UNKNOWN_{value}"))


def orders_of(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the hosts' orders in the metadata of a node, empty if this plugin has not written them."""
    try:
        return dict(json.loads(metadata.get(ORDERS, "{}")))
    except (ValueError, TypeError):
        return {}


def valid_seconds(settings: ExecutorSettings) -> int:
    """Return after how long a queued request expires, since its controller may have ended."""
    left = settings.end_time() - time.time() if settings.end else QUEUE_SECONDS
    return int(max(1, min(left, QUEUE_SECONDS)))


class TpuCloud:
    """One pod in one zone: a node and the queued resource of the same name."""

    def __init__(self, settings: ExecutorSettings, say: Callable[[str], None]):
        self.settings, self.say = settings, say
        self.project, self.name = settings.project or "", settings.name or ""
        self.parent = f"projects/{self.project}/locations/{settings.zone}"
        self.node_name = f"{self.parent}/nodes/{self.name}"
        self.queued_name = f"{self.parent}/queuedResources/{self.name}"
        self.poll_seconds = (0.2, 1.0) if settings.api_endpoint else (5.0, 30.0)
        self.pauses = (0.2, 1.0) if settings.api_endpoint else (60.0, 1800.0)
        self.patience = PATIENCE
        self.silent_since = 0.0
        """Since when the API does not answer, by the monotonic clock; 0: it does."""
        self.told = False
        self.call = uuid.uuid4().hex
        self._client: Any = None

    def _connect(self) -> Any:
        endpoint, transport = self.settings.api_endpoint, None
        if self._client is None and endpoint:
            import grpc
            from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcAsyncIOTransport

            if endpoint.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
                raise CloudError(f"tpu-api-endpoint {endpoint} is not on this machine: it has no encryption.")
            transport = TpuGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(endpoint))
        self._client = self._client or tpu_v2.TpuAsyncClient(transport=transport)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.transport.close()

    def refusal(self, error: Exception, action: str) -> CloudError:
        """Return the error as one sentence with the command that fixes it."""
        return CloudError(explain(error, f"{action} {self.name}", self.settings))

    async def _call(self, method: str, attempts: float = math.inf, **arguments: Any) -> Any:
        """Call the API; while it does not answer, for so many attempts or as long as `patience` allows."""
        pause, began, attempt = 0.5, time.monotonic(), 1
        while True:
            try:
                answer = await getattr(self._connect(), method)(retry=None, timeout=CALL_TIMEOUT, **arguments)
                self._heard()
                return answer
            except (gx.NotFound, gx.AlreadyExists):
                self._heard()
                raise
            except (gx.GoogleAPICallError, gx.RetryError, auth.GoogleAuthError) as error:
                if not is_transient(error):
                    raise self.refusal(error, method.replace("_", " ")) from error
                self.silent_since = self.silent_since or time.monotonic()
                sentence = self._silence(error)
                if attempt >= TELL_AFTER and not self.told:
                    self.told = True
                    self.say(red(sentence))
                if attempt >= attempts or time.monotonic() - began > self.patience:
                    raise Offline(sentence) from error
            await asyncio.sleep(pause)
            pause, attempt = min(pause * 2, 30.0), attempt + 1

    def _silence(self, error: Exception) -> str:
        since = time.strftime("%H:%M", time.localtime(time.time() - time.monotonic() + self.silent_since))
        if isinstance(error, gx.TooManyRequests):
            return f"The project {self.project} asks Google too often since {since} ({short(error)}); your jobs go on."
        return f"Cannot reach Google since {since} ({short(error)}); nothing was changed, your jobs go on."

    def _heard(self) -> None:
        if self.told:
            self.say("Google answers again")
        self.silent_since, self.told = 0.0, False

    async def _find(self, kind: str, name: str, attempts: float) -> Any:
        try:
            return await self._call(f"get_{kind}", attempts, name=name)
        except gx.NotFound:
            return None

    async def describe(self, attempts: float = math.inf) -> PodState:
        node = await self._find("node", self.node_name, attempts)
        queued = await self._find("queued_resource", self.queued_name, attempts)
        nodes = [node] if node is not None else []
        state: dict[str, Any] = {}
        if node is not None:
            state = {"node": word(node.state), "health": word(node.health), "incarnation": str(node.id)}
            # which may be a full resource name
            kind = node.accelerator_type.rpartition("/")[2]
            state |= {"accelerator_type": kind}
        if queued is not None:
            error = queued.state.failed_data.error
            state |= {"queued": word(queued.state.state), "error": error.message, "error_code": error.code}
            ended = word(queued.state.state) in ("SUSPENDING", "SUSPENDED", "DELETING")
            state["by_user"] = ended and word(queued.state.state_initiator) == "USER"
            nodes += [spec.node for spec in queued.tpu.node_spec]
        labels = [dict(each.labels) for each in nodes]
        state["created_here"] = any(LABEL.items() <= each.items() for each in labels)
        state["call"] = next((each[CALL] for each in labels if CALL in each), "")
        state["orders"] = next((found for each in nodes if (found := orders_of(each.metadata))), {})
        return PodState(**state)

    async def create(self, metadata: Mapping[str, str]) -> Any:
        """Request the pod, which comes when there is capacity; return the operation, or None if it is requested."""
        settings = self.settings
        network: dict[str, Any] = {"network": settings.network or "", "subnetwork": settings.subnetwork or ""}
        network["enable_external_ips"] = not settings.internal_ips
        node: dict[str, Any] = {"accelerator_type": settings.accelerator_type}
        node |= {"runtime_version": settings.runtime(), "network_config": network}
        node |= {"labels": LABEL | {CALL: self.call}, "metadata": dict(metadata)}
        if settings.service_account:
            scope = ["https://www.googleapis.com/auth/cloud-platform"]
            node["service_account"] = {"email": settings.service_account, "scope": scope}
        resource: dict[str, Any] = {"spot" if settings.provisioning == "spot" else "guaranteed": {}}
        if settings.provisioning != "on-demand":
            node["scheduling_config"] = {settings.provisioning: True}
        if settings.provisioning == "reserved":
            resource["reservation_name"] = settings.reservation or ""
        resource["tpu"] = {"node_spec": [{"parent": self.parent, "node_id": self.name, "node": node}]}
        valid = timedelta(seconds=valid_seconds(settings))
        resource["queueing_policy"] = {"valid_until_duration": valid}
        request: dict[str, Any] = {"parent": self.parent, "queued_resource_id": self.name}
        try:
            return await self._call("create_queued_resource", **request, queued_resource=resource)
        except gx.AlreadyExists:
            return None  # an answer was lost, or somebody else was faster: its label tells
        except gx.NotFound as error:
            raise self.refusal(error, "create") from error

    async def is_done(self, operation: Any) -> bool:
        """Return whether an operation has ended; False during an outage. Raises CloudError if the API refuses."""
        try:
            return bool(await operation.done())
        except (gx.GoogleAPICallError, gx.RetryError, auth.GoogleAuthError) as error:
            if is_transient(error):
                return False
            raise self.refusal(error, "follow the request for") from error

    def failure_of(self, operation: Any) -> Exception | None:
        error = operation.operation.error
        return gx.from_grpc_status(error.code, error.message) if error.code else None

    async def delete(self, while_: Callable[[PodState], bool] = lambda state: True) -> PodState:
        """Delete the pod and wait until it is gone or `while_` no longer holds; return its state.

        Raises CloudError if the API refuses, at once or when the operation ends. A precondition that fails is waited
        for: a resource that is being suspended can be deleted some minutes later.
        """
        pause, most = self.poll_seconds
        operation, refused = None, 0.0
        reminder = time.monotonic() + SLOW_DELETION
        while not (state := await self.describe()).is_absent:
            if time.monotonic() > reminder:
                reminder = time.monotonic() + REMIND_SECONDS
                self.say(
                    f"TPU pod {self.name} is still being deleted ({state}); another tpu-name would not wait for it"
                )
            error: Any = None
            if operation is not None and await self.is_done(operation):
                error, operation = self.failure_of(operation), None
            elif operation is None and "DELETING" not in (state.queued, state.node):
                # A new incarnation may have replaced it, which must not be deleted.
                if not while_(state):
                    return state
                try:
                    operation = await self._delete_once(state)
                except gx.NotFound:
                    continue
                except CloudError as refusal:
                    if not isinstance(error := refusal.__cause__, gx.FailedPrecondition):
                        raise
            if isinstance(error, gx.FailedPrecondition):
                refused = min(2 * refused, self.pauses[1]) if refused else self.pauses[0]
                words = f"cannot be deleted yet ({short(error)}): next try in {refused:.0f} s"
                self.say(f"TPU pod {self.name} {words}")
                await asyncio.sleep(refused)
            elif error and not is_transient(error):
                raise self.refusal(error, "delete")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, most)
        return state

    async def _delete_once(self, state: PodState) -> Any:
        if state.queued == "ABSENT":
            return await self._call("delete_node", name=self.node_name)
        request = tpu_v2.DeleteQueuedResourceRequest(name=self.queued_name, force=True)
        return await self._call("delete_queued_resource", request=request)
