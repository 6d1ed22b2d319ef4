"""Adds to a submitted job's status what its agents have saved in the directory of the job's logs,
such as the steps and the numbers that the workers report.
"""

import os
from collections.abc import Iterable, Iterator, Mapping

from relight.core.status.charts import job_charts, job_progress
from relight.core.status.snapshot import ENDED, STATUS_FILE, NodeSnapshot, RankUse, WholeJob
from relight.host import files
from relight.job.handles import RUN, Handle
from relight.job.status import AppStatus, ReplicaStatus
from relight.processes.running_jobs import MAX_BYTES, read_snapshot
from relight.runner import event_log

_CLOCK_DIFFERENCE_S = 10.0
"""The clocks of a job's hosts are assumed to differ by at most this much."""
Snapshots = Mapping[tuple[str, int], NodeSnapshot]
"""The latest snapshot of each replica."""


def with_reports(job: Handle, found: AppStatus) -> AppStatus:
    """Return a job's status with the progress, the charts and the account of the first role that
    has any, and with the last line and the resource usage of each replica. The status of jobs whose
    logs aren't on this machine is returned unchanged. A job that is over has no rate, even if its
    agents were killed and couldn't save their last snapshots.
    """
    if job.scheduler == RUN:
        return found
    paths = event_log.paths_below(job._replace(role=""), found.url, STATUS_FILE)
    latest = _latest(paths)
    if not latest:
        return found
    progress, charts, account = found.progress, found.charts, found.account
    for role in dict.fromkeys(role for role, _ in sorted(latest)):
        whole = _group(node for (name, _), node in latest.items() if name == role)
        progress, charts = progress or job_progress(whole), charts or job_charts(whole)
        account = account or next((node.account for node in whole.nodes if node.node == 0), None)
    if progress is not None and found.state.is_over:
        progress = progress._replace(rate=None, remaining_s=None)
    replicas = tuple(_with_report(each, latest) for each in found.replicas)
    return found._replace(progress=progress, charts=charts, account=account, replicas=replicas)


def _latest(paths: Iterable[str]) -> Snapshots:
    """Return each replica's latest snapshot, leaving out those from before a retry of its role.
    Agents that are running are on hosts whose clocks may differ. Other roles may start later.
    """
    found: dict[tuple[str, int], NodeSnapshot] = {}
    for role, node in _read(paths):
        key = role, node.replica or 0
        if key not in found or found[key].started < node.started:
            found[key] = node
    began = dict[str, float]()
    for (role, _), node in found.items():
        began[role] = max(began.get(role, 0.0), node.started)

    def is_current(role: str, node: NodeSnapshot) -> bool:
        margin_s = 0.0 if node.state == ENDED else _CLOCK_DIFFERENCE_S
        return node.taken + margin_s >= began[role]

    return {key: node for key, node in found.items() if is_current(key[0], node)}


def _read(paths: Iterable[str]) -> Iterator[tuple[str, NodeSnapshot]]:
    for path in paths:
        try:
            with files.opened(path) as file:
                node = read_snapshot(file.read(MAX_BYTES))
        except OSError:
            continue
        if node is not None:
            yield os.path.basename(os.path.dirname(os.path.dirname(path))), node


def _group(nodes: Iterable[NodeSnapshot]) -> WholeJob:
    """Return the members of a role's latest generation. A node that was lost still has its last
    snapshot.
    """
    every = sorted(nodes, key=lambda node: node.node)
    generation = max(node.generation for node in every)
    return WholeJob(tuple(node for node in every if node.generation == generation))


def _with_report(replica: ReplicaStatus, latest: Snapshots) -> ReplicaStatus:
    node = latest.get((replica.role, replica.replica))
    if node is None:
        return replica
    uses = [rank.use for rank in node.ranks if rank.use is not None]
    lines = (rank.last_line for rank in node.ranks if rank.last_line)
    return replica._replace(
        last_line=replica.last_line or next(lines, ""),
        use=replica.use or (_sum(uses) if uses else None),
        topology=replica.topology or node.topology,
    )


def _sum(uses: list[RankUse]) -> RankUse:
    """Return the total usage of a replica's ranks, and the progress of the slowest rank."""
    stepping = [use for use in uses if use.step is not None]
    slowest = min(stepping or uses, key=lambda use: use.step or 0)
    return slowest._replace(
        cpu_s=sum(use.cpu_s for use in uses),
        memory=sum(use.memory for use in uses),
        reported=next((use.reported for use in uses if use.reported), ()),
    )
