"""A headless Chromium that tests drive by its DevTools protocol, over a pipe: no port, no further package."""

import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

PATH = next(
    (path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None
)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
FLAGS += ("--disable-component-update", "--disable-sync", "--no-first-run")
KEYS = {"Tab": 9, "Enter": 13, "Backspace": 8, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
"""Codes of the keys that are no characters."""


class Browser:
    """One page of a browser of its own.

    `errors`: uncaught exceptions and errors of the console; `requests`: addresses asked for.
    """

    def __init__(self, profile: Path):
        to_browser, ours_out = os.pipe()
        ours_in, from_browser = os.pipe()

        def place() -> None:  # the protocol's file descriptors are 3 and 4
            os.dup2(os.dup(to_browser), 100)
            os.dup2(os.dup(from_browser), 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        self._process = subprocess.Popen(
            [str(PATH), *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            close_fds=False,
            preexec_fn=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._in, self._out = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self._numbers, self._session = itertools.count(1), ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        pages = self("Target.getTargets")["targetInfos"]
        target = next(item["targetId"] for item in pages if item["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params: Any) -> Any:
        """Result of a command of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (char := self._in.read(1)) != b"\0":
            assert char, "the browser has gone"
            text += char
        message: dict[str, Any] = json.loads(text)
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(str(params["entry"]))
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        return message

    def open(self, page: Path, width: int = 1000, dark: bool = False) -> None:
        """Load a file at a width in CSS pixels."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url=page.as_uri())
        self.run(
            "new Promise((r) => document.readyState === 'complete' ? r() : addEventListener('load', () => r()))"
        )

    def run(self, script: str) -> Any:
        """Value of an expression, once it is there if it is a promise."""
        found = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        self.run(
            f"new Promise((r) => {{ const t = setInterval(() => ({condition}) && (clearInterval(t), r()), 20); }})"
        )

    def press(self, *names: str) -> None:
        """Press keys by name; characters are their own names."""
        for name in names:
            text = {"text": name} if len(name) == 1 else {"text": "\r"} if name == "Enter" else {}
            code = KEYS.get(name, 0)
            self("Input.dispatchKeyEvent", type="keyDown", key=name, windowsVirtualKeyCode=code, **text)
            self("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code)

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()
