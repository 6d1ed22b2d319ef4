"""Exports a job's traces and metrics with OpenTelemetry (OTLP over HTTP), configured through the
standard variables
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).

Each job is exported as one trace. The root span has a child span for each generation, which in turn
has a child span for each phase on each node. Spans are sent when they end. Metrics have the same
names as in `metrics`.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from relight.core.status.snapshot import ENDED
from relight.core.status.timeline import Bar, GenerationRow
from relight.inspect.page import metrics
from relight.inspect.page.view_model import Reading, hidden

_EVERY_S = 1.0
_SIGNALS = ("TRACES", "METRICS")
_REMEDY = "pip install 'opentelemetry-sdk>=1.30' 'opentelemetry-exporter-otlp-proto-http>=1.30', in relight's environment"  # noqa: E501
_PROTOCOL = "http/protobuf"


def wanted(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return which signals the environment enables (TRACES, METRICS)."""
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ()
    common = bool(variables.get("OTEL_EXPORTER_OTLP_ENDPOINT"))
    return tuple(
        signal
        for signal in _SIGNALS
        if (common or variables.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"))
        and variables.get(f"OTEL_{signal}_EXPORTER", "otlp") == "otlp"
    )


def start(
    read: Callable[[], Reading], variables: Mapping[str, str], say: Callable[[str], None]
) -> Callable[[], None] | None:
    """Start the exports configured in the environment. Return a function that stops them, or None
    if nothing is configured.

    Args:
        read: returns the state of the job.
        variables: the environment variables.
        say: prints a line.
    """
    signals = wanted(variables)
    if not signals:
        return None
    protocol = variables.get("OTEL_EXPORTER_OTLP_PROTOCOL", _PROTOCOL)
    if protocol != _PROTOCOL:
        say(f"note: OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: unsupported, using {_PROTOCOL}")
    try:
        return _Sender(read, signals, say).close
    except ImportError as error:
        say(f"note: OpenTelemetry export is off because {error.name} is not installed: {_REMEDY}")
        return None


class _Sender:
    """Reads the job every second and passes the changes to OpenTelemetry."""

    def __init__(
        self, read: Callable[[], Reading], signals: Iterable[str], say: Callable[[str], None]
    ) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        self._read = read
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.addHandler(_FirstError(say))
        job = read().job.nodes[0]
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
        own = {"service.name": "relight", "service.instance.id": metrics.unique_id(job),
               "service.version": job.version, "host.name": job.host, "user.name": job.user,
               "relight.scheduler": job.scheduler,
               "relight.scheduler_job": job.scheduler_job}  # fmt: skip
        resource = Resource(own).merge(OTELResourceDetector().detect())
        self._trace = _Trace(resource) if "TRACES" in signals else None
        self._meters = _meters(read, resource) if "METRICS" in signals else None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Export the data that has not been sent yet."""
        self._over.set()
        self._thread.join()
        if self._meters is not None:
            self._meters.shutdown()

    def _run(self) -> None:
        if self._trace is None:
            return
        while not self._over.wait(_EVERY_S):
            self._trace.take(self._read())
        self._trace.take(self._read())
        self._trace.close()


class _Trace:
    """The spans of a job."""

    def __init__(self, resource: Any) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("relight")
        self._job: Any = None
        self._generations: dict[int, Any] = {}
        self._sent: set[tuple[str, int, str, float]] = set()
        """The phases that have been sent, each with its node, generation, name and start time."""
        self._taken = 0.0

    def take(self, reading: Reading) -> None:
        """Start and end spans to match the job's current state."""
        own = reading.job.nodes[0]
        self._taken = own.taken
        if self._job is None:
            labels = {"relight.job": own.id, "relight.name": own.name, "relight.run_id": own.run_id,
                      "relight.command": " ".join(own.command)}  # fmt: skip
            self._job = self._begin(f"job {own.name}", None, own.started, labels)
        rows = reading.history.generations
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            self._take_generation(row, after)
        for node, (bars, _) in reading.history.lanes.items():
            is_over = own.state == ENDED or reading.gone
            # The phases of a generation's workers are only known once the generation has ended.
            latest = max(bar.generation for bar in bars) + is_over
            self._take_phases(node, [bar for bar in bars if bar.generation < latest])
        if own.state == ENDED and own.exit_code:
            self._fail(self._job, own.reason)

    def close(self) -> None:
        """End open spans and flush."""
        for span in (*self._generations.values(), self._job):
            if span is not None and span.is_recording():
                span.end(_ns(self._taken))
        self._provider.shutdown()

    def _take_generation(self, row: GenerationRow, after: GenerationRow | None) -> None:
        span = self._generations.get(row.number)
        if span is None:
            labels = {"relight.generation": row.number, "relight.restart": row.restart,
                      "relight.nodes": row.nodes, "relight.ranks": row.ranks,
                      "relight.cause": hidden(row.cause)}  # fmt: skip
            span = self._begin(f"generation {row.number}", self._job, row.began, labels)
            self._generations[row.number] = span
        if row.ended is not None and span.is_recording():
            if after is not None and after.restart > row.restart:
                self._fail(span, hidden(after.cause))
            span.end(_ns(row.ended))

    def _take_phases(self, node: str, bars: Iterable[Bar]) -> None:
        for bar in bars:
            key = (node, bar.generation, bar.phase, bar.began)
            if bar.ended is not None and bar.ended > bar.began and key not in self._sent:
                self._sent.add(key)
                above = self._generations.get(bar.generation, self._job)
                span = self._begin(bar.phase, above, bar.began, {"host.name": node})
                span.end(_ns(bar.ended))

    def _begin(self, name: str, above: Any, at: float, labels: Mapping[str, Any]) -> Any:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        context = Context() if above is None else set_span_in_context(above, Context())
        return self._tracer.start_span(name, context, attributes=labels, start_time=_ns(at))

    def _fail(self, span: Any, reason: str) -> None:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR, reason)


def _meters(read: Callable[[], Reading], resource: Any) -> Any:
    """Return the meter provider, which exports metrics at the interval in
    OTEL_METRIC_EXPORT_INTERVAL.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    def observe(name: str) -> Callable[[Any], list[Any]]:
        def callback(_: Any) -> list[Any]:
            reading = read()
            own = metrics.job_labels(reading)
            samples = dict(metrics.families(reading)).get(name, [])
            return [Observation(value, {**own, **labels}) for labels, value in samples]

        return callback

    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    provider = MeterProvider([reader], resource=resource)
    meter = provider.get_meter("relight")
    for name, text in metrics.HELP.items():
        counts = name in metrics.COUNTERS
        create = meter.create_observable_counter if counts else meter.create_observable_gauge
        create(name, [observe(name)], description=text)
    return provider


class _FirstError(logging.Handler):
    """Reports the first error from OpenTelemetry, such as a collector that does not respond."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        """Report the error."""
        if not self._told:
            self._told = True
            self._say(f"note: OpenTelemetry: {' '.join(record.getMessage().split())[:300]}")


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
