"""Decides when to form the next generation, or to give up, and which nodes it has, by rank.

    TOO FEW     too few nodes are ready
      | enough are ready                                            -> LAST CALL
      | the join timeout passes                                     -> gives up
    LAST CALL   enough nodes are ready; others may join
      | too few are left                                            -> TOO FEW
      | the maximum is ready, or no newcomer arrives for a while    -> formed
      | at most a few times that long has passed                    -> formed

Only the first generation has a last call. A later one forms as soon as enough nodes are ready:

- The group waits only for survivors, never for nodes that have not joined. A silent survivor keeps
  its place until a message from it arrives or it is lost (core/group/silence). A silent node never
  enters a new generation.
- Workers of an unknown generation may be running (core/group/foreign_leases).
- After repeated failures, the workers start only after a delay.

Survivors keep their order, a newcomer takes the place of a lost node, and other newcomers come
last. In the first generation, nodes are sorted by host name in natural order. Numbered nodes are
sorted by their numbers, and the group does not wait for missing numbers. A node that `comes_first`
hosts rank 0. If the user requests it, all nodes are sorted by network topology instead
(core/group/rank_order).

A generation consists of whole segments (`--segment`), and has at most the maximum number of nodes.
The remaining nodes are spares. The group does not wait for a survivor's segment to fill; the
survivor is left out instead.
"""

from relight.core import ranks
from relight.core.group import group_messages
from relight.core.group.foreign_leases import ForeignLeases
from relight.core.group.group_types import GroupSettings
from relight.core.group.members import Member, Members
from relight.core.group.roster import Roster

_LAST_CALLS = 3
"""Maximum length of the last call, in multiples of `settle_timeout_s`. Each join extends it."""


class Formation:
    """The generation that is being formed. The last roster is empty before the first generation.

    Args:
        settings: the group's settings.
        members: the connected nodes.
        leases: the leases that other coordinators may have granted.
    """

    def __init__(self, settings: GroupSettings, members: Members, leases: ForeignLeases) -> None:
        self._settings = settings
        self._members = members
        self.leases = leases
        self.since = 0.0
        self.departure = ""
        """The node that has left in the meantime, and why."""
        self._enough_since: float | None = None  # when the last call began
        self._not_before = 0.0  # earliest start of the next generation, after repeated failures

    def begin(self, now: float) -> None:
        """Begin to form the next generation, because all workers have stopped."""
        self.since, self._not_before, self.departure = now, 0.0, ""

    def delay(self, delay_s: float, now: float) -> None:
        """Let the nodes wait before the workers start again."""
        self.since = self._not_before = now + delay_s

    def end(self) -> None:
        """Record that the generation was formed."""
        self._enough_since = None

    def has_enough(self) -> bool:
        """Return whether enough nodes are ready."""
        return self._members.count_ready() >= self._settings.needed

    def is_due(self, last: Roster, now: float) -> bool:
        """Return whether it is time to form a generation, or to give up without enough nodes."""
        if not self.has_enough():
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        return now >= self.deadline(last)

    def deadline(self, last: Roster) -> float:
        """Return the time when the ready nodes will form a generation, or the group gives up,
        unless nodes join or leave before then.
        """
        return self._forms_at(last) if self.has_enough() else self._gives_up_at()

    def settle_deadline(self) -> float:
        """Return the time when the group stops waiting for more nodes, unless another node joins
        before then.
        """
        settle_timeout_s, since = self._settings.settle_timeout_s, self._enough_since
        if since is None:
            arrivals = sorted(member.arrived_at for member in self._members.ready())
            since = next(iter(arrivals[self._settings.segment - 1 :]), 0.0)
        latest = self._members.latest_regular_arrival(since)
        return min(latest + settle_timeout_s, since + _LAST_CALLS * settle_timeout_s)

    def _forms_at(self, last: Roster) -> float:
        if len(last):
            silence = self._members.silence  # because a silent survivor keeps its place
            back = (silence.lost_at(node) for node in silence if node in last)
            return max(self._not_before, *back, 0.0)
        over = 0.0 if self._is_full() else min(self.settle_deadline(), self._gives_up_at())
        return max(over, self.leases.expiry())

    def _gives_up_at(self) -> float:
        return self.since + self._settings.join_timeout_s

    def _is_full(self) -> bool:
        """Return whether the first generation can start without waiting for more nodes."""
        most = self._settings.max_nodes
        return self._members.count_ready() >= most and (
            self._settings.needed == most or len(self._members.regular()) >= most
        )

    def choose(self, last: Roster, now: float) -> list[Member]:
        """Return the nodes of the next generation, in rank order."""
        ready, settings = self._members.candidates(now), self._settings
        size = settings.whole(min(len(ready), settings.max_nodes))
        here = {member.node for member in ready}
        survivors = [node if node in here else None for node in last.order]
        stay = [self._members[node] for node in survivors if node is not None]
        newcomers = [member for member in ready if member.node not in last]
        if settings.by_topology:
            from relight.core.group.rank_order import by_topology

            return by_topology([*stay, *newcomers], size, settings.segment)
        newcomers = newcomers[: max(0, size - len(stay))]
        if not len(last):
            newcomers = self._members.by_host(newcomers)
        order = ranks.arrange(survivors, [member.node for member in newcomers], size)
        numbers = {m.node: m.join.node_rank for m in ready if m.join.node_rank >= 0}
        members = [self._members[node] for node in ranks.as_numbered(order, numbers)]
        return sorted(members, key=lambda member: not member.join.comes_first)

    def explain(self, last: Roster, cause: str, now: float) -> str:
        """Describe what the group is waiting for.

        Args:
            last: the nodes of the last generation.
            cause: the reason why that generation ended.
            now: the current time.
        """
        settings, members = self._settings, self._members
        if now < self._not_before:
            return cause
        if members.reachability is not None and members.reachability.until is not None:
            return "the nodes are testing their connections (--health-check=network)"
        hosts = [member.join.host for member in members]
        left = self._gives_up_at() - now
        if len(hosts) < settings.needed:
            why = self.departure or (cause if len(last) else "")
            return group_messages.too_few(hosts, settings.needed, settings.max_nodes, left, why)
        if not self.has_enough():
            return group_messages.not_ready([m.join.host for m in members.not_ready()], left)
        expiry = self.leases.expiry()
        if now < expiry == self._forms_at(last):
            return group_messages.earlier_generation(hosts, expiry - now, self.leases.predecessor)
        return group_messages.last_call(hosts, settings.max_nodes, settings.settle_timeout_s)
