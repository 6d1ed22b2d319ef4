"""Decides which nodes' surviving workers keep their process in the next generation.

A worker survives if it has left the process group of a stopped generation and is waiting for the
next one (core/workers/supervision, LEFT). The survivor's node sends `NodeReady`, just as a node
without workers does, because none of its workers is in a process group. `GenerationFormed`
specifies whether a node's survivors stay. Survivors stay if

- they belong to the generation immediately before the next one. This guarantees that all survivors
  have the same history, because a node that was cut off while the others continued restarts all of
  its ranks.
- the group never considered their node lost. The workers on a lost node may have been frozen for a
  long time.
- other ranks are to blame for the hang, if the generation ended with a hang. These are ranks that a
  node ended because they were not waiting for their peers.
- some rank advanced in their generation, if that generation began with survivors. If no rank
  advanced, the failure has recurred or it happened during the recovery, and all ranks start from
  the checkpoint.

The decision may differ between nodes, because new ranks receive their state from surviving ranks
(worker/replicas).
"""

from collections.abc import Iterable

from relight.core.diagnosis import hang_text
from relight.core.group.live_generation import LiveGeneration
from relight.core.group.members import Member
from relight.core.group.teardown import WorkerReports

NO_STEP = "all ranks restart: no rank has reported a new step since the last recovery"
STALE = "all ranks on this node restart: the next generation does not directly follow theirs"
UNKNOWN_CULPRIT = "all ranks restart: the rank that hangs is unknown"


def choose(members: Iterable[Member], last: LiveGeneration) -> tuple[set[str], dict[str, str]]:
    """Return the nodes whose survivors stay in the next generation, and the reason why the
    survivors on other nodes don't.

    Args:
        members: the nodes of the next generation.
        last: the last generation.
    """
    stay, refused = set[str](), dict[str, str]()
    is_hang = last.teardown.hung or last.reports.waiting  # a new coordinator has the latter
    is_known = not is_hang or _knows_culprit(last.reports)
    for member in members:
        ready = member.ready
        if ready is None or not ready.survivors:
            continue
        if ready.generation != last.id or member.node not in last.roster:
            refused[member.node] = STALE
        elif not is_known:
            refused[member.node] = UNKNOWN_CULPRIT
        elif last.roster.survivors and not last.reports.progressed:
            refused[member.node] = NO_STEP
        else:
            stay.add(member.node)
    return stay, refused


def _knows_culprit(reports: WorkerReports) -> bool:
    """Return whether the rank that is to blame for a hang is among the ranks that their nodes have
    ended.
    """
    ends = [failure for failure in reports.failures if failure.exitcode]
    hang = hang_text.diagnose([*ends, *reports.waiting], "")
    if hang is None or hang.is_unknown:
        return False
    return not {each.rank for each in reports.waiting}.intersection(hang.ranks)
