"""Memory in use and duty cycle of a host's TPU chips, from the metrics service that libtpu runs in each process.

The service is gRPC on the first port of $TPU_RUNTIME_METRICS_PORTS, else on localhost:8431. Its messages are those of
tpu_metric_service.proto of github.com/google/cloud-accelerator-diagnostics (tpu-info, 2024-09-19); libtpu 0.0.21
has the same service and metrics. The few fields that are needed are decoded here, without generated code.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

METHOD = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
HBM_USED = "tpu.runtime.hbm.memory.usage.bytes"
HBM_TOTAL = "tpu.runtime.hbm.memory.total.bytes"
DUTY_CYCLE = "tpu.runtime.tensorcore.dutycycle.percent"
PORT = 8431
SECONDS = 1.0
"""Longest wait for an answer: the service is on this host."""


class Use(NamedTuple):
    """What a host's chips are doing; None where libtpu does not tell."""

    hbm_bytes: int | None
    """In use on the fullest chip."""
    hbm_total: int | None
    """Of one chip."""
    duty_cycle: float | None
    """Percentage of the last sampling period in which the TensorCores computed, mean over the chips."""

    def __str__(self) -> str:
        parts = []
        if self.hbm_bytes is not None and self.hbm_total:
            parts.append(f"HBM {self.hbm_bytes / 2**30:.1f} of {self.hbm_total / 2**30:.1f} GiB")
        if self.duty_cycle is not None:
            parts.append(f"duty cycle {self.duty_cycle:.0f} %")
        return ", ".join(parts)


class TpuMetrics:
    """Client of the metrics service of this process's libtpu. Nothing is contacted before the first `read`."""

    def __init__(self, port: int | None = None):
        given = os.environ.get("TPU_RUNTIME_METRICS_PORTS", "").split(",")[0].strip()
        self._port = port or (int(given) if given.isdigit() else PORT)
        self._ask: Any = None
        self._absent = False

    def read(self) -> Use:
        """The present values. Where the first call finds no service, later calls do not look for it again."""
        if self._absent:
            return Use(None, None, None)
        used, total, duty = (self._values(name) for name in (HBM_USED, HBM_TOTAL, DUTY_CYCLE))
        self._absent = used is total is duty is None
        return Use(
            int(max(used)) if used else None,
            int(max(total)) if total else None,
            sum(duty) / len(duty) if duty else None,
        )

    def _values(self, name: str) -> list[float] | None:
        """A metric's value for each chip; None where it cannot be had."""
        try:
            import grpc
        except ImportError:
            return None
        if self._ask is None:
            channel = grpc.secure_channel(
                f"localhost:{self._port}", grpc.local_channel_credentials(), [("grpc.enable_http_proxy", 0)]
            )
            self._ask = channel.unary_unary(METHOD)
        request = name.encode()
        try:
            return gauges(self._ask(b"\x0a" + bytes([len(request)]) + request, timeout=SECONDS))
        except (grpc.RpcError, ValueError):
            return None


def gauges(response: bytes) -> list[float]:
    """The gauge of each metric in a MetricResponse: metric (1), metrics (3), gauge (3), as_double (1) or as_int (2).

    Raises:
        ValueError: not a protocol buffer.
    """
    found: list[float] = []
    for metric in (item for outer in _within(response, 1) for item in _within(outer, 3)):
        for gauge in _within(metric, 3):
            for number, value in _fields(gauge):
                if number == 1 and isinstance(value, bytes) and len(value) == 8:
                    found.append(struct.unpack("<d", value)[0])
                elif number == 2 and isinstance(value, int):
                    found.append(value)
    return found


def _within(message: bytes, number: int) -> Iterator[bytes]:
    """The submessages of one field."""
    return (value for found, value in _fields(message) if found == number and isinstance(value, bytes))


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an integer for a varint, bytes for all else."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(message) or shift > 63:
                raise ValueError("the message ends within a number")
            byte = message[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"wire type {kind} is not used any more")
        size = {1: 8, 5: 4}[kind] if kind != 2 else varint()
        if at + size > len(message):
            raise ValueError("the message ends within a field")
        yield number, message[at : at + size]
        at += size
