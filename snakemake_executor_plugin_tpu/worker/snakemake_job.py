"""Runs Snakemake for one job on a worker, with the same improvements of GCS transfers as on the controller."""

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    """Do what `python -m snakemake` does."""
    # Loaded by its path: the plugin need not be installed on the workers.
    path = Path(__file__).resolve().parents[1] / "storage.py"
    spec = importlib.util.spec_from_file_location("tpu_plugin_storage", path)
    storage = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = storage
    spec.loader.exec_module(storage)
    storage.improve_gcs()

    # Started by path, Python put this folder first; `-m snakemake` would have put the working directory there.
    sys.path[0] = ""
    from snakemake.cli import main as snakemake

    snakemake()


if __name__ == "__main__":
    main()
