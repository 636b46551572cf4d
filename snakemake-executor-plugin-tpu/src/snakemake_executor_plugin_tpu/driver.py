"""The event loop on which the pod is driven, in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

JOIN_SECONDS = 10.0


class Driver:
    """Runs coroutines for the main thread, which Ctrl-C may interrupt at any moment: all calls may be repeated."""

    def __init__(self, name: str):
        self.loop = asyncio.new_event_loop()
        self.ended = False
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True, name=name)
        self.thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine and return its future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Run a coroutine and return its result; TimeoutError after `timeout` seconds, and it runs on."""
        return self.start(coroutine).result(timeout)

    def at_work(self) -> str:
        """Say which coroutines have not ended, and in which line each waits."""
        places = []
        for task in asyncio.all_tasks(self.loop):
            coroutine: Any = task.get_coro()
            place, name = "", coroutine.__qualname__
            while (frame := getattr(coroutine, "cr_frame", None)) is not None:
                place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                coroutine = coroutine.cr_await
            places.append(f"{name} in {place}")
        return ", ".join(sorted(places))

    def end(self) -> None:
        """Stop and close the loop. A loop that is stuck is left behind: its thread does not keep Python from ending."""
        # First of all: a call from here on would wait for a loop that does not run any more.
        self.ended = True
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(JOIN_SECONDS)
            if not self.thread.is_alive():
                self.loop.close()
