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

from collections.abc import Iterable, Sequence

from relight.core.diagnosis import hang_text
from relight.core.failure import Failure
from relight.core.group.members import Member
from relight.core.group.roster import Roster
from relight.core.ranks import GenerationId

NO_STEP = "all ranks restart: no rank has reported a new step since the last recovery"
STALE = "all ranks on this node restart: the next generation does not directly follow theirs"
UNKNOWN_CULPRIT = "all ranks restart: the rank that hangs is unknown"


def knows_culprit(failures: Iterable[Failure], waiting: Sequence[Failure]) -> bool:
    """Return whether the rank that is to blame for a hang is among the ranks that their nodes have
    ended.

    Args:
        failures: the workers that have ended.
        waiting: the survivors of a hang.
    """
    hang = hang_text.diagnose([*(each for each in failures if each.exitcode), *waiting], "")
    if hang is None or hang.is_unknown:
        return False
    return not {each.rank for each in waiting}.intersection(hang.ranks)


def choose(
    members: Iterable[Member],
    before: Roster,
    last: GenerationId,
    *,
    progressed: bool,
    knows_culprit: bool,
) -> tuple[set[str], dict[str, str]]:
    """Return the nodes whose survivors stay in the next generation, and the reason why the
    survivors on other nodes don't.

    Args:
        members: the nodes of the next generation.
        before: the nodes of the last generation.
        last: the last generation.
        progressed: whether the ranks in the last generation advanced beyond all earlier ranks.
        knows_culprit: whether it is known which rank hung, if the last generation ended because of
            a hang.
    """
    stay, refused = set[str](), dict[str, str]()
    for member in members:
        ready = member.ready
        if ready is None or not ready.survivors:
            continue
        if ready.generation != last or member.node not in before:
            refused[member.node] = STALE
        elif not knows_culprit:
            refused[member.node] = UNKNOWN_CULPRIT
        elif before.survivors and not progressed:
            refused[member.node] = NO_STEP
        else:
            stay.add(member.node)
    return stay, refused
