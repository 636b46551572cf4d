"""The kernels run through Triton's interpreter on the CPU; where triton is not installed these tests are skipped."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # before triton is first imported
os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # the interpreter's products are tiny: threads only get in each other's way

REASON = (
    "triton is not installed here: the kernels' tests run in the environment envs/tpu (Linux x86-64 only)"
)

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One thread: the tensors are tiny."""
    import torch

    if any(Path(__file__).parent in item.path.parents for item in items):
        torch.set_num_threads(1)
