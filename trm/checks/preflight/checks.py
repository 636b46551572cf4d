"""All checks, in the order in which they run."""

from trm.checks.preflight import machine, work
from trm.checks.preflight.report import Check

CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        *(machine.versions, machine.devices, machine.arithmetic, machine.memory, machine.disk),
        *(machine.bucket, machine.clock, work.shards, work.gradients, work.training, work.resume),
    )
}
