"""Runs Snakemake for one job on a worker, with the same improvements of GCS transfers as on the controller."""

import atexit
import importlib.util
import logging
import os
import pkgutil
import sys
from pathlib import Path


def improve_gcs() -> None:
    """Load the plugin's storage module by its path: the plugin need not be installed on the workers."""
    path = Path(__file__).resolve().parents[1] / "storage.py"
    spec = importlib.util.spec_from_file_location("tpu_plugin_storage", path)
    storage = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = storage
    spec.loader.exec_module(storage)
    storage.improve_gcs(levels=1)


def hide_executors() -> None:
    """Let Snakemake find no executor plugins: a job on a host uses none, and some take long to import."""
    every = pkgutil.iter_modules
    prefix = "snakemake_executor_plugin_"
    pkgutil.iter_modules = lambda *where: (
        found for found in every(*where) if not found.name.startswith(prefix)
    )


def main() -> None:
    """Do what `python -m snakemake` does, and end at once when it is done."""
    improve_gcs()
    hide_executors()
    # Started by path, Python put this folder first; `-m snakemake` would have put the working directory there.
    sys.path[0] = ""
    from snakemake.cli import main as snakemake

    code: object = 0
    try:
        snakemake()
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
    # Everything is stored by now. Python would spend another second on taking its modules apart.
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
