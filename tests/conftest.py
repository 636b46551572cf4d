"""What `make test` leaves out, and the line that says so."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
FULL = (
    "slurm",
    "xla",
    "network/cuda",
    "analysis/test_notebooks.py",
    "analysis/test_redraw.py",
    "pipeline/test_cluster_docs.py",
    "pipeline/test_kill.py",
    "pipeline/test_pod.py",
    "pipeline/test_readme.py",
    "pipeline/test_reruns.py",
    "storage/test_training.py",
    "training/test_faults.py",
    "training/test_workers.py",
)
"""Folders and files of tests that take long, or need Slurm or the second environment."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of these places."""
    for item in items:
        if any(HERE / place in (item.path, *item.path.parents) for place in FULL):
            item.add_marker(pytest.mark.full)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how to run what was left out."""
    if config.option.markexpr == "not full":
        terminalreporter.write_line(
            "Left out: the emulated pod, Slurm, the TPU environment, the browser and other long tests (`make test-all`)"
        )
