"""Knows which generations earlier coordinators have formed, and until when the workers of such a
generation may be running on a lease.

- A coordinator that learns about an unknown generation does not form a new one while workers of
  that generation may be running.
- A new generation's number is higher than all numbers that nodes have reported. If two groups have
  formed generations with the same number, the generations' `origin` differs.
"""

from relight.core.group.group_types import GroupSettings
from relight.core.group.members import Members
from relight.core.ranks import NO_GENERATION, GenerationId

MAX_NUMBER = 1 << 40
"""Sanity limit. Higher generation numbers from nodes are ignored."""


class GenerationCounter:
    """Assigns numbers to generations. Each number is higher than all numbers known to the group."""

    def __init__(self, origin: str) -> None:
        self.latest = NO_GENERATION
        """The known generation that has the highest number."""
        self.origin = origin

    def record_generation(self, generation: GenerationId) -> None:
        """Record a generation that a node reported."""
        latest = self.latest
        if latest.number < generation.number < MAX_NUMBER:
            self.latest = generation
        elif latest.number == generation.number and latest.origin != generation.origin:
            self.latest = latest._replace(origin="")  # several generations have this number

    def next(self) -> GenerationId:
        """Return a new generation's ID."""
        self.latest = GenerationId(self.latest.number + 1, self.origin)
        return self.latest


class ForeignLeases:
    """The leases that other coordinators may have granted.

    Args:
        settings: the group's settings.
        members: the connected nodes.
        origin: a random string that is unique to this group and becomes part of the ids of the
            generations formed by it.
    """

    def __init__(self, settings: GroupSettings, members: Members, origin: str) -> None:
        self.numbers = GenerationCounter(origin)
        self._settings = settings
        self._members = members
        self._began_at: float | None = None  # when this coordinator started
        self._held_until = 0.0  # for a generation that a node knows about
        self._predecessor_until = 0.0  # for a generation whose nodes have not joined
        self.predecessor = ""
        """Why the nodes of another coordinator may have formed a generation, or empty."""

    def begin(self, now: float) -> None:
        """Record that this coordinator is running."""
        if self._began_at is None:
            self._began_at = now

    def until_others_are_back(self, now: float) -> float:
        """Return the time until which nodes may join with workers that are running on a lease from
        a former coordinator. Those leases expire at most `lost_after_s` after the start of this
        coordinator.
        """
        assert self._began_at is not None
        return max(
            now + self._settings.rejoin_grace_s, self._began_at + self._settings.lost_after_s
        )

    def hold_first_generation(self, now: float) -> None:
        """Delay the first generation while workers may still be running on a lease from a former
        coordinator.
        """
        if not self._held_until:
            self._held_until = self.until_others_are_back(now)

    def set_predecessor(self, reason: str, now: float) -> None:
        """Record why a predecessor's generation may be running; "" if it can't be."""
        if bool(reason) is not bool(self.predecessor):
            self._predecessor_until = self.until_others_are_back(now) if reason else 0.0
        self.predecessor = reason

    def expiry(self) -> float:
        """Return the time until which workers from an unknown generation may be running, or 0 if
        there can't be any. Such workers may exist if nodes know about an earlier coordinator,
        unless those nodes know that coordinator's last generation and all nodes that may belong to
        that generation are connected. If no node reports a generation, this doesn't prove that none
        existed, because all of these nodes may have arrived after the nodes that belong to it.

        A coordinator's generations follow each other, but those of different coordinators may have
        been formed in any order, whatever their numbers.
        """
        latest = self.numbers.latest
        until = max(self._held_until, self._predecessor_until)
        if latest.number < 0:
            return until
        named = self._members.named_generations()
        last = {latest, *(each for each in named if each.origin != latest.origin)}
        return 0.0 if all(map(self.are_all_here, last)) else until

    def are_all_here(self, generation: GenerationId) -> bool:
        """Return whether all nodes that may belong to a generation are connected and have no
        workers.
        """
        return self._members.count_ready_from(generation) >= self._settings.max_nodes
