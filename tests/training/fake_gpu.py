"""Whole training steps on a GPU that is not there, in a process of its own: shapes, dtypes and devices without data.

    python -m tests.training.fake_gpu CASES      # JSON: [[run, workers, fault], ...]

A fake tensor knows everything but its values: reading one on the host raises, and so does an operation on tensors of
two devices. Copies between host and device are found by `Watch`. Prints a JSON list: what went wrong in each case.
"""

import json
import sys
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("gpu")
DEVICE = torch.device("gpu", 0)
CELLS, SYMBOLS = 81, 11


class Watch(TorchDispatchMode):
    """Refuses operations that move data between host and device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
        if len({tensor.device.type for tensor in tensors}) > 1:
            raise RuntimeError(f"{func.name()} moves data between {[str(t.device) for t in tensors]}")
        return out


def item(state: Any) -> None:
    """A fault: a value read on the host."""
    state.step.item()


def copy(state: Any) -> None:
    """A fault: a tensor fetched in the middle of a step."""
    state.params.cpu()


def constant(state: Any) -> None:
    """A fault: a number made on the host."""
    state.step.add_(torch.ones(1).sum())


FAULTS = {fault.__name__: fault for fault in (item, copy, constant)}


def steps(document: dict[str, Any], world: int, fault: str) -> None:
    """Two steps of a run as one of `world` workers takes them; with a fault, which happens before the update."""
    from trm.backends.base import Backend, Precision, precision_of
    from trm.model.act import Rows
    from trm.study.schema import RunConfig
    from trm.study.stages import Recursion
    from trm.study.tasks import Sizes
    from trm.training.optim import loss_scale
    from trm.training.state import TrainState
    from trm.training.step import Batch, TrainStep

    class FakeBackend(Backend):
        name, device = "cuda", DEVICE

        def precision(self, requested: str, mixer: str = "mlp") -> Precision:
            return precision_of(requested, True, "this GPU")

        def place(self, tensor: Tensor) -> Tensor:
            return tensor.to(self.device)

        def device_name(self) -> str:
            return "fake"

        def peak_memory(self) -> int:
            return 0

    # torch.tensor makes no fake tensors of a device that was registered in Python
    loss_scale.initial_scale = lambda device: torch.zeros(2, device=device)
    backend, run = FakeBackend(), RunConfig.model_validate(document)
    backend.world = world
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        state = TrainState(
            run, Sizes(CELLS, SYMBOLS, 10, 0), backend.precision(run.training.precision), backend
        )
        cells = torch.zeros(100, CELLS, dtype=torch.uint8, device=DEVICE)
        originals = Rows(cells, cells.clone(), torch.zeros(100, dtype=torch.int32, device=DEVICE))
        step, rows = TrainStep(state, originals, backend), state.local_batch
        if fault:
            step.before_update = lambda: FAULTS[fault](state)
        batch = Batch(
            torch.zeros(rows, dtype=torch.int32, device=DEVICE),
            torch.zeros(rows, SYMBOLS, dtype=torch.uint8, device=DEVICE),
            torch.zeros(rows, CELLS, dtype=torch.int16, device=DEVICE),
            torch.zeros(rows, dtype=torch.int32, device=DEVICE),
        )
        before = [(tensor.shape, tensor.dtype, tensor.device) for tensor in state.changed_tensors()]
        fake.allow_non_fake_inputs = False
        with Watch():
            for _ in range(2):
                step(batch, Recursion.of(run.model))
        assert before == [(tensor.shape, tensor.dtype, tensor.device) for tensor in state.changed_tensors()]
        assert all(tensor.device == DEVICE for tensor in [*state.changed_tensors(), *state.reduced])


def main() -> None:
    """Every case, one after the other."""
    results: list[Any] = []
    for case in json.loads(sys.argv[1]):
        try:
            steps(*case)
            results.append("")
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
