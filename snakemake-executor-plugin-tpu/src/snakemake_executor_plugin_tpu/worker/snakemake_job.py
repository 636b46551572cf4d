"""Runs Snakemake for one job on a host, with this package's classes for Cloud Storage."""

import importlib.util
import sys
from pathlib import Path


def use_listings() -> None:
    """Load the storage module by its path: the plugin is not installed on the hosts."""
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
    """Run `python -m snakemake`."""
    use_listings()
    # sys.path[0] is this script's folder; with `-m snakemake` it would be the working directory.
    sys.path[0] = ""
    from snakemake.cli import main as snakemake

    snakemake()


if __name__ == "__main__":
    main()
