"""Trace a training step once; later calls run the compiled program directly on its arguments.

torch_xla traces each call of a step and looks up its program by the trace, which takes longer on the host than a small
step on the chips. The program is always the same, so its arguments (state, batch, constants) are identified once; a
call passes them and receives the results. No argument's memory is donated to a result, so old values stay readable.
"""

from collections.abc import Callable, Sequence

import torch
import torch_xla
from torch import Tensor
from torch_xla.core.xla_model import wait_device_ops

XLA = torch_xla._XLAC


class Replay:
    """The program of `step()`, which reads the tensors of `given` and `state` and changes `state` in place.

    The constructor traces, compiles and takes a step; `run` takes another.
    """

    def __init__(self, step: Callable[[], None], state: Sequence[Tensor], given: Sequence[Tensor]):
        self._state = list(state)
        names = names_of_data([*state, *given])
        step()
        pending = XLA._check_tensor_need_materialization(self._state)
        self._changed = [tensor for tensor, new in zip(self._state, pending, strict=True) if new]
        used, values = XLA._get_tensors_xla_device_data_node(self._changed)
        # index of a tensor of the state or batch, or a constant
        self._arguments = [
            names.index(name) if name in names else value for name, value in zip(used, values, strict=True)
        ]
        self._program = XLA._get_graph_hash(self._changed)
        XLA._xla_warm_up_cache(self._changed, [])
        XLA._clear_pending_irs(str(state[0].device))  # what was traced must not be computed by the next sync
        self._start(values)

    def run(self, given: Sequence[Tensor]) -> None:
        """Take a step with these tensors instead of those it was traced with."""
        kept = [*self._state, *given]
        settle(kept)
        self._start([kept[item] if isinstance(item, int) else item for item in self._arguments])

    def _start(self, arguments: list[Tensor]) -> None:
        for tensor, result in zip(
            self._changed, XLA._run_cached_graph(self._program, arguments), strict=True
        ):
            tensor.copy_(result)


def settle(tensors: list[Tensor]) -> None:
    """Run the tensors' pending operations and wait for their data."""
    if any(XLA._check_tensor_need_materialization(tensors)):
        torch_xla.sync()
        wait_device_ops()


def names_of_data(tensors: list[Tensor]) -> list[int]:
    """The name by which a traced program refers to each tensor's data; clones get their own data first."""
    settle(tensors)
    first = [_name(tensor)[1] for tensor in tensors]
    again = [_name(tensor) for tensor in tensors]
    shared = [t for t, name, (seen, _) in zip(tensors, first, again, strict=True) if seen != name]
    if not shared:
        return [name for _, name in again]
    for tensor in shared:
        tensor.copy_(tensor + torch.zeros_like(tensor))
    return names_of_data(tensors)


def _name(tensor: Tensor) -> tuple[int, int]:
    """The name of the tensor's data, and the new name that this query gives it."""
    (name,), (alias,) = XLA._get_tensors_xla_device_data_node([tensor])
    return name, XLA._xla_get_tensor_id(alias)
