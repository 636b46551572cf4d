"""Runs the kernels: compiled once for each dtype and kept on disk, spread over torch's own threads.

A kernel gets the address of a block of words: the next piece to take, pieces, rows of a piece, rows, then its own
arguments.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numba
import torch
from numba import types
from torch import Tensor

from trm.compiled import cache_folder
from trm.network.cpu import kernels, layer_backward, layer_forward, panels, tile

DTYPES = {torch.bfloat16: types.uint16, torch.float32: types.float32}
_LAYERS = {name: module for module in (panels, layer_forward, layer_backward) for name in module.__all__}
SPREAD = 1 << 15
"""Elements from which several threads are worth their waking up."""
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _folder() -> str | None:
    folder = cache_folder(Path(__file__).parent)
    return None if folder is None else str(folder)


@contextlib.contextmanager
def _without_scipy() -> Iterator[None]:
    """numba's first function imports SciPy's linear algebra, a fifth of a second, in case np.dot is compiled."""
    hidden = {"scipy.linalg", "scipy.linalg.cython_blas"} - sys.modules.keys()
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@cache
def _compiled(name: str, dtype: torch.dtype) -> tuple[Callable[[int], None], int]:
    """The kernel as a C function, and its address."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, _folder() or ""
    try:
        signature = types.void(types.CPointer(DTYPES[dtype]))
        body = getattr(_LAYERS.get(name, kernels), name).py_func
        with _without_scipy():
            function = numba.cfunc(signature, cache=_folder() is not None, **kernels.MATH)(body)
    finally:
        numba.config.CACHE_DIR = before
    return _FUNCTION(function.address), function.address


def load(dtype: torch.dtype) -> None:
    """Compile all kernels of a dtype, or fetch them from the disk, now instead of at their first use."""
    layers = _LAYERS if dtype == torch.bfloat16 and tile.AVAILABLE else ()
    for name in (*kernels.__all__, *layers):
        _compiled(name, dtype)


@cache
def _parallel() -> Callable[..., None] | None:
    """torch's own OpenMP (GNU): all its threads run a function; None where there is another one."""
    try:
        function = ctypes.CDLL(None).GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


def usable(dtype: torch.dtype) -> bool:
    """Whether the kernels can work on such tensors here. TRM_CPU_KERNELS=0 turns them off."""
    if dtype not in DTYPES or os.environ.get("TRM_CPU_KERNELS") == "0":
        return False
    return torch.get_num_threads() == 1 or _parallel() is not None


def run(name: str, like: Tensor, rows: int, *arguments: Tensor | int, each: int | None = None) -> None:
    """Run kernel `name` for the dtype of `like` over `rows` rows, `each` of them a piece (None: a few pieces a thread).

    Tensors are given by their addresses."""
    function, address = _compiled(name, like.dtype)
    words = [a if isinstance(a, int) else a.data_ptr() for a in arguments]
    threads = torch.get_num_threads()
    if threads == 1 or rows == 1 or like.numel() < SPREAD:
        function((ctypes.c_int64 * (4 + len(words)))(0, 1, rows, rows, *words))
        return
    each = each or -(-rows // (4 * threads))
    block = (ctypes.c_int64 * (4 + len(words)))(0, -(-rows // each), each, rows, *words)
    _parallel()(address, ctypes.addressof(block), threads, 0)
