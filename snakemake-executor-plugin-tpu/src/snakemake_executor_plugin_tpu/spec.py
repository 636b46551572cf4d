"""What the settings say about a new pod: the metadata by which it deletes itself, and when its request expires."""

import json
import secrets
import time
from pathlib import Path

from .settings import ExecutorSettings

QUEUE_SECONDS = 86400


def guard_metadata(settings: ExecutorSettings) -> dict[str, str]:
    """Return the metadata by which a new pod deletes itself: the startup script (worker/guard.py) and its settings."""
    if not (settings.idle_delete or settings.end):
        return {}
    orders = {
        "name": settings.name,
        "idle_seconds": 60 * settings.idle_delete,
        "end": settings.end_time(),
        "lease": settings.lease,
        "secret": secrets.token_hex(16),
        "api": f"{'http' if settings.api_endpoint else 'https'}://tpu.googleapis.com",
    }
    script = (Path(__file__).parent / "worker" / "guard.py").read_text()
    return {"startup-script": script, "snakemake-tpu": json.dumps(orders)}


def valid_seconds(settings: ExecutorSettings) -> int:
    """Return after how long a queued request expires, since its controller may have ended."""
    seconds = settings.queue_timeout or QUEUE_SECONDS
    if settings.end:
        seconds = min(seconds, int(settings.end_time() - time.time()))
    return max(1, seconds)
