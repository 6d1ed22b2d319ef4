"""The metrics of a job for Prometheus, by `prometheus-client`. docs/metrics.md lists them.

Names and units are those that Prometheus asks for (https://prometheus.io/docs/practices/naming/).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from relight.core.snapshot import ranks_of
from relight.errors import UsageError
from relight.sight.page.look import Reading, shown_state, state_of

_STATES = ("waiting", "running", "stopping", "done", "succeeded", "failed", "cancelled", "lost")
COUNTERS = frozenset({"relight_job_restarts", "relight_rank_cpu_seconds"})
"""Metrics that only rise, whose names end with `_total` for Prometheus."""
_OF_RANKS = (
    ("relight_rank_step", "The step that the rank has reported last."),
    ("relight_rank_steps_per_second", "Steps of the rank a second, over ten seconds."),
    ("relight_rank_cpu_seconds", "CPU time of the rank and all that it has started."),
    ("relight_rank_memory_bytes", "Memory of the rank and all that it has started."),
)
Family = tuple[str, str, list[tuple[dict[str, str], float]]]
_RANK_STATES = ("running", "succeeded", "failed", "killed", "stopped", "unknown")


def exposition(read: Callable[[], Reading]) -> tuple[str, bytes]:
    """Return the content type and the text of the metrics of a job.

    Args:
        read: returns what is known of it.

    Raises:
        UsageError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
    except ImportError:
        raise UsageError(
            "metrics need the package prometheus-client",
            hint="pip install 'relight[metrics]', in the environment of relight",
        ) from None
    registry = CollectorRegistry()
    registry.register(_Collector(read()))
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class _Collector:
    """Gives what was read to prometheus-client."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics: those that have samples."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        job = self._reading.job.nodes[0]
        own = {"job_name": job.name, "job_id": job.id}
        for name, text, samples in families(self._reading):
            kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            family = kind(name, text, labels=[*own, *samples[0][0]])
            for labels, value in samples:
                family.add_metric([*own.values(), *labels.values()], value)
            yield family


def families(reading: Reading) -> Iterator[Family]:
    """Yield all metrics that there are: name, help, samples."""
    job, state = reading.job.nodes[0], shown_state(reading)
    ranks = ranks_of(reading.job)
    counted = Counter(state_of(rank, node).split(" ")[0] for node, rank in ranks)
    labels = {"run_id": job.run_id, "host": job.host, "role": job.role}
    yield "relight_job_info", "The job; always 1.", [(labels, 1.0)]
    yield (
        "relight_job_state",
        "1 for the state that the job is in, 0 for the others.",
        [({"state": each}, float(each == state)) for each in _STATES],
    )
    for name, text, value in (
        ("start_time_seconds", "When its agent began, in seconds since 1970.", job.started),
        ("generation", "Number of its generation, -1 before the first.", job.generation),
        ("restarts", "Restarts after failures.", job.restart),
        ("restarts_allowed", "Restarts that --max-restarts allows.", job.max_restarts),
        ("nodes", "Nodes of its generation.", job.nodes),
        ("nodes_silent", "Nodes whose agents do not answer.", len(reading.job.silent)),
        ("world_size", "Ranks of its generation.", job.world_size),
        ("exit_code", "Its exit code, once it has ended.", job.exit_code),
    ):
        if value is not None:
            yield f"relight_job_{name}", text, [({}, float(value))]
    states = [({"state": each}, float(counted[each])) for each in _RANK_STATES]
    yield "relight_ranks", "Ranks by state.", states
    yield from _of_ranks(reading)
    yield from _of_goodput(reading.goodput)


def _of_ranks(reading: Reading) -> Iterator[Family]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name, _ in _OF_RANKS}
    for node, rank in ranks_of(reading.job):
        use, pace = rank.use, reading.rates.of(node, rank)
        if use is None:
            continue
        values = use.step, pace.steps, use.cpu_s, use.memory
        for (name, _), value in zip(_OF_RANKS, values, strict=True):
            if value is not None:
                labels = {"rank": str(rank.rank), "host": node.host}
                found[name].append((labels, float(value)))
    for name, text in _OF_RANKS:
        if found[name]:
            yield name, text, found[name]


def _of_goodput(put: Mapping[str, Any] | None) -> Iterator[Family]:
    if put is None:
        return
    phases = [({"phase": phase}, float(seconds)) for phase, seconds in put["phases"].items()]
    if phases:
        yield "relight_phase_seconds", "Time of the job by phase.", phases
    for key, name, text in (
        ("share", "relight_goodput_ratio", "Share of the time that was productive."),
        ("mttr", "relight_recovery_seconds_mean", "Mean time from a failure to the next step."),
        ("mtbf", "relight_between_failures_seconds_mean", "Mean time between failures."),
    ):
        if put[key] is not None:
            yield name, text, [({}, float(put[key]))]
