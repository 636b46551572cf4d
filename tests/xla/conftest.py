"""The XLA tests need the environment envs/tpu (torch 2.9.0, torch_xla 2.9.0); elsewhere they are skipped."""

import importlib.util
import os
from pathlib import Path

import pytest

from tests import warm

# The interpreted TPU's two cores start computations from within a callback: with a pool of as many threads as a small
# machine has processors, all of them can wait for a free one for ever. Read when jax starts its CPU client.
os.environ.setdefault("PJRT_NPROC", "16")
if importlib.util.find_spec("torch_xla") is not None:
    # compiling the tests' programs takes far longer than running them
    flags = ("backend_optimization_level=0", "llvm_disable_expensive_passes=true")
    flags += ("cpu_use_fusion_emitters=false", "cpu_parallel_codegen_split_count=1")
    # torch_xla adds this one when it is imported, and a process with other flags than the server's is no fork of it
    flags += ("cpu_enable_fast_math=false",)
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in flags))
    # XLA is compared with PyTorch, whose sums are closer to its own than the kernel's
    os.environ.setdefault("TRM_CPU_KERNELS", "0")
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    warm.OURS.update(os.environ)

REASON = "torch_xla is not installed here: the XLA tests run in the environment envs/tpu (Linux x86-64 only)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with one sentence, what lies in this folder."""
    if importlib.util.find_spec("torch_xla") is not None:
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=REASON))
