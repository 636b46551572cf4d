"""Tells people what they want to know without watching: failure, out of memory, preemption, finish."""

import asyncio
import json
import os
import re
import shlex
import urllib.request
from collections.abc import Callable

OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|OutOfMemoryError|MemoryError|Cannot allocate memory", re.IGNORECASE
)


def ran_out_of_memory(code: int, lines: list[str]) -> bool:
    """Tell whether a job died for lack of memory: the kernel's SIGKILL, or the device's own words."""
    return code == 137 or any(OUT_OF_MEMORY.search(line) for line in lines)


class Notifier:
    """Runs the user's command and calls the user's webhook; neither can disturb the workflow."""

    pauses = (1.0, 5.0)

    def __init__(self, command: str | None, webhook: str | None, say: Callable[[str], None]):
        self.command, self.webhook, self.say = command, webhook, say
        self._running: set[asyncio.Task[None]] = set()

    def send(self, event: str, message: str, job: str = "") -> None:
        """Send word of an event, in the background."""
        if self.command or self.webhook:
            task = asyncio.ensure_future(self._send({"event": event, "job": job, "message": message}))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def drain(self) -> None:
        """Wait for what is being sent."""
        while self._running:
            await asyncio.wait(list(self._running), timeout=30)

    async def _send(self, event: dict[str, str]) -> None:
        if self.command:
            try:
                await asyncio.wait_for(self._run(event), 30)
            except Exception as error:
                self.say(f"The notification command did not work: {error}")
        if self.webhook:
            for pause in (*self.pauses, None):
                try:
                    await asyncio.to_thread(self._post, event)
                    break
                except Exception as error:
                    if pause is None:
                        # The address may hold a token: it is not repeated here.
                        self.say(f"The notification webhook did not answer: {type(error).__name__}")
                    else:
                        await asyncio.sleep(pause)

    async def _run(self, event: dict[str, str]) -> None:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(self.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TPU_EVENT": event["event"], "TPU_JOB": event["job"]},
        )
        try:
            _, errors = await process.communicate(json.dumps(event).encode())
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise RuntimeError(
                f"exit code {process.returncode}: {errors.decode(errors='replace').strip()[-200:]}"
            )

    def _post(self, event: dict[str, str]) -> None:
        assert self.webhook
        body = json.dumps({**event, "text": f"{event['event']}: {event['job']} {event['message']}"}).encode()
        request = urllib.request.Request(self.webhook, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10):
            pass
