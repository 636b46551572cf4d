"""Runs Snakemake for one job on a host, with this package's classes for Cloud Storage."""

import atexit
import importlib.util
import logging
import os
import sys
from pathlib import Path


def use_listings() -> None:
    """Load the storage module by its path: the plugin need not be installed on the hosts."""
    if importlib.util.find_spec("snakemake_storage_plugin_gcs") is None:
        return
    path = Path(__file__).resolve().parents[1] / "storage.py"
    spec = importlib.util.spec_from_file_location("tpu_plugin_storage", path)
    assert spec
    assert spec.loader
    storage = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = storage
    spec.loader.exec_module(storage)
    storage.use_listings(levels=1)


def main() -> None:
    """Do what `python -m snakemake` does, and end at once when it is done."""
    use_listings()
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
