"""One of two workers, the second of which has a fault.

RANK=0 WORLD_SIZE=2 ... python -m tests.training.worker FAULT DATASET FOLDER
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch

from tests.training.conftest import after, config, trainer
from trm.errors import UserError
from trm.training import loop


def main(fault: str, data: str, root: str) -> int:
    """Train; the exit code."""
    torch.set_num_threads(1)
    loop.COMPARE_EVERY = 2
    found = trainer(config(), Path(data), Path(root), log_every=2)

    def act() -> None:
        if fault == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        found.state.params[3] += 1e-6

    # set now, so that a slow start of a process is no fault
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=3 if fault == "hang" else 60))
    if found.backend.rank:
        after(found, 2, act)
    try:
        return found.run()
    except UserError as error:
        print("UserError:", error, flush=True)
        return 2
    finally:  # as `trm train` does: gloo's threads must not outlive the work
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
