"""The XLA backend: TPU chips (or XLA's CPU devices) through torch_xla 2.9, one process per host, SPMD over all devices.

Tensors are global: the batch dimension is sharded over the only mesh axis, weights are replicated, and the partitioner
inserts the all-reduces. So the engine sees all devices of all hosts as one worker (`world` is 1); every host supplies
the whole (small) batch and keeps its devices' part. Processes communicate on the host, over gloo.

PJRT_DEVICE chooses the devices (TPU or CPU; unset: TPU if there are chips), CPU_NUM_DEVICES the number of XLA's CPU
devices. A job that was planned for TPU chips ($TRM_CHIPS_PER_HOST) runs on exactly these or not at all.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from trm.backends.base import Backend, Precision, Use, precision_of
from trm.backends.cpu.device import peak_resident_bytes
from trm.backends.tpu.chips import planned_chips, tpu_files, tpu_wanted
from trm.backends.tpu.metrics import TpuMetrics
from trm.backends.tpu.recursion import marked
from trm.backends.workers import Workers, world_from_environment
from trm.errors import UserError
from trm.io import user_cache
from trm.study.slices import hbm_gib

CACHE_VARIABLE = "TRM_XLA_CACHE"


def choose_device() -> str:
    """PJRT_DEVICE; if unset, set it to TPU on a machine with chips and to CPU elsewhere."""
    if not os.environ.get("PJRT_DEVICE"):
        os.environ["PJRT_DEVICE"] = "TPU" if tpu_wanted() else "CPU"
    return os.environ["PJRT_DEVICE"].upper()


def product_precision(forward: torch.dtype) -> str:
    """torch_xla's name for the precision of float32 products: a TPU takes one bfloat16 pass (`default`), which is exact
    for bfloat16 activations, or six (`highest`)."""
    return "highest" if forward == torch.float32 else "default"


class XlaBackend(Backend):
    """All XLA devices of the job as one worker."""

    name = "xla"
    implementation = "xla"
    views = False
    splits_batches = False  # the network recomputes activations instead (`XlaNetwork`)
    stop_every = 10

    def __init__(self) -> None:
        self.rank, self._processes = world_from_environment()
        planned = planned_chips(self._processes)
        self.on_tpu = choose_device() == "TPU"
        if planned and not self.on_tpu:
            raise UserError(
                f"this job was planned for {planned} TPU chips, but would run on the host's CPU. This machine shows no "
                "chip (/dev/accel0, or /dev/vfio/0 with a TPU on the PCI bus) or PJRT_DEVICE says CPU; check the slice"
            )
        if not self.on_tpu and self._processes > 1:
            raise UserError(
                f"XLA's CPU devices cannot join {self._processes} processes (their sums are silently wrong): use "
                "--backend cpu under torchrun, or one process with CPU_NUM_DEVICES=N"
            )
        if self.on_tpu and not tpu_files():  # libtpu would search the network for many minutes
            raise UserError(
                "PJRT_DEVICE=TPU, but this machine has no TPU (no /dev/accel0, no /dev/vfio/0 with a TPU on the PCI "
                "bus): set PJRT_DEVICE=CPU"
            )
        import torch_xla
        import torch_xla.debug.metrics as metrics
        import torch_xla.distributed.spmd as spmd
        import torch_xla.runtime as runtime
        from torch_xla.core.xla_model import send_cpu_data_to_device

        self._send = send_cpu_data_to_device
        self._torch_xla, self._metrics, self._spmd, self._runtime = torch_xla, metrics, spmd, runtime
        runtime.use_spmd()
        self._use_cache()
        try:
            self.device = torch_xla.device()
            self.devices: int = runtime.global_runtime_device_count()
        except RuntimeError as error:
            raise UserError(
                f"PJRT_DEVICE={os.environ['PJRT_DEVICE']} has no usable device ({str(error).splitlines()[0]}): free "
                "the TPU from other processes, or set PJRT_DEVICE=CPU"
            ) from error
        if runtime.process_count() != self._processes:
            raise UserError(
                f"the TPU slice has {runtime.process_count()} hosts and WORLD_SIZE says {self._processes}: start the "
                "same command on every host (tpurun), or restrict this one to its own chips"
            )
        if planned and self.devices != planned:
            raise UserError(
                f"this job was planned for {planned} TPU chips and has {self.devices}: free those that another process "
                "holds, or correct the slice in profiles/tpu/config.yaml"
            )
        self.mesh = spmd.Mesh(list(range(self.devices)), (self.devices,), ("data",))
        spmd.set_global_mesh(self.mesh)
        self.workers = Workers("gloo", self.rank, self._processes) if self._processes > 1 else None
        self.late_compilations = 0
        self._chips = TpuMetrics()

    @property
    def worker(self) -> int:
        return 0

    @property
    def processes(self) -> int:
        return self._processes

    def device_count(self) -> int:
        return self.devices

    def precision(self, requested: str) -> Precision:
        """Also sets the precision of the device's float32 products."""
        precision = precision_of(requested, self.on_tpu, "a TPU" if self.on_tpu else "XLA's CPU device")
        import torch_xla.backends as products

        wanted = product_precision(precision.forward)
        if products.get_mat_mul_precision() != wanted:
            logging.getLogger(products.__name__).setLevel(logging.ERROR)  # it warns even at the first setting
            products.set_mat_mul_precision(wanted)
        return precision

    def place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def place_rows(self, tensor: Tensor, dim: int) -> Tensor:
        """A tensor of the global batch, its rows sharded over the devices. Raises UserError if they do not divide."""
        if tensor.shape[dim] % self.devices:
            raise UserError(
                f"{tensor.shape[dim]} rows do not divide over {self.devices} XLA devices: make training.batch_size "
                f"/ training.micro_batches a multiple of {self.devices}"
            )
        spec = self._spmd.ShardingSpec(
            self.mesh, tuple("data" if axis == dim else None for axis in range(tensor.dim()))
        )
        # sharded on the host: doing it on the device takes milliseconds for a batch of 768 rows
        placed: Tensor = self._send([tensor], self.device, spec)[0]
        return placed

    def all_reduce(self, flat: Tensor) -> None:
        """Mark the tensor as equal on all devices: the partitioner inserts the sum, and what follows needs no other."""
        self._spmd.mark_sharding(flat, self.mesh, (None,) * flat.dim())

    def request_stop(self, stop: Tensor, requested: int) -> None:
        """Does nothing: another constant in the graph would need another program; `stop_agreed` gathers on the host."""

    def stop_agreed(self, stop: Tensor, step: int, requested: int) -> bool:
        if self.workers is None:
            return bool(requested)
        if step % self.stop_every:
            return False
        return any(bool(flag) for flag in self.workers.gather(torch.tensor([float(bool(requested))])))

    def fetch(self, tensor: Tensor) -> Tensor:
        return self.fetch_all({"": tensor})[""]

    def fetch_all(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copy tensors to the host. One program gathers all sharded ones: torch_xla itself would compile a program for
        each tensor at each fetch."""
        from trm.backends.tpu.replay import settle

        on_device = {name: tensor.detach() for name, tensor in tensors.items() if tensor.device.type == "xla"}
        settle(list(on_device.values()))  # pending operations must not become part of that program
        spec = self._torch_xla._XLAC._get_xla_sharding_spec
        shared = {name: tensor for name, tensor in on_device.items() if "devices=" in spec(tensor)}
        for name, tensor in shared.items():
            on_device[name] = marked(tensor, self.mesh, (None,) * tensor.dim())
        if shared:
            self._torch_xla.sync()
        return {name: self._read(on_device[name]) if name in on_device else tensors[name] for name in tensors}

    def _read(self, tensor: Tensor) -> Tensor:
        """Copy one tensor to the host; `trm.checks.tpu_check.tracing` replaces it."""
        return tensor.to("cpu").contiguous()

    def synchronize(self) -> None:
        self._torch_xla.sync(wait=True)

    def compilations(self) -> int:
        data = self._metrics.metric_data("CompileTime")
        return int(data[0]) if data else 0

    def compile_seconds(self) -> float:
        data = self._metrics.metric_data("CompileTime")
        return data[1] / 1e9 if data else 0.0

    def counters(self) -> dict[str, float]:
        transfers = self._metrics.metric_data("TransferToDeviceTime")
        return {
            "xla/compilations": float(self.compilations()),
            "xla/compile_seconds": self.compile_seconds(),
            "xla/transfer_seconds": transfers[1] / 1e9 if transfers else 0.0,
            "xla/late_compilations": float(self.late_compilations),
        }

    def report(self) -> str:
        return str(self._metrics.metrics_report())

    def device_name(self) -> str:
        kind = os.environ.get("TPU_ACCELERATOR_TYPE", "TPU") if self.on_tpu else "XLA CPU"
        return f"{self.devices} x {kind}"

    def peak_memory(self) -> int:
        # of the process: torch_xla reports a device's memory only without SPMD (tpu-check predicts it)
        return peak_resident_bytes()

    def peak_device_memory(self) -> int | None:
        return None if self.on_tpu else peak_resident_bytes()

    def use(self) -> Use | None:
        return self._chips.read() if self.on_tpu else None

    def start_trace(self, path: Path) -> Callable[[], Path]:
        """Trace host and devices with XLA's profiler into a folder for TensorBoard's profile plugin."""
        import torch_xla.debug.profiler as profiler

        folder = path.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        self.synchronize()
        profiler.start_trace(str(folder))

        def stop() -> Path:
            profiler.stop_trace()
            return folder

        return stop

    def memory_limit(self) -> int:
        return int(hbm_gib() * 2**30) if self.on_tpu else super().memory_limit()

    def _use_cache(self) -> None:
        """Cache compiled programs on disk, except on XLA's CPU devices, which cannot load them."""
        if self.on_tpu:
            folder = Path(os.environ.get(CACHE_VARIABLE) or user_cache() / "trm" / "xla")
            folder.mkdir(parents=True, exist_ok=True)
            self._runtime.initialize_cache(str(folder))
