"""Holds the pod for one controller: two would put their jobs onto the same hosts without knowing of each other.

The request says who asks, and for how many seconds of silence they may keep the pod. The answer is {"owner": null}
once it is theirs, which lasts for as long as the connection does; or whose it is, and for how many seconds that
controller has been silent.
"""

import fcntl
import json
import os
import select
import sys
import time
from typing import Any

from .agent import MAGIC, read_line, send
from .tasks import note_activity, owner_of_pod, owner_path, root


def hold(owner: dict[str, Any]) -> None:
    """Hold the pod until the controller goes away, or tell who has it."""
    # Not to be truncated before the lock is ours.
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


def main() -> int:
    """Serve one controller."""
    os.umask(0o077)
    owner = json.loads(read_line())
    (root() / "tasks").mkdir(exist_ok=True)
    try:
        os.write(1, MAGIC)
        hold(owner)
    except BrokenPipeError:
        os._exit(0)
    except Exception as error:
        send({"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
