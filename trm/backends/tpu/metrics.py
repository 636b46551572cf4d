"""Memory in use and duty cycle of a host's TPU chips, from the metrics service that libtpu runs in each process.

The service is gRPC on the first port of $TPU_RUNTIME_METRICS_PORTS, else on localhost:8431. Its messages are those of
tpu_metric_service.proto in github.com/google/cloud-accelerator-diagnostics (tpu-info, 2024-09-19); libtpu 0.0.21 has
the same service and metrics. The few fields needed are read without generated code.
"""

import os
import struct
from typing import Any

from trm.backends.base import Use

METHOD = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
HBM_USED = "tpu.runtime.hbm.memory.usage.bytes"
HBM_TOTAL = "tpu.runtime.hbm.memory.total.bytes"
DUTY_CYCLE = "tpu.runtime.tensorcore.dutycycle.percent"
PORT = 8431
SECONDS = 1.0
"""Timeout of a request: the service is on this host."""


class TpuMetrics:
    """Client of the metrics service of this process's libtpu. Sends nothing before the first `read`."""

    def __init__(self, port: int | None = None):
        given = os.environ.get("TPU_RUNTIME_METRICS_PORTS", "").split(",")[0].strip()
        self._port = port or (int(given) if given.isdigit() else PORT)
        self._request: Any = None
        self._absent = False

    def read(self) -> Use:
        """The current values. If the first call finds no service, later calls do not try again."""
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
        """A metric's value for each chip, or None if it is not available."""
        try:
            import grpc
            from google.protobuf.message import DecodeError
            from google.protobuf.wrappers_pb2 import StringValue
        except ImportError:
            return None
        if self._request is None:
            channel = grpc.secure_channel(
                f"localhost:{self._port}", grpc.local_channel_credentials(), [("grpc.enable_http_proxy", 0)]
            )
            self._request = channel.unary_unary(METHOD)
        try:
            # a MetricRequest has the name as its field 1, like a StringValue
            return gauges(self._request(StringValue(value=name).SerializeToString(), timeout=SECONDS))
        except (grpc.RpcError, DecodeError):
            return None


def gauges(response: bytes) -> list[float]:
    """The gauge of each metric in a MetricResponse: metric (1), metrics (3), gauge (3), as_double (1) or as_int (2).

    Raises:
        DecodeError: not a protocol buffer.
    """
    values: list[float] = []
    for metric in _fields(response, 1):
        for chip in _fields(metric, 3):
            for gauge in _fields(chip, 3):
                values += [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in _fields(gauge, 1, 1)]
                values += _fields(gauge, 2, 0)
    return values


def _fields(message: bytes, number: int, wire_type: int = 2) -> list[Any]:
    """The values of one field: bytes of submessages (wire type 2), integers (0) or the bits of doubles (1)."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    parsed = Empty.FromString(message)  # holds every field as an unknown one
    return [
        field.data
        for field in UnknownFieldSet(parsed)
        if field.field_number == number and field.wire_type == wire_type
    ]
