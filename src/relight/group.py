"""One job's membership with a clock: its deadlines, and where to send what it says.

It is all that a job of one node needs, inside its agent; with several nodes, the coordinator has
one for each job.
"""

import os
from collections.abc import Callable

from relight.core.group import Drop, Lost, Send, Settings, Tick, Told
from relight.core.membership import Membership
from relight.core.messages import FromCoordinator
from relight.host.loop import Loop, Timer

Sink = Callable[[FromCoordinator], None]


class Group:
    """One job's membership, its deadlines, and where to send what it says.

    Args:
        loop: the agent's loop.
        settings: what the job was asked to be.
        holds: whether this process is the coordinator at this moment. While it is not, nothing is
            decided.
    """

    def __init__(
        self, loop: Loop, settings: Settings, holds: Callable[[], bool] = lambda: True
    ) -> None:
        self.membership = Membership(settings, origin=os.urandom(8).hex())
        self._holds = holds
        self.sinks: dict[str, Sink] = {}
        self.on_drop: Callable[[str], None] = _ignore
        """Is told of a node that is given up: nothing it says shall be answered any more."""
        self._loop = loop
        self._timer: Timer | None = None

    def step(self, event: Told | Lost | Tick) -> None:
        """Take an event in and send what follows from it."""
        if not self._holds():
            return
        for effect in self.membership.step(event, self._loop.now()):
            match effect:
                case Send(node, message) if node in self.sinks:
                    self.sinks[node](message)
                case Drop(node):
                    self.on_drop(node)
        due = self.membership.deadline()
        if self._timer is not None and self._timer.when == due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._on_deadline)

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
        self.sinks.clear()

    def _on_deadline(self) -> None:
        self._timer = None
        self.step(Tick())


def _ignore(node: str) -> None:
    del node
