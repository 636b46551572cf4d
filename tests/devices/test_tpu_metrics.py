"""The metrics service of libtpu, played with real protocol buffers on loopback and as strict as its definition."""

import mmap
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trm.devices import tpu_metrics
from trm.devices.tpu_metrics import DUTY_CYCLE, HBM_TOTAL, HBM_USED, TpuMetrics, Use, gauges

grpc = pytest.importorskip("grpc")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
LIBTPU = Path(__file__).parents[2] / ".venv-tpu/lib/python3.11/site-packages/libtpu/libtpu.so"
PACKAGE = "tpu.monitoring.runtime"
DOUBLE, INT64, BOOL, STRING, MESSAGE = 1, 3, 8, 9, 11
MESSAGES = {  # of tpu_metric_service.proto: name -> (field, number, type, message, part of a oneof)
    "Gauge": [("as_double", 1, DOUBLE, "", True), ("as_int", 2, INT64, "", True)],
    "AttrValue": [("string_attr", 1, STRING, "", True), ("int_attr", 3, INT64, "", True)],
    "Attribute": [("key", 1, STRING, "", False), ("value", 2, MESSAGE, "AttrValue", False)],
    "Timestamp": [("seconds", 1, INT64, "", False)],
    "Metric": [
        ("attribute", 1, MESSAGE, "Attribute", False),
        ("timestamp", 2, MESSAGE, "Timestamp", False),
        ("gauge", 3, MESSAGE, "Gauge", True),
    ],
    "TPUMetric": [
        ("name", 1, STRING, "", False),
        ("description", 2, STRING, "", False),
        ("metrics", 3, MESSAGE, "Metric", False),
    ],
    "MetricRequest": [("metric_name", 1, STRING, "", False), ("skip_node_aggregation", 2, BOOL, "", False)],
    "MetricResponse": [("metric", 1, MESSAGE, "TPUMetric", False)],
}


def messages() -> dict[str, type]:
    """The classes of the messages."""
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if any(item[4] for item in fields):
            message.oneof_decl.add(name="one")
        for field, number, kind, type_name, one in fields:
            made = message.field.add(
                name=field, number=number, type=kind, label=3 if field == "metrics" else 1
            )
            if type_name:
                made.type_name = f".{PACKAGE}.{type_name}"
            if one:
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }


TYPES = messages()


def response(name: str, values: list[float]) -> bytes:
    """A metric of each chip, as libtpu answers: integers of bytes, doubles of percentages."""
    answer = TYPES["MetricResponse"]()
    answer.metric.name, answer.metric.description = name, "of each chip"
    for chip, value in enumerate(values):
        metric = answer.metric.metrics.add()
        metric.attribute.key, metric.attribute.value.int_attr = "device-id", chip
        metric.timestamp.seconds = 1_700_000_000
        if isinstance(value, int):
            metric.gauge.as_int = value
        else:
            metric.gauge.as_double = value
    return answer.SerializeToString()


class Service(grpc.GenericRpcHandler):
    """Answers GetRuntimeMetric alone, and refuses metrics that it lacks and requests with anything unknown in them."""

    def __init__(self, metrics: dict[str, list[float]]):
        self.metrics, self.asked = metrics, []

    def service(self, call):
        if call.method == f"/{PACKAGE}.RuntimeMetricService/GetRuntimeMetric":
            return grpc.unary_unary_rpc_method_handler(self.answer)
        return None

    def answer(self, request: bytes, context) -> bytes:
        asked = TYPES["MetricRequest"].FromString(request)
        if asked.SerializeToString() != request or asked.metric_name not in self.metrics:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no metric {asked.metric_name!r}")
        self.asked.append(asked.metric_name)
        return response(asked.metric_name, self.metrics[asked.metric_name])


@pytest.fixture
def serve():
    """Starts the service with some metrics and returns its port; with it, the service."""
    servers = []

    def start(metrics: dict[str, list[float]]) -> tuple[int, Service]:
        service = Service(metrics)
        server = grpc.server(ThreadPoolExecutor(1), handlers=[service])
        port = server.add_secure_port("localhost:0", grpc.local_server_credentials())
        server.start()
        servers.append(server)
        return port, service

    yield start
    for server in servers:
        server.stop(None).wait()


def test_a_host_s_chips_are_read(serve, monkeypatch):
    used = [0, 8_522_039_296, 17_044_078_592, 5]
    port, service = serve(
        {HBM_USED: used, HBM_TOTAL: [34_088_157_184] * 4, DUTY_CYCLE: [0.0, 25.0, 50.0, 99.0]}
    )
    monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", f"{port},{port + 1}")
    found = TpuMetrics().read()
    assert found == Use(17_044_078_592, 34_088_157_184, 43.5)
    assert str(found) == "HBM 15.9 of 31.7 GiB, duty cycle 44 %"
    assert service.asked == [HBM_USED, HBM_TOTAL, DUTY_CYCLE]


def test_a_metric_that_is_not_there_is_left_out(serve):
    port, _ = serve({HBM_USED: [1 << 30], HBM_TOTAL: [1 << 35]})
    assert TpuMetrics(port).read() == Use(1 << 30, 1 << 35, None)
    port, _ = serve({DUTY_CYCLE: []})  # known, but not measured yet
    assert TpuMetrics(port).read() == Use(None, None, None)


def test_where_nothing_listens_it_is_asked_once(monkeypatch):
    metrics = TpuMetrics(1)
    assert metrics.read() == Use(None, None, None)
    monkeypatch.setattr(metrics, "_values", lambda name: pytest.fail("asked again"))
    assert str(metrics.read()) == ""


@given(st.lists(st.one_of(st.integers(0, 2**63 - 1), st.floats(allow_nan=False)), max_size=9))
def test_any_gauges_are_decoded(values):
    assert gauges(response("x", values)) == values


@given(st.binary(max_size=40))
def test_noise_is_refused_or_empty(noise):
    try:
        found = gauges(noise)
    except ValueError:
        return
    assert all(isinstance(value, int | float) for value in found)


def test_a_message_cut_short_is_refused():
    whole = response("x", [struct.unpack("<d", b"\x01" * 8)[0]])
    for end in range(1, len(whole)):
        with pytest.raises(ValueError, match="the message ends within"):
            gauges(whole[:end])


@pytest.mark.skipif(not LIBTPU.exists(), reason="needs the TPU environment")
def test_libtpu_has_the_service_and_the_metrics():
    with open(LIBTPU, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        names = (tpu_metrics.METHOD, HBM_USED, HBM_TOTAL, DUTY_CYCLE, "TPU_RUNTIME_METRICS_PORTS")
        assert [name for name in names if library.find(name.encode()) < 0] == []
