"""Holds the pod for one controller: two would start their jobs on the same hosts without knowing of each other.

The request describes the controller and after how many silent seconds it loses the pod. The answer has no owner if it
has the pod now, as long as the connection lasts, or else the owner and for how many seconds it has been silent.
"""

import fcntl
import json
import os
import select
import sys
import time
from typing import Any

from .agent import send, serve
from .tasks import note_activity, owner_of_pod, owner_path

LOOK_SECONDS = 5.0
BUSY = b"b"  # in the heartbeat of a controller with jobs for the pod; one without lets it become idle
BUSY_SECONDS = 30.0


def hold(owner: dict[str, Any]) -> None:
    """Hold the pod until the controller goes away, or answer who has it."""
    # Not truncated before the lock is held.
    with open(owner_path(), "a+") as file:
        deadline = time.monotonic() + LOOK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                other = owner_of_pod()  # None: somebody was only looking who has it, or is just taking it
                if other or time.monotonic() > deadline:
                    send({"answer": {"owner": other or {"who": "somebody", "silent": 0.0}}})
                    return
                time.sleep(0.05)
        file.truncate(0)
        file.write(json.dumps(owner))
        file.flush()
        send({"answer": {"owner": None}})
        heard = busy = time.monotonic()
        patience = float(owner["patience"])
        while (left := heard + patience - time.monotonic()) > 0:
            if time.monotonic() - busy < BUSY_SECONDS:
                note_activity()
            if select.select([0], [], [], min(left, 1.0))[0]:
                if not (data := os.read(0, 4096)):
                    return
                heard = time.monotonic()
                busy = heard if BUSY in data else busy
                os.utime(owner_path())


if __name__ == "__main__":
    sys.exit(serve(hold))
