"""OpenTelemetry traces and metrics, as received by a collector."""

import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from relight.core.status.rates import Rates
from relight.core.status.snapshot import NodeSnapshot, RankSnapshot, WholeJob
from relight.core.status.timeline import TimedEvent, history
from relight.events.event_types import Ended, Event, Formed, WorkerExited, WorkerStarted
from relight.inspect.page import otel
from relight.inspect.page.view_model import Reading

pytestmark = pytest.mark.needs_opentelemetry


class Collector:
    """A collector that records requests."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        self.traces: list[Any] = []
        self.metrics: list[Any] = []
        kinds = {"/v1/traces": (ExportTraceServiceRequest, self.traces),
                 "/v1/metrics": (ExportMetricsServiceRequest, self.metrics)}  # fmt: skip

        class Request(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                kind, got = kinds[self.path]
                got.append(kind.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Request)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def spans(self) -> dict[str, Any]:
        return {
            span.name: span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.address)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=vision")
    yield made
    made.server.shutdown()
    made.server.server_close()


def formed(number: int, restart: int, cause: str) -> Formed:
    return Formed(number, restart, 0, 1, 1, "n1", 1, cause)


EVENTS: tuple[Event, ...] = (
    formed(0, 0, "start"), WorkerStarted(0, 0, 9), WorkerExited(0, 1),
    formed(1, 1, "rank 0 raised ValueError: token=hunter2"), WorkerStarted(0, 0, 10),
    WorkerExited(0, 0), Ended(0, "all workers succeeded"),
)  # fmt: skip


def reading() -> Reading:
    rank = RankSnapshot(0, 0, 10, 0, 0, "", "", "")
    node = NodeSnapshot("train-7", "train", 7, "gpu-01", "r", ("train.py",), "", "default", 100.0,
                        110.0, "ended", 1, 1, 3, "x", 0, 1, 1, 0, "all succeeded", "",
                        (rank,))  # fmt: skip
    records = [TimedEvent(101.0 + at, event) for at, event in enumerate(EVENTS)]
    return Reading(WholeJob((node,)), Rates(), history({"gpu-01": records}, 100.0), True, False)


def test_trace_of_job_has_spans_per_generation_and_phase(collector: Collector) -> None:
    said: list[str] = []
    close = otel.start(reading, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address}, said.append)
    assert close is not None
    close()
    assert not said
    spans = collector.spans()
    job, first, second = spans["job train"], spans["generation 0"], spans["generation 1"]
    assert {span.trace_id for span in spans.values()} == {job.trace_id}
    assert (first.parent_span_id, second.parent_span_id) == (job.span_id, job.span_id)
    running = spans["running"]
    assert running.parent_span_id == second.span_id  # the last one with this name
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (101 * 10**9, 104 * 10**9)
    assert (running.start_time_unix_nano, running.end_time_unix_nano) == (105 * 10**9, 106 * 10**9)
    assert first.status.code == 2
    assert first.status.message == "rank 0 raised ValueError: token=<hidden>"
    assert second.status.code == job.status.code == 0
    resource = {a.key: a.value.string_value
                for a in collector.traces[0].resource_spans[0].resource.attributes}  # fmt: skip
    assert (resource["service.name"], resource["team"]) == ("relight", "vision")
    assert "hunter2" not in str(collector.traces)


def test_otel_metrics_match_prometheus_metrics(collector: Collector) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "OTEL_TRACES_EXPORTER": "none"}
    close = otel.start(reading, variables, lambda _: None)
    assert close is not None
    close()
    assert not collector.traces
    found = {
        metric.name: metric
        for metric in collector.metrics[-1].resource_metrics[0].scope_metrics[0].metrics
    }
    (restarts,) = found["relight_job_restarts"].sum.data_points
    assert restarts.as_double == 1.0
    states = {
        tuple(sorted((each.key, each.value.string_value) for each in point.attributes)):
        point.as_double
        for point in found["relight_job_state"].gauge.data_points
    }  # fmt: skip
    labels = (("job_id", "train-7@gpu-01"), ("job_name", "train"), ("state", "succeeded"))
    assert states[labels] == 1.0
    assert sum(states.values()) == 1.0


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x"}, ("TRACES", "METRICS")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_SDK_DISABLED": "True"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_METRICS_EXPORTER": "none"}, ("TRACES",)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_TRACES_EXPORTER": "console"}, ("METRICS",)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "x"}, ("METRICS",)),
    ],
)
def test_standard_otel_variables_select_traces_and_metrics(
    variables: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert otel.wanted(variables) == expected


def test_missing_otel_packages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job still runs, as the variables may be meant for its workers."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    said: list[str] = []
    assert otel.start(reading, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, said.append) is None
    assert "opentelemetry.sdk.resources is not installed: pip install 'opentelemetry-sdk" in said[0]


def test_unreachable_collector_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # nothing is listening there afterwards
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    said: list[str] = []
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    close = otel.start(reading, variables, said.append)
    assert close is not None
    close()
    assert len(said) == 1
    assert said[0].startswith("note: OpenTelemetry: ")


def test_unsupported_otlp_protocol_is_reported(collector: Collector) -> None:
    said: list[str] = []
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }  # fmt: skip
    close = otel.start(reading, variables, said.append)
    assert close is not None
    close()
    assert said == ["note: OTEL_EXPORTER_OTLP_PROTOCOL=grpc: unsupported, using http/protobuf"]
