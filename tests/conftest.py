"""What `make test` leaves out, and the line that says so."""

import importlib
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from trm.io import exclusive

# several processes of a test run share the processors: threads that spin take them from each other
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

HERE = Path(__file__).parent
# tests copy the sources; numba compiles them once for all
os.environ.setdefault("NUMBA_CACHE_DIR", str(HERE.parent / "trm/tasks/__pycache__"))
FULL = (
    "slurm/test_controller.py",
    "slurm/test_interruptions.py",
    "slurm/test_jobs.py",
    "xla",
    "analysis/test_notebooks.py",
    "results/test_redraw.py",
    "launch/test_kill.py",
    "pipeline/test_pod.py",
    "pipeline/test_documented_commands.py",
    "pipeline/test_reruns.py",
    "storage/test_training.py",
    "training/test_faults.py",
    "training/test_workers.py",
    "test_image.py",
)
"""Folders and files of tests that take long, or need Slurm or the second environment."""


LONGEST = (
    "xla/test_lockstep.py",
    "xla/test_tpu_check.py",
    "slurm",
    "pipeline/test_pod.py",
    "pipeline/test_documented_commands.py",
    "pipeline/test_cloud_page.py",
    "storage/test_training.py",
    "pipeline/test_reruns.py",
    "launch/test_kill.py",
    "pipeline/test_trust.py",
    "launch/test_launch.py",
    "pipeline/test_profiles.py",
    "pipeline/test_preflight.py",
)
"""Begun first, so that no process ends with one of them while the others are idle."""


def _among(item: pytest.Item, places: tuple[str, ...]) -> int:
    """Index of the place that holds the test; as many as there are places if none does."""
    return next(
        (i for i, place in enumerate(places) if HERE / place in (item.path, *item.path.parents)), len(places)
    )


@pytest.fixture(scope="session")
def once(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[str, Callable[[Path], object]], Path]:
    """`once(name, make)`: a folder that `make` fills in one of the processes of this test run."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if hasattr(request.config, "workerinput") else base

    def get(name: str, make: Callable[[Path], object]) -> Path:
        folder, made = base / name, base / f"{name}.made"
        with exclusive(base / f"{name}.lock"):
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                made.touch()
        return folder

    return get


def block(title):
    """The code of docs/extending.md that is titled so."""
    page = (HERE.parent / "docs/extending.md").read_text()
    (code,) = re.findall(rf'```\w+ title="{re.escape(title)}"\n(.*?)```', page, re.DOTALL)
    return code


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """Imports a printed module of a package, for one test."""
    imported = []

    def module(package, name):
        place = importlib.import_module(package)
        (tmp_path / f"{name}.py").write_text(block(f"{package.replace('.', '/')}/{name}.py"))
        monkeypatch.setattr(place, "__path__", [*place.__path__, str(tmp_path)])
        imported.append((place, name))
        return importlib.import_module(f"{package}.{name}")

    yield module
    for place, name in imported:
        del sys.modules[f"{place.__name__}.{name}"]
        delattr(place, name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of these places, and put the longest first."""
    for item in items:
        if _among(item, FULL) < len(FULL):
            item.add_marker(pytest.mark.full)
    items.sort(key=lambda item: _among(item, LONGEST))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The slowest files, and how to run what was left out."""
    seconds: Counter[str] = Counter()
    for report in [item for items in terminalreporter.stats.values() for item in items]:
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) > 20:
        slowest = ", ".join(f"{name} {spent:.0f} s" for name, spent in seconds.most_common(10))
        terminalreporter.write_line(f"Slowest files: {slowest}")
    if config.option.markexpr == "not full":
        terminalreporter.write_line(
            "Left out: the emulated pod, Slurm, the TPU environment, the browser and other long tests (`make test-all`)"
        )
