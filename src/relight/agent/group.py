"""Drives one job's membership state machine, handles its deadlines, and delivers its messages.

In a single-node job, the group is inside the agent (`LocalLink`). In a multi-node job, the
coordinator has a group for each job, which agents reach through a `link.RemoteLink`.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from relight.core.group.group_types import Drop, Effect, Event, GroupSettings, Received, Send
from relight.core.group.membership import Membership
from relight.core.group.messages import Announce, Answer, AskNodes, FromAgent, FromCoordinator, Join
from relight.core.ranks import GenerationId
from relight.events.event_types import StateChanged, Tick, changed
from relight.host.loop import Alarm, Loop

if TYPE_CHECKING:
    from relight.core.status.cluster_query import Questions

Recipient = Callable[[FromCoordinator], None]

LOADED_LATER = (
    "relight.core.group.checkpoint_barrier",
    "relight.core.workers.early_exits",
    "relight.core.group.flapping",
    "relight.core.diagnosis.flight_recorder_text",
    "relight.core.diagnosis.hang_text",
    "relight.core.group.restart_budget",
    "relight.core.group.straggler_detector",
    "relight.core.group.survivors",
    "relight.core.group.restart_decision",
)
"""Modules that a group needs after it has formed. Loading them earlier would slow down startup."""
LOADED_FOR_NODES = (
    "hashlib",
    "relight.core.env_diff",
    "relight.core.status.cluster_query",
    "relight.core.group.rank_order",
    "relight.core.group.reachability",
)
"""Additional modules for a multi-node group."""
_RETRY_S = 0.05
"""How often a process that isn't the coordinator checks whether it has become one again."""


class LinkOwner(Protocol):
    """The part of the agent that its link uses."""

    @property
    def generation(self) -> GenerationId:
        """The generation of the workers on this node, or NO_GENERATION."""

    def announce(self) -> Announce | None:
        """Return this node's current or latest generation, for a new coordinator."""

    def messages_after_join(self) -> Sequence[FromAgent]:
        """Return the messages to send after `Join`. These messages report either that this node is
        ready, or what happened to it.
        """

    def received(self, message: FromCoordinator) -> None:
        """Handle a message from the coordinator."""

    def set_lease(self, until: float) -> None:
        """Let the workers run until the time `until` on the loop's clock. Infinity means no
        limit.
        """

    def say(self, message: str) -> None:
        """Print a message to the user."""

    def record(self, event: StateChanged) -> None:
        """Write a state change of the link or its finder to the event log."""

    def on_group(self, job: str, group: "Group") -> None:
        """Handle a group that this process coordinates, before the group's first step."""


