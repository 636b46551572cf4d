"""What `make test` leaves out, and the line that says so."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
FULL = ("slurm", "xla", "network/cuda")
"""Folders whose tests need Slurm or the second environment."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of whole folders."""
    for item in items:
        if any(HERE / folder in item.path.parents for folder in FULL):
            item.add_marker(pytest.mark.full)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how to run what was left out."""
    if config.option.markexpr == "not full":
        terminalreporter.write_line(
            "Left out: the emulated pod, Slurm, the TPU environment, the browser and other long tests (`make test-all`)"
        )
