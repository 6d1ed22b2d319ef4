"""Lets lost nodes return to a generation before the group continues without them.

A new coordinator adopts the generation that nodes announce. A generation takes precedence over
others if it has a node whose workers are running and whose lease has not expired. The coordinator
then waits:

- for all nodes of the generation, except for those proven to be gone. A lost node gets its place
  back if it returns in time and its workers are still running;
- if all leases were over, or the workers had exited, for the length of a lease, because other nodes
  may be in a later generation.

A coordinator that has dropped an overdue node waits in the same way, until the node's lease is
over.
"""

from relight.core.group.messages import Announce
from relight.core.ranks import GenerationId


class Recovery:
    """The wait for one generation's lost nodes.

    Args:
        until: when lost nodes may no longer return, or None if the group doesn't wait for them.
        may_be_superseded: whether a later generation may exist.
    """

    def __init__(self, until: float | None = None, *, may_be_superseded: bool = False) -> None:
        self.until = until
        self.may_be_superseded = may_be_superseded
        """Whether a later generation may exist, because none of the nodes that announced this
        generation rules it out.
        """
        self.saves = False
        """Whether the former coordinator ordered the workers to save and exit."""

    def outranks(self, announce: Announce, announced: GenerationId) -> bool:
        """Return whether another announced generation may be live instead of this one."""
        sure, sure_before = not announce.may_be_superseded, not self.may_be_superseded
        return (sure, announce.generation.number) > (sure_before, announced.number)

    def sleep(self, read_by: float) -> None:
        """Give nodes extra time after this process was suspended."""
        if self.until is not None:
            self.until = max(self.until, read_by)
