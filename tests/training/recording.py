"""A CUDA graph on the CPU: operations recorded once and replayed on the same memory, without the Python around them.

As strict as capture: reading a value on the host, changing the memory that a number was read from, and communication
between workers are refused. Kernels that bypass torch's dispatcher are not recorded: use the plain network.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HOST_READS = (
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "equal",
    "masked_select",
    "_unique2",
    "unique_dim",
)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func.name().partition("::")
        if namespace == "c10d" or name.partition(".")[0] in HOST_READS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func.name()}")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Run what was recorded again: each result goes where it went then."""
        for func, args, kwargs, out in self.calls:
            found = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(found), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def recorded(call: Callable[[], None]) -> Callable[[], None]:
    """What replays `call`. Unlike capture, recording runs it once."""
    recorder = _Recorder()
    with recorder:
        call()

    def replay() -> None:
        with torch.no_grad():
            recorder.replay()

    return replay


def capture(first: Callable[[], None], second: Callable[[], None]) -> tuple[Callable[[], None], ...]:
    """As `trm.training.graphed.capture_graphs`."""
    return recorded(first), recorded(second)
