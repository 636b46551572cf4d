"""What the hosts say about the rules by which a pod deletes itself, and what a pod costs, in words for people."""

import time
from collections.abc import Iterable
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

from .allocation import slice_of
from .cloud import LOST_NODE, LOST_QUEUED, TpuCloud
from .errors import COMMAND, DOWN, CloudError
from .settings import ExecutorSettings


def cost(settings: ExecutorSettings, accelerator_type: str) -> str:
    try:
        chips = slice_of(accelerator_type or settings.accelerator_type).chips
    except WorkflowError:  # a type that this version does not know
        return "costs money"
    if (price := settings.price(accelerator_type)) is None:
        return f"costs money ({chips} chips; with tpu-prices this says how much)"
    return f"costs {chips * price:,.2f} USD an hour"


def guard_trouble(guards: Iterable[dict[str, Any]]) -> str:
    """Return why a pod cannot delete itself and what to do; empty if all is well or it has no guard."""
    error = next((guard["error"] for guard in guards if guard.get("error")), "")
    return f"It cannot delete itself: {error}; or delete it yourself by {DOWN}." if error else ""


def guard_in_words(guard: dict[str, Any] | None, idle: float = 0.0) -> str:
    """Return when a pod deletes itself, by the heartbeat of one of its hosts."""
    if guard is None or not (guard["limit"] or guard["end"]):
        return f"it was created without tpu-idle-delete and tpu-end, or not by this plugin: only {DOWN} deletes it"
    rules = []
    if guard.get("limit"):
        rules.append(f"after {guard['limit'] / 60:g} idle minutes (idle now for {idle / 60:.0f})")
    if guard.get("end"):
        rules.append(f"at {time.strftime('%F %H:%M UTC', time.gmtime(guard['end']))}")
    now = f"; it should be gone, since {guard['deleting']}" if guard.get("deleting") else ""
    return f"the pod deletes itself {' and '.join(rules)}{now}"


def may_exist(settings: ExecutorSettings, why: str = "Google was not asked to the end") -> str:
    """Return the last line of a call that does not know what is left."""
    return (
        f"TPU pod {settings.name} may still exist and cost money ({why}): `{COMMAND} status` shows it, "
        f"{DOWN} deletes it"
    )


async def remaining(settings: ExecutorSettings, cloud: TpuCloud, used: bool) -> str:
    """Return in one line what exists, or is requested, at the end of a call and costs money; empty if nothing does."""
    try:
        state = await cloud.describe(attempts=1)
    except CloudError as error:
        return may_exist(settings, str(error)) if used else ""
    requested = state.node == "ABSENT" and state.queued not in ("ABSENT", "DELETING", *LOST_QUEUED)
    if not requested and state.node in ("ABSENT", "DELETING", *LOST_NODE):
        return ""
    rules = [f"after {settings.idle_delete:g} idle minutes"] if settings.idle_delete else []
    rules += [f"on {settings.end}"] if settings.end else []
    itself = f"it deletes itself {' or '.join(rules)}"
    ends = itself if rules and state.created_here else f"only {DOWN} deletes it"
    kind = state.accelerator_type or settings.accelerator_type
    exists = "is still requested, and once it comes it" if requested else "still exists and"
    where = state.queued if requested else state.node
    return f"TPU pod {settings.name} ({kind}, {where}) {exists} {cost(settings, kind)}; {ends}"
