"""One controller at a time: it holds the pod by a connection to the first host."""

import asyncio
import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any

from .driver import end
from .errors import HostKeyError, PodError, Unreachable
from .pod import BEAT_SECONDS, Worker
from .ssh import Connection, unreachable
from .worker.claim import BUSY

# A controller sends a heartbeat every BEAT_SECONDS. A silent one (a closed laptop) loses the pod after SILENCE_SECONDS,
# and after DOUBT_SECONDS others wait for that instead of giving up.
SILENCE_SECONDS = 60.0
DOUBT_SECONDS = 2.5 * BEAT_SECONDS
RETRY_SECONDS = 1.0


def describe_controller() -> dict[str, Any]:
    who = f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}"
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    process = {"pid": os.getpid(), "folder": os.getcwd(), "since": since}
    return {"id": uuid.uuid4().hex, "who": who, **process, "patience": SILENCE_SECONDS}


def name_of(owner: dict[str, Any]) -> str:
    """Return a controller's name for people."""
    if not {"pid", "folder", "since"} <= owner.keys():  # of another version, perhaps
        return str(owner.get("who", "somebody"))
    return f"{owner['who']} (process {owner['pid']} in {owner['folder']}, since {owner['since']})"


class Claim:
    """Keeps other controllers off the pod while this one is connected to it."""

    def __init__(
        self,
        say: Callable[[str], None],
        owner: dict[str, Any] | None = None,
        is_busy: Callable[[], bool] = lambda: True,
    ):
        """`is_busy`: whether this controller has jobs for the pod, which keep the pod alive."""
        self.say, self.owner, self.is_busy = say, owner or describe_controller(), is_busy
        self.lost: PodError | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def take(self, worker: Worker) -> None:
        """Claim the pod through its first host; PodError names a controller that has it."""
        await self.drop()
        self.lost = None
        self._keeper = asyncio.ensure_future(self._keep(worker, await self._open(worker)))

    async def drop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await end(keeper)

    async def _open(self, worker: Worker) -> Connection:
        reported = False
        while (answer := await self._ask(worker))[0] is None:
            owner = answer[1]
            if owner.get("id") != self.owner["id"]:
                if owner.get("silent", 0.0) < DOUBT_SECONDS:
                    raise PodError(
                        f"The pod is in use by the Snakemake of {name_of(owner)}: its jobs and yours would get the "
                        "same hosts. Wait for its end, stop it, or use a pod with another tpu-name."
                    )
                if not reported:
                    self.say(f"The pod was in use by {name_of(owner)}, which is silent: it will be free soon")
                reported = True
            await asyncio.sleep(RETRY_SECONDS)
        return answer[0]

    async def _ask(self, worker: Worker) -> tuple[Connection | None, dict[str, Any]]:
        """Return the connection that holds the pod, or None and the owner's description."""
        connection = await worker.open(self.owner, "claim")
        held = False
        try:
            async for frame, _ in connection.frames():
                if "error" in frame:
                    raise Unreachable(f"{worker.host}: {frame['error']}")
                owner = frame["answer"]["owner"]
                if owner is None:
                    held = True
                    return connection, {}
                return None, owner
        finally:
            if not held:
                await connection.close()
        raise unreachable(worker.host, await connection.reason())

    async def _keep(self, worker: Worker, connection: Connection) -> None:
        """Hold the pod; after a dropped connection claim it again, unless another controller was faster."""
        while True:
            beat = asyncio.ensure_future(worker.beat(connection, lambda: BUSY if self.is_busy() else b""))
            try:
                async for _ in connection.frames():
                    pass
            finally:
                await end(beat)
                await connection.close()
            while True:
                await asyncio.sleep(RETRY_SECONDS)
                try:
                    # Another host key: the address belongs to a new incarnation, which is claimed once it is up.
                    with contextlib.suppress(Unreachable, HostKeyError):
                        connection = await self._open(worker)
                        break
                except PodError as error:
                    self.lost = error
                    return
