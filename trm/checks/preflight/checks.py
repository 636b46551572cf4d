"""The checks, in their order."""

from __future__ import annotations

from trm.checks.preflight import machine, work
from trm.checks.preflight.report import Check

CHECKS: dict[str, Check] = {
    "versions": machine.versions,
    "devices": machine.devices,
    "arithmetic": machine.arithmetic,
    "memory": machine.memory,
    "disk": machine.disk,
    "bucket": machine.bucket,
    "clock": machine.clock,
    "shards": work.shards,
    "gradients": work.gradients,
    "training": work.training,
    "resume": work.resume,
}
