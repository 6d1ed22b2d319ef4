"""What agents and their coordinator tell each other: one small immutable type a message.

A message from the network is checked field by field before anything looks at it (`from_json`); what
does not fit is `Malformed`. Lists become tuples, so that messages can be compared.

    agent -> coordinator    Join Ready Failed Done Leave
    coordinator -> agent    Form Stop Confirm Wait Note End
"""

from relight.core.ranks import Generation, Place
from relight.typed import Any, NamedTuple

Message = dict[str, Any]
"""A message as an object of JSON."""


class Malformed(ValueError):  # noqa: N818
    """What arrived is no message of this protocol."""


class Announce(NamedTuple):
    """The generation that a node's workers are in, told to a coordinator that may not know it.

    `done`: they have ended well.
    """

    generation: int
    restart: int
    group_rank: int
    group_world_size: int
    done: bool


class Join(NamedTuple):
    """An agent offers its node to the job.

    `node` is random and belongs to this agent process alone. `node_rank` is its
    rank in a static rendezvous; elsewhere the number that its scheduler gave it, which the order of
    ranks follows, or -1. `facts` are what should be equal on all nodes.
    """

    node: str
    host: str
    address: str
    slots: int
    role: str
    node_rank: int
    least: int
    most: int
    max_restarts: int
    facts: dict[str, str]
    announce: Announce | None


class Ready(NamedTuple):
    """No workers run on this node; a store for the next generation listens at `port`.

    `generation` is the last one that the node was in, -1 for none. `failures` are how its workers
    ended there, if not well (`core.failures.to_record`). `left` are the ranks that had ended well
    before. `restart` is how many restarts the job has had, as far as this node knows.
    """

    generation: int
    port: int
    failures: tuple[dict[str, Any], ...]
    left: tuple[int, ...]
    restart: int = 0


class Failed(NamedTuple):
    """A worker of this node ended badly; the rest are being stopped."""

    generation: int
    reason: str


class Done(NamedTuple):
    """All workers of this node ended well."""

    generation: int


class Leave(NamedTuple):
    """The node leaves in good order."""

    reason: str


class Form(NamedTuple):
    """Start the workers of a new generation, in this place of it."""

    generation: Generation
    place: Place


class Stop(NamedTuple):
    """Stop the workers of a generation and get ready for the next.

    `gently`: they may save a checkpoint first. `cause` is for people.
    """

    generation: int
    cause: str
    gently: bool


class Confirm(NamedTuple):
    """The generation that a node announced goes on."""

    generation: int


class Wait(NamedTuple):
    """Why there is no generation for this node yet, for people. `spare`: it is kept in reserve."""

    text: str
    spare: bool


class Note(NamedTuple):
    """Something that the node's user should read, such as a difference between the nodes."""

    text: str


class End(NamedTuple):
    """The job is over. `report` are lines for people, none if all went well; `root` is the record
    of the root cause, if there is one.
    """

    exit_code: int
    reason: str
    report: tuple[str, ...]
    root: dict[str, Any] | None


FromAgent = Join | Ready | Failed | Done | Leave
FromCoordinator = Form | Stop | Confirm | Wait | Note | End

_KINDS: dict[str, Any] = {
    kind.__name__.lower(): kind
    for kind in (Join, Ready, Failed, Done, Leave, Form, Stop, Confirm, Wait, Note, End)
}
_NESTED = {"announce": Announce, "generation": Generation, "place": Place}
_ELEMENTS = {"left": int, "report": str, "failures": dict}
_NUMBERS = {
    "slots": (1, 1 << 20),
    "least": (1, 1 << 20),
    "most": (1, 1 << 20),
    "port": (0, 65535),
    "master_port": (0, 65535),
}


_NAMES = ("node", "host", "address", "role", "master_addr")
_NAME = 255
"""Characters of the longest name; of a host it is what DNS allows (RFC 1035)."""
_TEXT = 4096


def to_json(message: FromAgent | FromCoordinator) -> Message:
    """Return the message as an object for the wire."""
    fields = message._asdict()
    for field in _NESTED:
        value = fields.get(field)
        if isinstance(value, Announce | Generation | Place):
            fields[field] = value._asdict()
    return {"type": type(message).__name__.lower(), **fields}


def from_json(message: Message) -> FromAgent | FromCoordinator:
    """Return the message of an object from the wire.

    Raises:
        Malformed: no such message, a field is missing, or a value is of the wrong type or size.
    """
    kind = _KINDS.get(message.get("type", ""))
    if kind is None:
        raise Malformed(f"no message of type {message.get('type')!r}")
    result: FromAgent | FromCoordinator = _build(kind, message)
    return result


def printable(text: str) -> str:
    """Return a text of another machine without what could confuse a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def _build(kind: Any, message: Message) -> Any:
    values = []
    for field, annotation in kind.__annotations__.items():
        if field not in message:
            raise Malformed(f"{kind.__name__} without {field}")
        value = message[field]
        if not _fits(field, annotation, value):
            raise Malformed(f"{kind.__name__}.{field} can't be {str(value)[:100]!r}")
        if isinstance(value, dict) and field in _NESTED:
            value = _build(_NESTED[field], value)
        elif annotation is str:
            value = printable(value)
        elif isinstance(value, list):
            value = tuple(printable(v) if isinstance(v, str) else v for v in value)
        values.append(value)
    return kind(*values)


def _fits(field: str, annotation: Any, value: Any) -> bool:
    if annotation is int:
        least, most = _NUMBERS.get(field, (-1, 1 << 62))
        return type(value) is int and least <= value <= most
    if annotation is bool:
        return type(value) is bool
    if annotation is str:
        most = _NAME if field in _NAMES else _TEXT
        return type(value) is str and len(value) <= most and _is_fit(field, value)
    if field == "facts":
        return isinstance(value, dict) and len(value) <= _NAME and all(map(_is_fact, value.items()))
    if field in _ELEMENTS:
        kind = _ELEMENTS[field]
        return (
            isinstance(value, list)
            and all(type(v) is kind for v in value)
            and (kind is not str or all(len(v) <= _TEXT for v in value))
        )
    return isinstance(value, dict) or (value is None and annotation not in (Generation, Place))


def _is_fit(field: str, value: str) -> bool:
    """Return whether a name is one; other texts are made so."""
    return field not in _NAMES or value.isprintable()


def _is_fact(fact: tuple[Any, Any]) -> bool:
    return all(isinstance(v, str) and len(v) <= _TEXT and v.isprintable() for v in fact)
