"""libtpu's metrics service, played on loopback with real protocol buffers and as strict as its definition."""

import grpc
from google.protobuf import descriptor_pb2

PACKAGE = "tpu.monitoring.runtime"
DOUBLE, INT64, BOOL, STRING, MESSAGE = 1, 3, 8, 9, 11
MESSAGES = {  # of tpu_metric_service.proto: name -> (field, number, type, message, part of a oneof)
    "Gauge": [("as_double", 1, DOUBLE, "", True), ("as_int", 2, INT64, "", True)],
    "AttrValue": [("string_attr", 1, STRING, "", True), ("int_attr", 3, INT64, "", True)],
    "Attribute": [("key", 1, STRING, "", False), ("value", 2, MESSAGE, "AttrValue", False)],
    "Timestamp": [("seconds", 1, INT64, "", False)],
    "Metric": [("attribute", 1, MESSAGE, "Attribute", False), ("timestamp", 2, MESSAGE, "Timestamp", False),
               ("gauge", 3, MESSAGE, "Gauge", True)],
    "TPUMetric": [("name", 1, STRING, "", False), ("description", 2, STRING, "", False),
                  ("metrics", 3, MESSAGE, "Metric", False)],
    "MetricRequest": [("metric_name", 1, STRING, "", False), ("skip_node_aggregation", 2, BOOL, "", False)],
    "MetricResponse": [("metric", 1, MESSAGE, "TPUMetric", False)],
}  # fmt: skip


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
