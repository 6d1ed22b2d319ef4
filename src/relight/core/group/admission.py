"""Decides which newcomers are admitted while a generation is running, and when.

Newcomers wait until they fill a segment, and nodes that arrive during the same last call are
admitted together. A host with flapping nodes (core/group/flapping) does not make other nodes wait
or restart. Newcomers are not admitted while a node of the generation is silent.
"""

from relight.core.group.formation import Formation
from relight.core.group.group_types import GroupSettings
from relight.core.group.members import Member, Members
from relight.core.group.roster import Roster


class Admission:
    """The admission of newcomers to a generation's nodes.

    Args:
        settings: the group's settings.
        members: the connected nodes.
        formation: knows how long a last call lasts.
    """

    def __init__(self, settings: GroupSettings, members: Members, formation: Formation) -> None:
        self._settings = settings
        self._members = members
        self._formation = formation

    def room(self, roster: Roster, waiting: int) -> int:
        """Return how many of the `waiting` nodes fit into the live generation."""
        return self._settings.whole(min(waiting, self._settings.max_nodes - len(roster)))

    def deadline(self, roster: Roster) -> float | None:
        """Return the time at which to admit waiting nodes, or None."""
        return self._admission_time() if self._has_capacity(roster) else None

    def newcomers(self, roster: Roster, now: float) -> list[Member]:
        """Return the nodes to admit now."""
        if not self._has_capacity(roster):
            return []
        regular, room = self._members.regular(), self._settings.max_nodes - len(roster)
        if len(regular) < room and now < self._admission_time():
            return []
        settled = [member for member in self._members.ready() if now >= member.admitted_after]
        return settled[: self.room(roster, len(settled))]

    def _has_capacity(self, roster: Roster) -> bool:
        """Return whether waiting nodes may be admitted. A job that is about to end does not admit
        any nodes.
        """
        may = self.room(roster, self._members.count_ready()) > 0 and not roster.is_ending
        silent = any(node in roster for node in self._members.silence)
        return may and not silent

    def _admission_time(self) -> float:
        times = sorted(member.admitted_after for member in self._members.ready())
        segment_at = times[self._settings.segment - 1]
        together = [at for at in times if at <= segment_at + self._settings.settle_timeout_s]
        return max(together[-1], self._formation.settle_deadline())
