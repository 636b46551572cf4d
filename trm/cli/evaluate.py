"""`python -m trm evaluate`: evaluate a trained model.

python -m trm evaluate --run results/runs/NAME --dataset results/datasets/NAME --evaluation '{}' --out FILE
"""

import argparse
import time
from pathlib import Path

REMOTE = ("run_folder", "dataset", "parts")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run",
        required=True,
        dest="run_folder",
        help="folder of the finished run, or its address in a bucket",
    )
    parser.add_argument("--dataset", required=True, help="data set folder, or its address in a bucket")
    parser.add_argument(
        "--evaluation", default="{}", help="EvaluationConfig: JSON text or a path to a JSON file"
    )
    parser.add_argument("--out", required=True, help="JSON file of the measurements")
    parser.add_argument("--predictions", help="also write every answer to this .npz file")
    parser.add_argument(
        "--parts",
        help="folder or address for results of finished batches, from which a stopped evaluation goes on",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="MINUTES",
        help="time limit of the cluster job: the evaluation stops before it; a Slurm job requeues itself",
    )
    parser.add_argument("--backend", default="auto", help="auto, cpu, cuda or xla")
    parser.add_argument("--log", help="also append all output to this file")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")


def run(args: argparse.Namespace) -> int:
    """Evaluate; 0 when finished, 143 after SIGTERM and 75 before the time limit, with the finished batches kept."""
    started = time.monotonic()
    from trm.backends.registry import open_backend
    from trm.cli.train import resume_later
    from trm.evaluation.evaluate import evaluate_run
    from trm.evaluation.parts import Parts
    from trm.slurm.requeue import minutes_left, stretch_minutes
    from trm.storage import open_store
    from trm.storage.cache import fetch
    from trm.study.reading import config_argument
    from trm.study.schema import EvaluationConfig
    from trm.study.text import count
    from trm.training.interrupt import StopRequested

    left = args.time_limit and min(args.time_limit, minutes_left() or args.time_limit)
    end = started + 60 * stretch_minutes(left) if left else None
    parts = Parts(open_store(args.parts), end) if args.parts else None
    evaluation = config_argument(EvaluationConfig, args.evaluation, "--evaluation")
    backend = open_backend(args.backend, args.threads)
    try:
        predictions = Path(args.predictions) if args.predictions else None
        run_folder, dataset = fetch(args.run_folder, "run"), fetch(args.dataset)
        document = evaluate_run(run_folder, dataset, evaluation, Path(args.out), predictions, backend, parts)
    except StopRequested:
        assert parts is not None
        code = parts.save()
        print(
            f"stopped after {count(parts.done, 'batch', 'batches')}; it goes on from {args.parts}", flush=True
        )
        if left:
            resume_later(parts.done, args.time_limit, left)
        return code
    finally:
        backend.close()
    for result in (document or {}).get("results", ()):  # in the first worker
        taken = f", {result['seconds']:.2f} s" if result["seconds"] else ""
        print(
            f"{result['split']:5}  {result['policy']:9}  steps {result['steps']:3}  restarts {result['restarts']:3}  "
            f"exact {100 * result['exact_accuracy']:6.2f} %  ({result['correct']}/{result['puzzles']}), "
            f"mean steps {result['mean_steps']:.2f}{taken}",
            flush=True,
        )
    return 0
