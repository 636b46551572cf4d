"""Memory in use and duty cycle, read from the stand-in for libtpu's metrics service."""

import mmap
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trm.backends.tpu import metrics as tpu_metrics
from trm.backends.tpu.metrics import DUTY_CYCLE, HBM_TOTAL, HBM_USED, TpuMetrics, Use, gauges

pytest.importorskip("grpc")
pytest.importorskip("google.protobuf.descriptor_pb2")

import grpc
from google.protobuf.message import DecodeError

from tests.backends.metrics_service import Service, response

LIBTPU = Path(__file__).parents[2] / ".venv-tpu/lib/python3.11/site-packages/libtpu/libtpu.so"


@pytest.fixture
def serve():
    """Starts the service with some metrics; returns its port and the service."""
    servers = []

    def start(metrics: dict[str, list[float]]) -> tuple[int, Service]:
        service = Service(metrics)
        servers.append(grpc.server(ThreadPoolExecutor(1), handlers=[service]))
        port = servers[-1].add_secure_port("localhost:0", grpc.local_server_credentials())
        servers[-1].start()
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
    except DecodeError:
        return
    assert all(isinstance(value, int | float) for value in found)


def test_a_message_cut_short_is_refused():
    whole = response("x", [struct.unpack("<d", b"\x01" * 8)[0]])
    for end in range(1, len(whole)):
        with pytest.raises(DecodeError):
            gauges(whole[:end])


@pytest.mark.skipif(not LIBTPU.exists(), reason="needs the TPU environment")
def test_libtpu_has_the_service_and_the_metrics():
    with open(LIBTPU, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        names = (tpu_metrics.METHOD, HBM_USED, HBM_TOTAL, DUTY_CYCLE, "TPU_RUNTIME_METRICS_PORTS")
        assert [name for name in names if library.find(name.encode()) < 0] == []
