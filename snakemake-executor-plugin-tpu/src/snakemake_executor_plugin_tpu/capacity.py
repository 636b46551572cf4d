"""Getting a pod from the API: asking, waiting for capacity, trying the next zone, and giving up in words."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .cloud import PodState, TpuCloud
from .errors import CloudError, DeletedByUser, is_refused, short
from .google import gx

REMIND_SECONDS = 3600.0


def clock(after: float = 0.0) -> str:
    """Return the time of day so many seconds from now."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(time.time() + after))


@dataclass
class Capacity:
    """Waits for one pod. `zones` are tried in turn; a request that stays queued in one is withdrawn after a while."""

    cloud: TpuCloud
    zones: list[str]
    say: Callable[[str], None]
    create: bool = False
    may_delete: bool = False
    """Whether a lost pod that this plugin did not create may be deleted (tpu-adopt: delete-allowed)."""
    timeout: float = 0.0
    zone_seconds: float = 600.0
    requested: bool = field(default=False, init=False)
    """Whether this call has asked for a pod that has not come yet."""

    def __post_init__(self) -> None:
        """Choose pauses: an emulated API is fast."""
        self.pauses = (0.2, 1.0) if self.cloud.endpoint else (60.0, 1800.0)

    async def locate(self) -> PodState:
        """Return the state of the pod, in the first of the zones that has one."""
        for zone in self.zones:
            self.cloud.zone = zone
            if not (state := await self.cloud.describe()).is_absent:
                return state
        self.cloud.zone = self.zones[0]
        return state

    async def wait(self, had: bool = False) -> PodState:
        """Return the state of the pod once it is ready; create it, or replace a lost one, where that is allowed.

        `had` tells that it was up in this call: one that somebody has deleted since is not created again.
        Raises CloudError where the API or the profile refuses, or after `timeout` seconds.
        """
        self.begin = self.asked = self.told_at = time.monotonic()
        self.since, self.told, self.operation = clock(), "", None
        pause, most = self.cloud.poll_seconds
        retry, failure = 0.0, None
        while True:
            if self.operation is not None and await self.cloud.is_done(self.operation):
                failure = self.cloud.failure_of(self.operation)
                self.operation, had = None, failure is None
            state = await self.cloud.describe()
            if state.is_ready:
                self.requested = False
                return state
            self._tell(state)
            self._check_ended(state, had)
            if failure or state.is_lost or (state.is_absent and self.operation is None):
                self._check_leave(state)
                if self.requested:
                    error = failure or gx.from_grpc_status(state.error_code or 14, state.error or str(state))
                    retry = await self._pause(error, retry)
                if state.is_lost:
                    await self.cloud.delete(lambda state: state.is_lost)
                    self._next_zone(state)
                failure = await self._ask()
                had, pause = False, self.cloud.poll_seconds[0]
            elif self.requested and len(self.zones) > 1 and time.monotonic() - self.asked > self.zone_seconds:
                self.say(
                    f"TPU pod {self.cloud.name}: no capacity in {self.cloud.zone} so far; trying the next zone"
                )
                await self.withdraw()
                self._next_zone(state)
                failure = await self._ask()
                had = False
            if self.timeout and time.monotonic() - self.begin > self.timeout:
                await self.withdraw()
                raise CloudError(
                    f"TPU pod {self.cloud.name} was not ready after {self.timeout:.0f} s ({state}): zone "
                    f"{self.cloud.zone} has no capacity now. Raise tpu-queue-timeout to wait longer."
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, most)

    async def withdraw(self) -> None:
        """Delete a request of this call that has not brought a pod yet."""
        if self.requested:
            self.requested = False
            left = await self.cloud.delete(lambda state: not state.is_ready)
            if left.is_absent:
                self.say(
                    f"TPU pod {self.cloud.name}: the request was withdrawn, nothing of it costs anything"
                )

    async def _ask(self) -> Exception | None:
        """Ask for the pod; return the error where asking later may help."""
        spec = self.cloud.spec
        self.say(
            f"TPU pod {self.cloud.name}: asking for {spec.provisioning} {spec.accelerator_type} in {self.cloud.zone}"
        )
        self.requested, self.asked = True, time.monotonic()
        try:
            self.operation = await self.cloud.create()
        except CloudError as error:
            cause = error.__cause__
            if not isinstance(cause, Exception) or is_refused(cause):
                self.requested = False
                raise
            return cause
        return None

    async def _pause(self, error: Exception, last: float) -> float:
        """Wait before the next request, twice as long each time; raise where another one cannot help."""
        if is_refused(error):
            self.requested = False
            raise self.cloud.refusal(error, "create")
        seconds = min(2 * last, self.pauses[1]) if last else self.pauses[0]
        spec = self.cloud.spec
        self.say(
            f"TPU pod {self.cloud.name}: no {spec.provisioning} {spec.accelerator_type} in {self.cloud.zone}, "
            f"asked for since {self.since}; next try at {clock(seconds)} ({short(error)})"
        )
        await asyncio.sleep(seconds)
        return seconds

    def _check_ended(self, state: PodState, had: bool) -> None:
        """Raise where a person has ended or stopped the pod: it is not for us to bring it back."""
        name = self.cloud.name
        if had and state.was_deleted:
            self.requested = False
            raise DeletedByUser(
                f"TPU pod {name} was deleted (by `down`, gcloud, the console, or its own idle or end rule): its jobs "
                "end here. The next call of Snakemake creates it again."
            )
        if state.node == "STOPPED":
            raise CloudError(
                f"TPU pod {name} is stopped: start it by `gcloud compute tpus tpu-vm start {name} "
                f"--zone={self.cloud.zone}`, or delete it by `python -m snakemake_executor_plugin_tpu down`."
            )

    def _check_leave(self, state: PodState) -> None:
        """Raise CloudError unless creating, and deleting what is there, is allowed."""
        name = self.cloud.name
        if not self.create:
            what = "does not exist" if state.is_absent else f"is gone ({state})"
            raise CloudError(
                f"TPU pod {name} {what}, and the profile does not allow creating it: "
                "set tpu-create: true, or run `python -m snakemake_executor_plugin_tpu up`."
            )
        if state.is_lost and not (state.created_here or self.may_delete):
            raise CloudError(
                f"TPU pod {name} is gone ({state}), and it was not created by this plugin: delete it by "
                "`python -m snakemake_executor_plugin_tpu down`, or set tpu-adopt: delete-allowed."
            )

    def _next_zone(self, state: PodState) -> None:
        # What Google has taken back is asked for in the same zone first.
        if state.queued != "SUSPENDED":
            place = self.zones.index(self.cloud.zone)
            self.cloud.zone = self.zones[(place + 1) % len(self.zones)]

    def _tell(self, state: PodState) -> None:
        now = time.monotonic()
        if str(state) != self.told:
            self.say(f"TPU pod {self.cloud.name}: {state}")
        elif now - self.told_at > REMIND_SECONDS:
            self.say(
                f"TPU pod {self.cloud.name}: {state}, in {self.cloud.zone}, asked for since {self.since}"
            )
        else:
            return
        self.told, self.told_at = str(state), now
