"""Exports a job's Prometheus metrics with `prometheus-client`. docs/metrics.md lists the metrics.

Names and units follow the Prometheus conventions (https://prometheus.io/docs/practices/naming/).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from relight.base.errors import UsageError
from relight.core.status.charts import job_progress, numbers_in
from relight.core.status.snapshot import NodeSnapshot, ranked_workers
from relight.inspect.gpus import Gpu
from relight.inspect.page.view_model import Reading, rank_state, shown_state

HELP = {
    "relight_job_info": "The job; always 1.",
    "relight_job_state": "1 for the state that the job is in, 0 for the others.",
    "relight_job_start_time_seconds": "When its agent started, in seconds since 1970.",
    "relight_job_generation": "Number of its generation, -1 before the first.",
    "relight_job_restarts": "Restarts after failures.",
    "relight_job_restarts_allowed": "Restarts that --max-restarts allows.",
    "relight_job_nodes": "Nodes of its generation.",
    "relight_job_nodes_silent": "Nodes whose agents are not responding.",
    "relight_job_world_size": "Ranks of its generation.",
    "relight_job_exit_code": "Its exit code, once it has ended.",
    "relight_ranks": "Ranks by state.",
    "relight_rank_step": "The last step that the rank has reported.",
    "relight_rank_steps_per_second": "Steps per second of the rank, over 15 seconds.",
    "relight_rank_reported": "The last number with this name that the rank has reported.",
    "relight_rank_cpu_seconds": "CPU time of the rank and all processes that it has started.",
    "relight_rank_memory_bytes": "Memory of the rank and all processes that it has started.",
    "relight_gpu_busy_ratio": "Share of the time in which a GPU of this host was busy.",
    "relight_gpu_memory_used_bytes": "Memory in use on the GPU, by all processes.",
    "relight_gpu_memory_bytes": "Total memory of the GPU.",
    "relight_job_steps": "Total number of training steps, if the script reports it.",
    "relight_job_remaining_seconds": "Time until the last step, at the recent pace.",
    "relight_phase_seconds": "Time of the job by phase, as the node of rank 0 knows it.",
    "relight_goodput_ratio": "Share of the time that was productive.",
    "relight_job_failures": "Failures of the job.",
    "relight_host_failures": "Failures that started on the host.",
    "relight_host_between_failures_seconds_mean": "Mean time that workers ran, for each of those.",
    "relight_recovery_seconds_mean": "Mean time from a failure until the workers continued.",
    "relight_between_failures_seconds_mean": "Mean time that workers ran, for each failure.",
}
"""All metrics, with their help texts."""
COUNTERS = frozenset({
    "relight_job_restarts", "relight_job_failures", "relight_host_failures",
    "relight_rank_cpu_seconds",
})  # fmt: skip
"""Metrics that only increase. In Prometheus, their names end in `_total`."""
Samples = list[tuple[dict[str, str], float]]
"""Pairs of a label set and a value."""
_STATES = ("waiting", "running", "stopping", "done", "succeeded", "failed", "cancelled", "lost")
_RANK_STATES = ("running", "succeeded", "failed", "killed", "hung", "stopped", "unknown")


def exposition(
    read: Callable[[], Reading], look: Callable[[], Sequence[Gpu]] = tuple
) -> tuple[str, bytes]:
    """Return the content type and body of a job's metrics.

    Args:
        read: returns the state of the job.
        look: returns the GPUs on this host.

    Raises:
        UsageError: if prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
    except ImportError:
        raise UsageError(
            "metrics require the prometheus-client package",
            hint="pip install 'prometheus-client>=0.20', in relight's environment",
        ) from None
    registry = CollectorRegistry()
    registry.register(_Collector(read(), look()))
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class _Collector:
    """Presents a job's state through the collector interface of prometheus-client."""

    def __init__(self, reading: Reading, gpus: Sequence[Gpu]) -> None:
        self._reading, self._gpus = reading, gpus

    def collect(self) -> Iterator[Any]:
        """Yield the metric families that have samples."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        own = job_labels(self._reading)
        host = self._reading.job.nodes[0].host
        for name, samples in (*families(self._reading), *_gpu_samples(host, self._gpus)):
            kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            family = kind(name, HELP[name], labels=[*own, *samples[0][0]])
            for labels, value in samples:
                family.add_metric([*own.values(), *labels.values()], value)
            yield family


def job_labels(reading: Reading) -> dict[str, str]:
    """Return the labels that all metrics of a job have in common."""
    job = reading.job.nodes[0]
    return {"job_name": job.name, "job_id": unique_id(job)}


def unique_id(job: NodeSnapshot) -> str:
    """Return a job id that is unique across a fleet. A pid on its own is unique only within its
    host.
    """
    return f"{job.id}@{job.host}"


def families(reading: Reading) -> Iterator[tuple[str, Samples]]:
    """Yield the name and the samples of each metric whose values are known."""
    job, state = reading.job.nodes[0], shown_state(reading)
    counted = Counter(
        rank_state(rank, node).split(" ")[0] for node, rank in ranked_workers(reading.job)
    )
    info = {"run_id": job.run_id, "host": job.host, "role": job.role, "user": job.user}
    info |= {"scheduler": job.scheduler, "scheduler_job": job.scheduler_job}
    yield "relight_job_info", [({**info, "version": job.version}, 1.0)]
    yield "relight_job_state", [({"state": each}, float(each == state)) for each in _STATES]
    yield "relight_ranks", [({"state": each}, float(counted[each])) for each in _RANK_STATES]
    values: dict[str, float | None] = {
        "relight_job_start_time_seconds": job.started,
        "relight_job_generation": job.generation,
        "relight_job_restarts": job.restart,
        "relight_job_restarts_allowed": job.max_restarts,
        "relight_job_nodes": job.nodes,
        "relight_job_nodes_silent": len(reading.job.silent),
        "relight_job_world_size": job.world_size,
        "relight_job_exit_code": job.exit_code,
    }
    if (progress := job_progress(reading.job)) is not None:
        values["relight_job_steps"] = progress.total
        values["relight_job_remaining_seconds"] = progress.remaining_s
    if (account := job.account) is not None:
        phases = account.total._asdict().items()
        yield "relight_phase_seconds", [({"phase": n}, s) for n, s in phases if s is not None]
        if account.nodes:
            hosts = [({"host": node.host}, node) for node in account.nodes]
            yield "relight_host_failures", [(host, float(n.failures)) for host, n in hosts]
            name = "relight_host_between_failures_seconds_mean"
            yield name, [(host, n.mtbf_s) for host, n in hosts]
        values["relight_goodput_ratio"] = account.goodput
        values["relight_job_failures"] = account.failures
        values["relight_recovery_seconds_mean"] = account.mttr_s
        values["relight_between_failures_seconds_mean"] = account.mtbf_s
    for name, value in values.items():
        if value is not None:
            yield name, [({}, float(value))]
    yield from _rank_samples(reading)


def _gpu_samples(host: str, gpus: Sequence[Gpu]) -> Iterator[tuple[str, Samples]]:
    found: dict[str, Samples] = {}
    for gpu in gpus:
        values = (
            ("relight_gpu_busy_ratio", gpu.busy, 0.01),
            ("relight_gpu_memory_used_bytes", gpu.used_mib, 1 << 20),
            ("relight_gpu_memory_bytes", gpu.total_mib, 1 << 20),
        )
        for name, value, unit in values:
            if value is not None:
                labels = {"gpu": str(gpu.number), "model": gpu.model, "host": host}
                found.setdefault(name, []).append((labels, value * unit))
    yield from found.items()


def _rank_samples(reading: Reading) -> Iterator[tuple[str, Samples]]:
    found: dict[str, Samples] = {}
    for node, rank in ranked_workers(reading.job):
        use, pace = rank.use if rank.exitcode is None else None, reading.rates.pace(node, rank)
        values = () if use is None else (
            ("relight_rank_step", use.step), ("relight_rank_steps_per_second", pace.steps),
            ("relight_rank_cpu_seconds", use.cpu_s), ("relight_rank_memory_bytes", use.memory),
        )  # fmt: skip
        labels = {"rank": str(rank.rank), "host": node.host}
        for name, value in values:
            if value is not None:
                found.setdefault(name, []).append((labels, float(value)))
        for name, number in numbers_in(use.reported if use is not None else ()).items():
            own = {**labels, "name": name}
            found.setdefault("relight_rank_reported", []).append((own, number))
    yield from found.items()
