"""What the guards of the hosts (worker/guard.py) report, in words."""

import time
from collections.abc import Iterable
from typing import Any

DOWN = "`python -m snakemake_executor_plugin_tpu down`"


def guard_trouble(statuses: Iterable[dict[str, Any]]) -> str:
    """Return why a pod cannot delete itself and what to do; empty if all is well or it has no guard."""
    guards = [status["guard"] for status in statuses if status.get("guard")]
    error = next((guard["error"] for guard in guards if guard["error"]), "")
    return f"The pod cannot delete itself: {error}; or delete it yourself by {DOWN}." if error else ""


def guard_in_words(guard: dict[str, Any] | None) -> str:
    """Return when the pod deletes itself."""
    if guard is None:
        return f"it was created without tpu-idle-delete and tpu-end, or not by this plugin: only {DOWN} deletes it"
    rules = []
    if guard["limit"]:
        rules.append(f"after {guard['limit'] / 60:g} idle minutes (idle now for {guard['idle'] / 60:.0f})")
    if guard["end"]:
        rules.append(f"at {time.strftime('%F %H:%M UTC', time.gmtime(guard['end']))}")
    now = f"; it should be gone, since {guard['deleting']}" if guard["deleting"] else ""
    return f"the pod deletes itself {' and '.join(rules)}{now}"
