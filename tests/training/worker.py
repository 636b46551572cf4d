"""One of several workers, and what may go wrong in it.

RANK=0 WORLD_SIZE=2 ... python -m tests.training.worker TASK RUN_AS_JSON DATASET FOLDER
"""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch

from tests.training.conftest import first_losses, trainer
from trm.errors import UserError
from trm.study.schema import RunConfig
from trm.training import loop


def run(task: str, config: RunConfig, data: Path, root: Path, rank: int) -> int:
    """Train; the exit code."""
    found = trainer(config, data, root, log_every=2)
    if task == "perturb":
        loop.COMPARE_EVERY = 2
    if task == "hang":  # set now, so that a slow start of a process is no fault
        torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=3))
    original = found.program

    def program(batch, recursion):
        original(batch, recursion)
        if rank != 1 or found.record.done != 2:
            return
        if task == "perturb":
            found.state.params[3] += 1e-6
        if task == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)

    found.program = program
    code = found.run()
    if task == "train":
        found.compare_workers()
    found.backend.close()
    return code


def main() -> int:
    torch.set_num_threads(1)
    task, text, data, root = sys.argv[1:]
    config, rank = RunConfig.model_validate_json(text), int(os.environ["RANK"])
    try:
        if task != "losses":
            return run(task, config, Path(data), Path(root), rank)
        print(json.dumps(first_losses(config, Path(data), Path(root), 5)))
        return 0
    except UserError as error:
        print("UserError:", error, flush=True)
        return 2
    finally:
        sys.stdout.flush()
        if (
            torch.distributed.is_initialized()
        ):  # as `trm train` does: gloo's threads must not outlive the work
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
