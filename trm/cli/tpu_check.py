"""`python -m trm tpu-check`: compile the programs of a run for a TPU slice, without a TPU.

python -m trm tpu-check --scale tpu                        # every run of the study, on one host (4 chips)
python -m trm tpu-check --scale tpu --run NAME --topology v4-64
python -m trm tpu-check --run-config run.json --topology v4-64 --json
"""

import argparse
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trm.cli.study import add_study_options

    add_study_options(parser)
    parser.add_argument("--run", action="append", help="run of the study (default: all; may be repeated)")
    parser.add_argument(
        "--run-config", help="check this RunConfig instead: JSON text or a path to a JSON file"
    )
    parser.add_argument("--topology", default="v4-8", help="TPU slice of a job: v4-8 (one host), ..., v4-64")
    parser.add_argument(
        "--steps",
        choices=("train", "all"),
        default="train",
        help="the training step (default), or every program of a run and its evaluation too",
    )
    parser.add_argument(
        "--cache", default="results/tpu-check", help="folder for the results of compiled programs"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the table; 1 if a program does not fit or does not compile, else 0."""
    import json
    import sys
    import time
    from pathlib import Path

    from trm.checks.tpu_check.check import check, program_key, programs_table, table, tpu_python
    from trm.checks.tpu_check.check import programs as programs_of
    from trm.errors import UserError
    from trm.study.slices import parse_slice
    from trm.study.text import count

    where, folder = parse_slice(args.topology), Path(args.cache)
    kinds = ("train", "run") if args.steps == "all" else ("train",)
    configs = _configs(args)
    programs: dict[tuple[str, str], list[str]] = {}
    for name, config in configs.items():
        for what in kinds:
            programs.setdefault((what, program_key(config, where, what)), []).append(name)
    kept = {key for _, key in programs if (folder / f"{key}.json").exists()}
    if len(kept) < len(programs):
        tpu_python()  # or say at once what is missing

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    say(
        f"{where.name}, {where.chips} chips: {count(len(configs), 'run')} to check with "
        f"{count(len(programs), 'program')}; {len(kept)} known in {folder}, {len(programs) - len(kept)} to compile "
        "(10 s to two minutes each). Each is kept, so this can be stopped and called again."
    )
    results, others, failed, seconds, left = [], [], [], 0.0, len(programs) - len(kept)
    compiled, good = 0, True
    for number, ((what, key), names) in enumerate(programs.items(), 1):
        started = time.monotonic()
        try:
            if what == "run":
                others.append((names, programs_of(configs[names[0]], where, folder)))
                fit = all(program.fits for program in others[-1][1])
            else:
                results.append((names, check(configs[names[0]], where, folder)))
                fit = results[-1][1].fits
            verdict = "fits" if fit else "DOES NOT FIT"
        except UserError as error:
            failed.append(f"{names[0]} {what}: {error}")
            verdict, fit = "failed", False
        good = good and fit
        if key in kept:
            continue
        compiled, left, seconds = compiled + 1, left - 1, seconds + time.monotonic() - started
        remaining = f"; about {seconds / compiled * left / 60:.0f} min left" if left else ""
        say(f"{number}/{len(programs)} {names[0]} {what}: {verdict}{remaining}")
    if failed and not (results or others):
        raise UserError("; ".join(failed))
    if args.json:
        rows = [{"run": names[0], "runs": names, **result._asdict()} for names, result in results]
        for names, found in others:
            every = [program._asdict() for program in found]
            rows.append({"run": names[0], "runs": names, "programs": every})
        print(json.dumps(rows, indent=1))
    else:
        if results:
            print(table([(_shared(names), result) for names, result in results], where))
        for names, found in others:
            print(f"\nEvery program of {_shared(names)}:\n{programs_table(found, where)}")
    for sentence in failed:
        say(sentence)
    return 0 if good else 1


def _shared(names: list[str]) -> str:
    """The first of the runs that have one program, and how many others."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _configs(args: argparse.Namespace) -> dict[str, Any]:
    from trm.cli.study import project_of
    from trm.errors import UserError
    from trm.study.fingerprint import run_names
    from trm.study.merge import nearest
    from trm.study.reading import config_argument
    from trm.study.schema import RunConfig

    if args.run_config:
        config = config_argument(RunConfig, args.run_config, "--run-config")
        return {run_names(config, [config.seed])[0]: config}
    runs = project_of(args).runs
    for name in args.run or ():
        if name not in runs:
            raise UserError(f"the study has no run {name!r}{nearest(name, runs)}")
    return {name: runs[name].config for name in args.run or runs}
