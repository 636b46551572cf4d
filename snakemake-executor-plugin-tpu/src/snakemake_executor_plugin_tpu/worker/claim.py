"""Holds the pod for one controller: two would start their jobs on the same hosts without knowing of each other.

The request describes the controller and says after how many seconds of silence it loses the pod. The answer is
{"owner": null} if it has the pod now, as long as the connection lasts, or else the owner and for how many seconds the
owner has been silent.
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


def hold(owner: dict[str, Any]) -> None:
    """Hold the pod until the controller goes away, or answer who has it."""
    # Not truncated before the lock is held.
    with open(owner_path(), "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            send({"answer": {"owner": owner_of_pod() or {"who": "somebody", "silent": 0.0}}})
            return
        file.truncate(0)
        file.write(json.dumps(owner))
        file.flush()
        send({"answer": {"owner": None}})
        heard, patience = time.monotonic(), float(owner["patience"])
        while (left := heard + patience - time.monotonic()) > 0:
            note_activity()
            if select.select([0], [], [], min(left, 1.0))[0]:
                if not os.read(0, 4096):
                    return
                heard = time.monotonic()
                os.utime(owner_path())


if __name__ == "__main__":
    sys.exit(serve(hold))
