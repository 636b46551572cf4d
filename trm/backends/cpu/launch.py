"""Compiles the kernels once for each dtype, caches them on disk, and runs them on torch's own threads.

A kernel takes the address of a block of int64 words: next piece, number of pieces, rows per piece, rows, then its own
arguments (tensors by address).
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
import torch
from numba import types
from torch import Tensor

from trm.backends.cpu import kernels
from trm.backends.cpu.simd import MATH
from trm.compiled import cache_folder

DTYPES = {torch.bfloat16: types.uint16, torch.float32: types.float32}
SPREAD = 1 << 15
"""Number of elements below which one thread beats waking several."""
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _folder() -> str | None:
    folder = cache_folder(Path(__file__).parent)
    return None if folder is None else str(folder)


@contextlib.contextmanager
def _without_scipy() -> Iterator[None]:
    """Hides SciPy's linear algebra: numba imports it at its first compilation (for np.dot), which takes 0.2 s."""
    hidden: dict[str, Any] = dict.fromkeys({"scipy.linalg", "scipy.linalg.cython_blas"} - sys.modules.keys())
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@cache
def _compiled(name: str, dtype: torch.dtype) -> tuple[Callable[..., None], int]:
    """The kernel as a C function, and its address."""
    config: Any = numba.config
    before, config.CACHE_DIR = config.CACHE_DIR, _folder() or ""
    try:
        signature = types.void(types.CPointer(DTYPES[dtype]))
        body = getattr(kernels, name).py_func
        with _without_scipy():
            function = numba.cfunc(signature, cache=_folder() is not None, **MATH)(body)
    finally:
        config.CACHE_DIR = before
    address = function.address
    assert address is not None
    return _FUNCTION(address), address


def load(dtype: torch.dtype) -> None:
    """Compile all kernels of a dtype, or load them from disk, before their first use."""
    for name in kernels.__all__:
        _compiled(name, dtype)


@cache
def _parallel() -> Callable[..., None] | None:
    """GNU OpenMP's entry point to run a function on all of torch's threads; None with another OpenMP."""
    try:
        function = ctypes.CDLL(None).GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


def usable(dtype: torch.dtype) -> bool:
    """Whether the kernels support this dtype, with the threads of this process."""
    return dtype in DTYPES and (torch.get_num_threads() == 1 or _parallel() is not None)


def run(name: str, like: Tensor, rows: int, *arguments: Tensor | int) -> None:
    """Run kernel `name` for the dtype of `like` over `rows` rows, in a few pieces per thread."""
    function, address = _compiled(name, like.dtype)
    words = [a if isinstance(a, int) else a.data_ptr() for a in arguments]
    threads = torch.get_num_threads()
    parallel = _parallel()
    if parallel is None or threads == 1 or rows == 1 or like.numel() < SPREAD:
        function((ctypes.c_int64 * (4 + len(words)))(0, 1, rows, rows, *words))
        return
    each = -(-rows // (4 * threads))
    block = (ctypes.c_int64 * (4 + len(words)))(0, -(-rows // each), each, rows, *words)
    parallel(address, ctypes.addressof(block), threads, 0)
