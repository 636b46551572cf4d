"""The record of a job's last launch in Cloud Storage, beside its outputs: it outlives the host.

It is written when the launch starts and, before the task counts as ended, when it ends, with the end of its log.
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .bucket import Bucket
from .tasks import ACTIVE

START_PAUSES = (0.5, 2.0)
END_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
TAIL_BYTES = 4096


class Record:
    """Writes what is known about one launch; `place` has the addresses of the record and of the pod's last words."""

    def __init__(self, place: dict[str, Any] | None, about: dict[str, Any], say: Callable[[str], None]):
        self.place, self.about, self.say = place, about, say

    def start(self) -> None:
        """Note that the launch starts, by the bucket's clock, and tell the guard where to leave its last words."""
        if self.place:
            with contextlib.suppress(OSError):
                _name_last_words(self.place)
        if self.place and (found := self._write(START_PAUSES, state="started")):
            self.about = {**self.about, "since": found["updated"]}

    def end(self, log: Path, exit: dict[str, Any]) -> None:
        if self.place:
            with open(log, "rb") as file:
                file.seek(max(0, log.stat().st_size - TAIL_BYTES))
                tail = file.read().decode(errors="replace")
            self._write(END_PAUSES, state="ended", **exit, tail=tail)

    def _write(self, pauses: tuple[float, ...], **what: Any) -> dict[str, Any]:
        assert self.place
        folder, _, name = self.place["url"].rpartition("/")
        text = json.dumps({**self.about, **what}).encode()
        try:
            return Bucket(folder, self.place["api"], pauses).put(name, text)
        except (OSError, RuntimeError, ValueError) as error:
            self.say(f"the record of this launch could not be written ({error})")
            return {}


def _name_last_words(place: dict[str, Any]) -> None:
    """Tell this host's guard, if it has one, where it writes why it deletes the pod."""
    folder, _, name = place["last_words"].rpartition("/")
    bucket = Bucket(folder, place["api"])
    (ACTIVE / "last-words").write_text(bucket.api + bucket.upload_path(name))
