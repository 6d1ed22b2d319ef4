"""The words of `core/membership`: what a group is asked to be, where it is, what comes in and what
goes out.
"""

from enum import Enum

from relight.core.messages import FromAgent, FromCoordinator, Malformed, Message
from relight.typed import Any, NamedTuple

_MOST = 1e9  # of anything


class Settings(NamedTuple):
    """What the job was asked to be. Times in seconds.

    `ordered`: every node brings its rank (the static rendezvous). `rejoin_s`: how long the nodes of
    a live generation may take to come to a new coordinator. `gently`: newcomers are let in only
    when the workers have saved a checkpoint.
    """

    least: int
    most: int
    max_restarts: int
    last_call_s: float = 5.0
    join_timeout_s: float = 600.0
    exit_barrier_s: float = 300.0
    rejoin_s: float = 2.0
    ordered: bool = False
    gently: bool = False

    def to_json(self) -> Message:
        """Return the settings as an object for the wire."""
        return self._asdict()

    @classmethod
    def from_json(cls, message: Message) -> "Settings":
        """Return the settings of an object from the wire.

        Raises:
            Malformed: a setting is missing or can't be.
        """
        values: list[Any] = [message.get(name) for name in cls._fields]
        for name, value in zip(cls._fields, values, strict=True):
            kind = cls.__annotations__[name]
            allowed = (int, float) if kind is float else (kind,)
            if type(value) not in allowed or not 0 <= value < _MOST:
                raise Malformed(f"settings with {name}={value!r}")
        settings = cls(*values)
        if not 1 <= settings.least <= settings.most:
            raise Malformed(f"settings with {settings.least} to {settings.most} nodes")
        return settings

    @property
    def needed(self) -> int:
        """How many nodes a generation takes at least."""
        return self.most if self.ordered else self.least


class State(Enum):
    """Where the group is."""

    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    RECOVERING = "recovering"
    ENDED = "ended"


class Told(NamedTuple):
    """Event: a node says something."""

    node: str
    message: FromAgent


class Lost(NamedTuple):
    """Event: a node can't be heard any more."""

    node: str
    reason: str


class Tick(NamedTuple):
    """Event: a deadline has passed."""


class Send(NamedTuple):
    """Effect: tell a node."""

    node: str
    message: FromCoordinator


Event = Told | Lost | Tick
