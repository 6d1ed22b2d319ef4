"""The messages of an election as JSON: one small object each, checked field by field."""

from relight.core.election import Message as Ballot
from relight.core.election import VoteRelease, VoteReply, VoteRequest
from relight.core.messages import Malformed, Message
from relight.typed import Any

_KINDS: dict[str, Any] = {k.__name__.lower(): k for k in (VoteRequest, VoteReply, VoteRelease)}


def to_json(ballot: Ballot) -> Message:
    """Return a message as an object for the wire."""
    return {"type": type(ballot).__name__.lower(), **ballot._asdict()}


def from_json(message: Message) -> Ballot:
    """Return the message of an object from the wire.

    Raises:
        Malformed: no such message, a field is missing, or a value is of the wrong type.
    """
    kind = _KINDS.get(message.get("type", ""))
    if kind is None:
        raise Malformed(f"no message of type {message.get('type')!r} between electors")
    values = []
    for field, annotation in kind.__annotations__.items():
        value = message.get(field)
        allowed = (int, float) if annotation is float else (annotation,)
        if type(value) not in allowed:
            raise Malformed(f"{kind.__name__}.{field} can't be {str(value)[:100]!r}")
        values.append(value)
    ballot: Ballot = kind(*values)
    return ballot
