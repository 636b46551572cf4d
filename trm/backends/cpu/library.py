"""The CPU kernel as Python sees it: the structures of source/interface.h, and the functions of source/kernel.cpp."""

import ctypes
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trm.backends.cpu import build
from trm.provenance import processor

log = logging.getLogger("trm")

GROUPS, MAX_THREADS, MAX_VOCAB, RESULTS = 8, 64, 256, 9
FLOAT32, PAIRED_BF16, AVX512_BF16, AMX = range(4)
"""Kinds of matrix products; PAIRED_BF16: bfloat16 by float32 instructions, for every processor."""
FIRST = ("embed.weight", "position.weight", "head.weight", "halt.weight", "halt.bias")
CHANNELS = ("channel_mlp.gate_up", "channel_mlp.down")
BLOCK = ("token_mlp.gate_up", "token_mlp.down", *CHANNELS)
ATTENTION_BLOCK = ("attention.qkv", "attention.out", *CHANNELS)


class Shape(Structure):
    """Sizes of a network and the number of groups of rows. `heads`: 0 for the MLP mixer."""

    _fields_ = [
        (name, c_int64)
        for name in (
            "layers", "cells", "puzzle_tokens", "width", "token_inner", "channel_inner", "vocab", "groups", "heads",
            "rotary",
        )
    ]  # fmt: skip


class Job(Structure):
    """A micro-batch of a training step."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "h_cycles", "l_cycles", "halt_max_steps", "ignore", "symbols")),
        ("scale", c_float),
        ("halting_cost", c_float),
        *(
            (name, c_void_p)
            for name in (
                "z_H", "z_L", "steps", "halted", "inputs", "labels", "puzzle", "next_z_H", "next_z_L", "next_steps",
                "next_halted", "next_inputs", "next_labels", "next_puzzle", "new_inputs", "new_labels", "new_puzzle",
                "original", "token_map", "cell_map", "order", "hints", "minimum", "h_init", "l_init", "puzzle_table",
                "puzzle_grads", "results", "sums", "histogram",
            )
        ),
    ]  # fmt: skip


class Inference(Structure):
    """A supervision step without gradient."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "h_cycles", "l_cycles")),
        *((name, c_void_p) for name in ("z_H", "z_L", "x", "next_z_H", "next_z_L", "logits", "halt")),
    ]


class Update(Structure):
    """A step of an elementwise optimiser."""

    _fields_ = [
        ("kind", c_int),
        *((name, c_float) for name in ("beta1", "beta2", "keep", "step_size", "v_scale", "ema_decay")),
        *((name, c_void_p) for name in ("params", "m", "v", "ema", "grads")),
    ]


SIGNATURES = {
    "trm_network": ([POINTER(Shape), c_int], c_void_p),
    "trm_free": ([c_void_p], None),
    "trm_prepare": ([c_void_p, c_void_p, c_int64, c_int64], c_int),
    "trm_supervise": ([c_void_p, POINTER(Job), c_int64, c_int64, c_int64], None),
    "trm_collect": ([c_void_p, POINTER(Job), c_void_p], c_float),
    "trm_infer": ([c_void_p, POINTER(Inference), c_int64, c_int64, c_int64], None),
    "trm_update": ([POINTER(Update), c_int64, c_int64], None),
}


@cache
def functions() -> Any:
    """The library, built if it was not before; None where it cannot be used, which is logged once.

    TRM_CPU_KERNELS=0 switches it off.
    """
    if os.environ.get("TRM_CPU_KERNELS") == "0":
        return None
    try:
        loaded = ctypes.CDLL(str(build.library()))
    except (build.BuildError, OSError) as error:
        log.warning("the CPU kernel is not used, so PyTorch trains, several times slower: %s", error)
        return None
    for name, (arguments, result) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


def bfloat16_products() -> list[int]:
    """Kinds of bfloat16 products on this processor, the fastest first."""
    features = processor()[1]
    kinds = [AMX] if build.isa() == "native" and "amx_bf16" in features else []
    if build.isa() in ("native", "avx512_bf16") and "avx512_bf16" in features:
        kinds.append(AVX512_BF16)
    return [*kinds, PAIRED_BF16]


def fast_bfloat16() -> bool:
    """Whether bfloat16 beats float32 here: with AMX, and with AVX512-BF16 on AMD's processors, whose products take half
    the time of float32's. On Intel's they take longer."""
    kinds = bfloat16_products()
    return AMX in kinds or (AVX512_BF16 in kinds and "AMD" in processor()[0])


def addresses(tensors: Mapping[str, Tensor], layers: int) -> Any:
    """Addresses of the weights, or of their gradients, in the kernel's order."""
    parts = BLOCK if "blocks.0.token_mlp.down" in tensors else ATTENTION_BLOCK
    names = [*FIRST, *(f"blocks.{i}.{part}" for i in range(layers) for part in parts)]
    found = [tensors.get(name) for name in names]
    return (c_void_p * len(names))(*(None if tensor is None else tensor.data_ptr() for tensor in found))


def address(tensor: Tensor | None) -> int | None:
    """The address of a tensor's elements, which must be contiguous."""
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def thread_count() -> int:
    """Threads of a call: torch's, as far as the kernel has room for."""
    return min(torch.get_num_threads(), MAX_THREADS)


class Kernel:
    """A network of the kernel. `products`: one of the kinds above.

    Raises:
        ValueError: the processor has no such products.
    """

    def __init__(self, shape: Sequence[int], products: int):
        self._functions, self._shape = functions(), Shape(*shape)
        self._network = self._functions.trm_network(byref(self._shape), products)
        if not self._network:
            raise ValueError("these products are not available")
        self.groups = self._shape.groups
        self._pool: ThreadPoolExecutor | None = None

    def __del__(self) -> None:
        if getattr(self, "_network", None):
            self._functions.trm_free(self._network)

    def prepare(self, weights: Any, uses: int) -> None:
        """Read the weights at `addresses`; `uses` of the block stack will be differentiated (0: none)."""
        if not self._functions.trm_prepare(self._network, weights, uses, thread_count()):
            raise MemoryError("out of memory")

    def supervise(self, job: Job, grads: Any) -> float:
        """Take a step; adds to the gradients and returns the squared norm of what was added."""
        self._share(self._functions.trm_supervise, job, self.groups)
        norm: float = self._functions.trm_collect(self._network, byref(job), grads)
        return norm

    def infer(self, job: Inference) -> None:
        """Take a supervision step without gradient."""
        self._share(self._functions.trm_infer, job, job.rows)

    def _share(self, function: Any, job: Structure, pieces: int) -> None:
        """Call `function` on all pieces, an equal number in each thread."""
        threads = min(thread_count(), pieces)
        if threads == 1:
            function(self._network, byref(job), 0, pieces, 0)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(thread_count())
        bounds = [pieces * i // threads for i in range(threads + 1)]
        parts = zip(bounds, bounds[1:], range(threads))
        for _ in self._pool.map(lambda part: function(self._network, byref(job), *part), parts):
            pass
