"""Getting a pod from the API: request it, wait for capacity, give up with an explanation."""

import asyncio
import time
from collections.abc import Callable

from .cloud import LOST_NODE, REMIND_SECONDS, PodState, TpuCloud
from .errors import COMMAND, DOWN, CloudError, DeletedByUser, is_new_account, is_quota, is_refused, short
from .google import gx


def clock(after: float = 0.0) -> str:
    """Return the time of day so many seconds from now."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(time.time() + after))


ACCOUNT_SECONDS = 300.0  # in which a new service account becomes known everywhere


class Capacity:
    """Waits for one pod."""

    def __init__(
        self,
        cloud: TpuCloud,
        say: Callable[[str], None],
        metadata: Callable[[], dict[str, str]],
        last_words: Callable[[str], str],
    ) -> None:
        """Take what makes the metadata of a node, and what reads from the bucket why a node deleted itself."""
        self.cloud, self.settings, self.metadata, self.last_words = (
            cloud,
            cloud.settings,
            metadata,
            last_words,
        )
        self.say = lambda sentence: say(f"TPU pod {cloud.name}: {sentence}")
        self.granted = False
        """Whether there has been a pod: then a text about quota means that its remains still count."""
        self.node = ""
        """How the hosts call the last node that was seen."""
        self.existed = False
        """Whether the pod was up in this call and nothing has been deleted or requested since."""
        self.requested = False
        """Whether this call has requested a pod that has not come yet."""

    async def wait(self, existed: bool = False) -> PodState:
        """Return the state of the pod once it is ready; create it or replace a lost one, if the profile allows it.

        `existed`: the pod was up in this call, so it is not created again if somebody has deleted it since.
        Raises CloudError if the API or the profile refuses.
        """
        self.existed = existed
        self.granted = self.granted or existed
        self.reported_at = self.began = time.monotonic()
        self.since, self.reported, self.operation = clock(), "", None
        pause, most = self.cloud.poll_seconds
        retry, failure = 0.0, None
        while True:
            if self.operation is not None and await self.cloud.is_done(self.operation):
                failure = self.cloud.failure_of(self.operation)
                self.operation, self.existed = None, failure is None
            state = await self.cloud.describe()
            self.node = str(state.orders.get("node", self.node))
            was_up = state.is_ready or state.node in LOST_NODE or state.queued == "SUSPENDED"
            self.granted = self.granted or was_up
            if state.is_ready:
                self.requested = False
                return state
            self._tell(state)
            self.existed = self.existed and not await self._ended_itself(state)
            self._check_ended(state, self.existed)
            if failure or state.is_lost or (state.is_absent and self.operation is None):
                self._check_permitted(state)
                if self.requested:
                    error = failure or gx.from_grpc_status(state.error_code or 14, state.error or str(state))
                    retry = await self._pause(error, retry)
                self.existed = False
                if state.is_lost:
                    await self.cloud.delete(lambda state: state.is_lost)
                failure = await self._ask()
                pause = self.cloud.poll_seconds[0]
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, most)

    async def withdraw(self) -> None:
        """Delete the request of this call if it has not brought a pod yet."""
        if self.requested:
            self.requested = False
            left = await self.cloud.delete(lambda state: not state.is_ready and self._is_ours(state))
            if left.is_absent:
                self.say("the request was withdrawn and costs nothing")

    async def _ask(self) -> Exception | None:
        """Request the pod; return the error if another request may succeed later."""
        settings = self.settings
        self.say(f"requesting {settings.provisioning} {settings.accelerator_type} in {self.settings.zone}")
        self.requested = True
        try:
            self.operation = await self.cloud.create(await asyncio.to_thread(self.metadata))
            if self.operation is None:
                self.requested = self._is_ours(await self.cloud.describe())
        except CloudError as error:
            cause = error.__cause__
            if not isinstance(cause, Exception) or self._is_final(cause):
                self.requested = False
                raise
            return cause
        return None

    def _is_ours(self, state: PodState) -> bool:
        """Whether a request, if there is one, was made by this call and not by another one at the same time."""
        return state.is_absent or state.call in ("", self.cloud.call)

    def _is_final(self, error: Exception) -> bool:
        if is_new_account(error) and time.monotonic() - self.began < ACCOUNT_SECONDS:
            return False
        ended = "limit: 0" in str(error).lower()  # the grant, for good
        return is_refused(error) and (ended or not (self.granted and is_quota(error)))

    async def _pause(self, error: Exception, last: float) -> float:
        """Wait before the next request, twice as long each time; raise if another one cannot succeed."""
        if self._is_final(error):
            self.requested = False
            raise self.cloud.refusal(error, "create")
        pauses = self.cloud.pauses
        seconds = min(2 * last, pauses[1]) if last else pauses[0]
        lacks = f"no {self.settings.provisioning} {self.settings.accelerator_type} in {self.settings.zone}"
        if is_new_account(error):
            lacks = (
                f"Google does not know {self.settings.service_account} yet: a new account takes some minutes"
            )
        self.say(f"{lacks}, requested since {self.since}; next try at {clock(seconds)} ({short(error)})")
        await asyncio.sleep(seconds)
        return seconds

    async def _ended_itself(self, state: PodState) -> bool:
        """Whether the pod's own idle rule has ended it: its guard has left word in the bucket."""
        if not state.was_deleted:
            return False
        try:
            why = await asyncio.to_thread(self.last_words, self.node)
        except (OSError, RuntimeError, ValueError) as error:  # offline, refused, forged
            self.say(f"why it is gone cannot be read from the bucket ({error})")
            return False
        if why:
            self.say(f"it deleted itself, since {why}; there is work left, so it is created again")
        return bool(why)

    def _check_ended(self, state: PodState, existed: bool) -> None:
        """Raise if a person has deleted or stopped the pod: the plugin must not bring it back."""
        name = self.cloud.name
        if existed and state.was_deleted:
            self.requested = False
            raise DeletedByUser(
                f"TPU pod {name} was deleted (by `down`, gcloud or the console), which ends its jobs. "
                "The next call of Snakemake creates it again."
            )
        if state.node == "STOPPED":
            raise CloudError(
                f"TPU pod {name} is stopped: start it by `gcloud compute tpus tpu-vm start {name} "
                f"--zone={self.settings.zone}`, or delete it by {DOWN}."
            )

    def _check_permitted(self, state: PodState) -> None:
        """Raise CloudError unless the profile allows creating the pod and deleting what is left of a lost one."""
        name = self.cloud.name
        if not self.settings.create:
            what = "does not exist" if state.is_absent else f"is gone ({state})"
            raise CloudError(
                f"TPU pod {name} {what}, and the profile does not allow creating it: set tpu-create: true, or run "
                f"`{COMMAND} up`."
            )
        if state.is_lost and not state.created_here:
            raise CloudError(
                f"TPU pod {name} is gone ({state}), and it was not created by this plugin: delete it by {DOWN}."
            )

    def _tell(self, state: PodState) -> None:
        now = time.monotonic()
        if str(state) != self.reported:
            self.say(str(state))
        elif now - self.reported_at > REMIND_SECONDS:
            self.say(f"{state}, in {self.settings.zone}, requested since {self.since}")
        else:
            return
        self.reported, self.reported_at = str(state), now
