"""`python -m trm train`: train one model, from its newest checkpoint if there is one.

python -m trm train --config run.json --dataset results/datasets/NAME --out results/runs/NAME --checkpoints DIR
python -m trm train --workers 2 ...        # two workers on this machine: the same up to rounding
"""

import argparse
import math
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType

REMOTE = ("dataset", "out", "checkpoints", "init_from")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trm.cli.configuration import add_options

    add_options(parser)
    parser.add_argument(
        "--dataset",
        required=True,
        help="data set folder, as from `trm data build`, or an address in a bucket",
    )
    parser.add_argument("--out", required=True, help="output folder of the run, or an address in a bucket")
    parser.add_argument(
        "--checkpoints",
        required=True,
        help="checkpoint folder, reused by later attempts, or an address in a bucket",
    )
    parser.add_argument("--backend", default="auto", help="auto, cpu, cuda or xla")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--runtime", default="{}", help="RuntimeConfig: JSON text or a path to a JSON file")
    parser.add_argument("--workers", type=int, help="processes that share each batch")
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        help="Slurm nodes of these processes: start this command on each with srun",
    )
    parser.add_argument("--log", help="also append all output to this file")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="MINUTES",
        help="time limit of the cluster job: the run stops before it with a checkpoint; a Slurm job requeues itself",
    )
    parser.add_argument("--init-from", help="folder of the finished run that training.init_from names")


def run(args: argparse.Namespace) -> int:
    """Train; 0 when finished, 143 after SIGTERM and 75 after stop_after_minutes, with a checkpoint written."""
    started = time.monotonic()
    if (args.workers or 1) > 1 and "RANK" not in os.environ:
        from trm.backends.processes import run_workers

        return run_workers(args.workers, [sys.executable, "-m", "trm", *sys.argv[1:]], args.nodes)
    from trm.cli.configuration import run_config
    from trm.study.reading import config_argument
    from trm.study.schema import RuntimeConfig

    config = run_config(args.config, args.changes)
    runtime = config_argument(RuntimeConfig, args.runtime, "--runtime")
    left = args.time_limit
    if args.time_limit:
        from trm.slurm.requeue import minutes_left, stretch_minutes

        explain = partial(_end_before_the_first_step, args.time_limit)
        signal.signal(signal.SIGTERM, explain)  # until training takes over
        left = min(left, minutes_left() or left)
        minutes = min(runtime.stop_after_minutes or math.inf, stretch_minutes(left))
        runtime = runtime.model_copy(update={"stop_after_minutes": minutes})

    from trm.backends.registry import open_backend
    from trm.backends.workers import wait_for_storage
    from trm.errors import UserError
    from trm.storage.cache import fetch
    from trm.storage.folders import output_folder
    from trm.training.checkpoints.remote import open_checkpoints
    from trm.training.interrupt import EXIT_TERMINATED, EXIT_UNFINISHED
    from trm.training.loop import Trainer
    from trm.training.setup import check_placement, prepare

    name = args.out.rstrip("/").rpartition("/")[2]
    wanted = config.placement.backend.replace("any", "auto")
    if "auto" not in (args.backend, wanted) and args.backend != wanted:
        raise UserError(
            f"--backend {args.backend}, but the run's placement.backend is {wanted}: leave one out"
        )
    wait_for_storage(args.dataset, args.out, args.checkpoints)
    backend = open_backend(wanted if args.backend == "auto" else args.backend, args.threads)
    try:
        check_placement(config, backend)
        dataset_folder = fetch(args.dataset)
        init_from = _initial_run(config.training.init_from, args)
        with (
            output_folder(args.out, last=("training.json",), upload=backend.rank == 0) as out,
            open_checkpoints(args.checkpoints, name, backend) as checkpoints,
        ):
            dataset, initial = prepare(config, dataset_folder, out, init_from, backend)
            trainer = Trainer(config, dataset, out, checkpoints, backend, runtime, started, initial)
            code = trainer.run()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if args.time_limit and code in (EXIT_UNFINISHED, EXIT_TERMINATED) and backend.rank == 0:
            resume_later(trainer.record.done - trainer.resumed_at, args.time_limit, left)
        return code
    finally:
        backend.close()


NO_STEP = "no step was finished in a job of {:g} minutes: give jobs more time (max_runtime)"


def _end_before_the_first_step(limit: float, number: int, frame: FrameType | None) -> None:
    """Handle a signal while the program still starts: the warning before the time limit, or somebody's `scancel`."""
    if os.environ.get("RANK", "0") == "0":
        print(f"ended by a signal; if it warned of the time limit: {NO_STEP.format(limit)}", flush=True)
    raise SystemExit(128 + number)


def resume_later(steps: int, limit: float, left: float) -> None:
    """Make Slurm or the TPU plugin start this job again.

    Not if it finished no step or batch in a job that was its own from the start: it would be restarted forever.
    """
    from trm.slurm.requeue import requeue

    if not steps and left > limit / 2:
        print(NO_STEP.format(limit), flush=True)
    elif again := os.environ.get("TPU_AGAIN_FILE"):
        Path(again).touch()
    else:
        requeue(partial(print, flush=True))


def _initial_run(name: str | None, args: argparse.Namespace) -> str | None:
    """Local folder of the run to start from if it, or this run, is in a bucket; else --init-from unchanged."""
    from trm.storage import is_remote
    from trm.storage.cache import fetch

    place = args.init_from
    if place is None and name is not None and is_remote(args.out):
        place = f"{args.out.rstrip('/').rpartition('/')[0]}/{name}"
    return str(fetch(place, "run")) if place and is_remote(place) else place
