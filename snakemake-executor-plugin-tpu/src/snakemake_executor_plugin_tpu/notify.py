"""Notifications: failure, out of memory, preemption, finish."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import urllib.request
from collections.abc import Callable

OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|OutOfMemoryError|MemoryError|Cannot allocate memory", re.IGNORECASE
)


def ran_out_of_memory(code: int, lines: list[str]) -> bool:
    """Whether a job died for lack of memory: killed by the kernel, or an error of the device."""
    return code == 137 or any(OUT_OF_MEMORY.search(line) for line in lines)


class Notifier:
    """Runs the user's command and calls the user's webhook; neither can disturb the workflow."""

    pauses = (1.0, 5.0)

    def __init__(self, command: str | None, webhook: str | None, say: Callable[[str], None]):
        self.command, self.webhook, self.say = command, webhook, say
        self._running: set[asyncio.Task[None]] = set()

    def send(self, event: str, message: str, job: str = "") -> None:
        """Send an event in the background."""
        if self.command or self.webhook:
            task = asyncio.ensure_future(self._send({"event": event, "job": job, "message": message}))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def drain(self) -> None:
        """Wait for the events that are being sent."""
        while self._running:
            await asyncio.wait(list(self._running), timeout=30)

    async def _send(self, event: dict[str, str]) -> None:
        if self.command:
            try:
                await asyncio.to_thread(self._run, self.command, event)
            except Exception as error:
                self.say(f"The notification command failed: {error}")
        for pause in (*self.pauses, None) if self.webhook else ():
            try:
                await asyncio.to_thread(self._post, event)
                break
            except Exception as error:
                if pause is None:
                    # The address may contain a token and is not repeated here.
                    self.say(f"The notification webhook did not answer: {type(error).__name__}")
                else:
                    await asyncio.sleep(pause)

    def _run(self, command: str, event: dict[str, str]) -> None:
        done = subprocess.run(
            shlex.split(command),
            input=json.dumps(event).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=30,
            env={**os.environ, "TPU_EVENT": event["event"], "TPU_JOB": event["job"]},
        )
        if done.returncode:
            errors = done.stderr.decode(errors="replace").strip()[-200:]
            raise RuntimeError(f"exit code {done.returncode}: {errors}")

    def _post(self, event: dict[str, str]) -> None:
        assert self.webhook
        body = json.dumps({**event, "text": f"{event['event']}: {event['job']} {event['message']}"}).encode()
        request = urllib.request.Request(self.webhook, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10):
            pass
