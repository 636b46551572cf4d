"""What the settings ask of the TPU API: the pod to create, and the orders by which it deletes itself."""

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from .cloud import QUEUE_SECONDS, PodSpec, TpuCloud
from .settings import ExecutorSettings


def orders_of(settings: ExecutorSettings) -> tuple[tuple[str, str], ...]:
    """Return the metadata that makes a new pod delete itself: its startup script and what that has to know."""
    if not (settings.idle_delete or settings.end):
        return ()
    orders = {
        "name": settings.name,
        "idle_seconds": 60 * settings.idle_delete,
        "end": settings.end_time(),
        "lease": settings.lease,
        "secret": secrets.token_hex(16),
        "api": f"{'http' if settings.api_endpoint else 'https'}://tpu.googleapis.com",
    }
    script = (Path(__file__).parent / "worker" / "guard.py").read_text()
    return ("startup-script", script), ("snakemake-tpu", json.dumps(orders))


def valid_seconds(settings: ExecutorSettings) -> int:
    """Return how long a request stays in the queue, whether or not somebody still waits for it."""
    seconds = settings.queue_timeout or QUEUE_SECONDS
    if settings.end:
        seconds = min(seconds, int(settings.end_time() - time.time()))
    return max(1, seconds)


def cloud_of(settings: ExecutorSettings, say: Callable[[str], None]) -> TpuCloud | None:
    """Return the API's side of the pod, or None for hosts that are not managed here."""
    if settings.workers:
        return None
    settings.check_pod()
    user, key = settings.login
    spec = PodSpec(
        accelerator_type=settings.accelerator_type,
        runtime_version=settings.runtime_version,
        provisioning=settings.provisioning,
        reservation=settings.reservation,
        network=settings.network,
        subnetwork=settings.subnetwork,
        internal_ips=settings.internal_ips,
        service_account=settings.service_account,
        labels=tuple(settings.parsed_labels().items()),
        metadata=orders_of(settings),
        valid_seconds=valid_seconds(settings),
        ssh_user=user,
        ssh_key=key,
    )
    project, zone, name = settings.project or "", settings.zones()[0], settings.name or ""
    return TpuCloud(project, zone, name, spec, settings.api_endpoint, say)