class Group:
    """One job's membership and deadlines, and the recipients of its messages.

    Args:
        loop: the agent's loop.
        settings: the user's settings.
        coordinates: returns whether this process is currently the coordinator. If not, the group
            doesn't make decisions.
    """

    def __init__(
        self,
        loop: Loop,
        settings: GroupSettings,
        coordinates: Callable[[], bool] = lambda: True,
    ) -> None:
        self.origin = os.urandom(8).hex()
        self.membership = Membership(settings, self.origin)
        self._coordinates = coordinates
        self.recipients: dict[str, Recipient] = {}
        """The connected nodes, each with the function that delivers a message to it."""
        self.on_drop: Callable[[str], None] = lambda *_: None
        """Called with each dropped node, whose messages must no longer be answered."""
        self.on_step: Callable[[Event, float, list[Effect]], None] | None = None
        """Called with each step, its time and its effects, before the effects are carried out."""
        self.on_change: Callable[[StateChanged], None] = lambda _: None
        """Called when the group's state has changed, before the effects are carried out."""
        self._loop = loop
        self._alarm = Alarm(loop, lambda: self.step(Tick()))
        self._deferred_events: list[Event] = []
        """Events that arrived while this process wasn't the coordinator."""
        self._questions: Questions | None = None  # None until a node sends a query to all nodes

    def step(self, event: Event) -> None:
        """Process an event and carry out its effects. If this process isn't the coordinator right
        now, for example after a suspension, the event is deferred in case it becomes the
        coordinator again. After the end of the job, the group has no decisions left to make. The
        nodes only receive the result and leave.
        """
        if self.membership.end is None and not self._coordinates():
            if not isinstance(event, Tick):
                self._deferred_events.append(event)
            self._alarm.set_after(_RETRY_S)
            return
        self.handle_deferred()
        self._on_event(event)

    def defers(self, node: str) -> bool:
        """Return whether a message from a node has been deferred."""
        return any(
            isinstance(each, Received) and each.node == node for each in self._deferred_events
        )

    def handle_deferred(self) -> None:
        """Process the events that were deferred while this process wasn't the coordinator."""
        events, self._deferred_events = self._deferred_events, []
        for each in events:
            self._on_event(each)

    def _on_event(self, event: Event) -> None:
        match event:
            case Received(node, AskNodes() | Answer() as asked):
                self._relay(node, asked)
                return
        now, before = self._loop.now(), self.membership.states()
        effects = self.membership.step(event, now)
        if self.on_step is not None:
            self.on_step(event, now, effects)
        for was, (core, state) in zip(before, self.membership.states(), strict=True):
            if was != (core, state):
                self.on_change(changed(core, was[1], state, event))
        for effect in effects:
            match effect:
                case Send(node, message) if node in self.recipients:
                    self.recipients[node](message)
                case Drop(node):
                    self.on_drop(node)
        due = self.membership.deadline()
        if due != self._alarm.when:
            self._alarm.set(due)

    def close(self) -> None:
        """Cancel the alarm and forget the nodes and the deferred events."""
        self._alarm.set(None)
        self._deferred_events.clear()
        self.recipients.clear()

    def _relay(self, node: str, message: AskNodes | Answer) -> None:
        """Forward a node's query to all nodes, or handle one node's reply to it."""
        from relight.core.status.cluster_query import LIMIT_S, Questions

        if self._questions is None:
            self._questions = Questions()
        questions, members = self._questions, self.membership.members
        if node not in members:
            return
        if isinstance(message, Answer):
            self._send_all(questions.answer(node, message))
        else:
            joins = [member.join for member in members]
            number, sends = questions.ask(node, message.question, joins)
            self._send_all(sends)
            if sends:
                self._loop.call_after(LIMIT_S, lambda: self._send_all(questions.close(number)))

    def _send_all(self, sends: Iterable[Send]) -> None:
        for node, message in sends:
            if node in self.recipients:
                self.recipients[node](message)


class LocalLink:
    """The link in a single-node job, whose group is in this process.

    Args:
        loop: the agent's loop.
        settings: the group's settings.
        join: the message with which this node joins the group.
    """

    def __init__(self, loop: Loop, settings: GroupSettings, join: Join) -> None:
        self._group = Group(loop, settings)
        self._loop = loop
        self.join = join

    @property
    def has_joined(self) -> bool:
        """Whether messages reach the group."""
        return True

    def unheard_s(self) -> float:
        """Return 0, because the group is in this process."""
        return 0.0

    @property
    def relays(self) -> bool:
        """Whether there are other nodes that can be queried."""
        return False

    def open(self, owner: LinkOwner) -> None:
        """Join the group."""
        node = self.join.node

        def receive(message: FromCoordinator) -> None:
            self._loop.call_after(0, lambda: owner.received(message))

        self._group.recipients[node] = receive
        owner.on_group("", self._group)
        self.send(self.join)

    def send(self, message: FromAgent) -> None:
        """Pass a message to the group."""
        self._group.step(Received(self.join.node, message))

    def held(self) -> tuple[int, ...]:
        """Return no descriptors, because no other node checks whether this agent has exited."""
        return ()

    def share_port(self, store: object) -> int:
        """Return 0, because there is no endpoint that other nodes could use."""
        del store
        return 0

    def leave(self) -> None:
        """Do nothing, because no other node waits for this one."""

    def close(self, stop_waiting: Callable[[], bool]) -> None:
        """Close the group."""
        del stop_waiting
        self._group.close()
