"""What computes a training step: the only file that decides it.

On every device a batch takes the same way (`TrainStep`): `gradients` of this worker's rows, `exchange` between the
workers, `update` of the state.

| device | the step | the network in it |
|---|---|---|
| CPU | `KernelStep`: a C++ call for each half; `TrainStep` where the kernel does not cover the run | C++, else plain |
| GPU | `GraphedStep`: a CUDA graph for each half (TRM_CUDA_GRAPH=0: `TrainStep`) | plain, through torch.compile |
| TPU | `ReplayedStep`: one XLA program (TRM_XLA_REPLAY=0: traced at each step) | for XLA, with Pallas kernels |

`placement.network: plain` takes the plain network, differentiated by autograd, on a CPU or GPU.
"""

import torch

from trm.backends.base import Backend, switch
from trm.backends.cpu.choice import products_for
from trm.model.act import Rows
from trm.training.graphed import GraphedStep, capture_graphs
from trm.training.kernel_step import KernelStep
from trm.training.state import TrainState
from trm.training.step import TrainStep

GRAPH_VARIABLE = "TRM_CUDA_GRAPH"


def program_of(state: TrainState, originals: Rows, backend: Backend) -> TrainStep:
    """The step of a run on a device: a callable of (batch, recursion) that changes `state` in place."""
    if backend.name == "xla":
        from trm.training.replayed import ReplayedStep  # needs torch_xla

        return ReplayedStep(state, originals, backend)
    if backend.name == "cuda" and switch(GRAPH_VARIABLE) != "0":
        return GraphedStep(state, originals, backend, capture_graphs)
    if backend.implementation == "fused" and (products := _products(state)) is not None:
        return KernelStep(state, originals, backend, products)
    return TrainStep(state, originals, backend)


def _products(state: TrainState) -> int | None:
    """The matrix products by which the CPU kernel trains this run; None: it does not cover it."""
    if state.params.dtype != torch.float32 or state.scale is not None:
        return None
    return products_for(state.layout.views(state.params), state.arch)
