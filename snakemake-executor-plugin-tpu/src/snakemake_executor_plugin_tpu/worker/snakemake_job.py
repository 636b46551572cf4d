"""Runs Snakemake for one job on a host, with this package's classes for Cloud Storage."""

import importlib
import importlib.util
import sys
from pathlib import Path


def use_listings() -> None:
    """Load the storage module from the code of the loop: the plugin is not installed on the hosts."""
    if importlib.util.find_spec("snakemake_storage_plugin_gcs") is None:
        return
    package = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(package.parent))
    storage = importlib.import_module(f"{package.name}.storage")
    sys.path.pop(0)
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
