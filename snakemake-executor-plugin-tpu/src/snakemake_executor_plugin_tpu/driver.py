"""The event loop that drives the pod, in its own thread."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .google import THREADS

JOIN_SECONDS = 10.0


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended. Not `suppress(CancelledError)`: the caller may be cancelled now."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Driver:
    """Runs coroutines for the main thread. Ctrl-C may interrupt any call, so every call may be repeated."""

    def __init__(self, name: str):
        self.loop = asyncio.new_event_loop()
        # Calls of the bucket block as long as it is away, and must not keep each other waiting.
        self.loop.set_default_executor(ThreadPoolExecutor(THREADS, name))
        # Every task's error reaches a job or a caller; asyncio would print those of abandoned waits as well.
        self.loop.set_exception_handler(lambda loop, context: None)
        self.ended = False
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True, name=name)
        self.thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Run a coroutine and return its result; TimeoutError after `timeout` seconds, while it keeps running."""
        return self.start(coroutine).result(timeout)

    def end(self) -> None:
        """Stop and close the loop. A stuck loop is left behind: its daemon thread does not keep Python alive."""
        # First, as later calls would wait for a loop that no longer runs.
        self.ended = True
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(JOIN_SECONDS)
            if not self.thread.is_alive():
                self.loop.close()
