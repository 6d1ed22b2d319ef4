"""The live or most recent generation. Everything that is known about it is created with it, and
dropped once the next one is formed or adopted.
"""

from typing import TYPE_CHECKING

from relight.core.group.messages import NodePreempted, NodeReady
from relight.core.group.node_recovery import Recovery
from relight.core.group.roster import Roster
from relight.core.group.successes import Successes
from relight.core.group.teardown import Teardown, WorkerReports
from relight.core.ranks import GenerationId

if TYPE_CHECKING:
    from relight.core.group.checkpoint_barrier import Agreement


class LiveGeneration:
    """A generation and the machines that follow it.

    Attributes:
        preempted: the nodes that announced their preemption.
        agreement: set while workers agree on when to save.
    """

    def __init__(
        self, generation: GenerationId, roster: Roster, formed_at: float,
        successes: Successes, teardown: Teardown, recovery: Recovery, world_size: int = 0,
    ) -> None:  # fmt: skip
        self.id = generation
        self.roster = roster
        self.formed_at = formed_at
        self.successes = successes
        self.teardown = teardown
        self.recovery = recovery
        self.reports = WorkerReports(world_size)
        self.preempted: dict[str, NodePreempted] = {}
        self.agreement: Agreement | None = None

    def add_report(self, ready: NodeReady, host: str, now: float) -> None:
        """Add a node's report on its workers."""
        self.reports.add(ready, now)
        if any(each.exitcode and not each.stop_signal for each in ready.failures):
            teardown = self.teardown
            teardown.failure_cause = teardown.failure_cause or f"a worker failed on {host}"

    def succeed(self, node: str, host: str, now: float) -> None:
        """Record that a node's workers have succeeded."""
        self.roster.finish(node, now)
        self.successes.is_pending = True
        if self.agreement is not None:
            self.agreement.remove(node)
        if self.roster.active:
            self.successes.note_early_exit(self.roster.group_ranks[node], host, now)
