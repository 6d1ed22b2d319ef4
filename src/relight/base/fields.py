"""Converts input from other processes into records, and checks each field. No other module parses
such input.

A record is a NamedTuple, and the annotations of its fields define the accepted values:

    bool
    int, float              finite, within the bounds for the field's name or for all numbers
    str                     bounded; control characters are replaced, or rejected in a name; limited
                            to one line, except for text that people read; text that only programs
                            read, such as arguments and variables, is left unchanged
    tuple[X, ...], dict     bounded
    a NamedTuple, an Enum   by its fields, by its name
    X | None

A message is a record with its type's name under the key `type`. Any other input raises `Malformed`.
`to_json` limits strings and numbers to the same bounds, so peers never reject each other's
messages.
"""

import json
from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import Any, NoReturn

from relight.base.values import MAX_SECONDS

MAX_NAME = 255
"""The maximum length of a name, as for DNS host names (RFC 1035)."""
MAX_TEXT = 4096
MAX_ITEMS = 1 << 20
MAX_FACTS = 255
MAX_FINDINGS = 100
MAX_ANSWER = 1 << 18
"""The maximum length of text that describes a node and its workers."""

Message = dict[str, Any]
"""A message as a JSON object."""
Check = Callable[[Any], Any]
_NO_DEFAULT = _UNFIT = object()

_INT = -1, 1 << 62
_FLOAT = -1e12, 1e12  # seconds since 1970, or any duration
_SIZE = 1, 1 << 20
_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("min_nodes", "max_nodes", "local_world_size", "segment"), _SIZE),
    **dict.fromkeys(("rank", "ranks", "succeeded_ranks", "blamed", "connection"), (0, 1 << 40)),
    **dict.fromkeys(
        ("local_rank", "survivors", "gone", "looks", "waits", "replica", "mtu", "answered",
         "heard", "target"), (0, 1 << 20),
    ),
    "coordinator": (-1, 1 << 20),
    **dict.fromkeys(("port", "tcp_port", "udp_port", "master_port"), (0, 65535)),
    **dict.fromkeys(("exit_code", "code"), (0, 255)),
    "exitcode": (-127, 255),
    "stop_signal": (0, 127),
    **dict.fromkeys(("restart_on", "fail_on"), (1, 255)),
    "at": (-1e9, 1.0),
    "max_restarts": (0, 1 << 62),
    "mtime_ns": (-(1 << 64), 1 << 64),
    **dict.fromkeys(("limit", "calls", "checkpoint_at"), (0, 1 << 60)),
    **dict.fromkeys(("lost_after_s", "every_s"), (0.1, MAX_SECONDS)),
    "extra_s": (0, MAX_SECONDS),
    **dict.fromkeys(
        ("settle_timeout_s", "join_timeout_s", "exit_barrier_s", "rejoin_grace_s",
         "restart_window_s", "age_s", "stopping_s", "printed_s", "step_age_s", "ttl_s", "grace_s",
         "stop_s", "limit_s", "quiet_s", "silence_s", "clock_error_s"), (0, 1e12),
    ),
}  # fmt: skip
_NAMES = {"node", "host", "failed_host", "hosts", "name", "user", "address", "addresses", "own",
          "resolved", "seen_as", "role", "master_addr", "incarnation", "stage",
          "origin", "machine", "udp_address", "topology", "stimulus"}  # fmt: skip
_OF_LINES = {"message", "reason", "text", "cause", "report", "error_file"}
_EXACT = {"args", "command", "commands", "env", "value", "cwd", "path", "workspace", "directory",
          "log_dir", "script", "stdout", "stderr", "combined", "report_path", "answer",
          "question"}  # fmt: skip
_LENGTHS = {"error_file": 1 << 20, **dict.fromkeys(_EXACT, 1 << 20), "answer": MAX_ANSWER,
            "question": MAX_TEXT}  # fmt: skip
_ITEMS = {"lines": 200, "last_lines": 200, "stack": 60, "findings": MAX_FINDINGS, "addresses": 16,
          "resolved": 64, "facts": MAX_FACTS, "reported": 16, "charts": 16, "values": 240,
          "restart_on": 255, "fail_on": 255}  # fmt: skip


class Malformed(ValueError):  # noqa: N818
    """The input does not conform to the protocol."""


def decode(text: bytes | str) -> Any:
    """Parse JSON in which all numbers are finite.

    Raises:
        Malformed: if the text is invalid.
    """
    try:
        return _decode(text.decode() if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not valid JSON: {error}") from None


def message(kinds: Any, value: Message) -> Any:
    """Convert an object received over the wire into a message.

    Args:
        kinds: the union of the accepted message types.
        value: the object.

    Raises:
        Malformed: if the message type is unknown, a field is missing, or a value has the wrong
            type or size.
    """
    word = value.get("type")
    kind = _by_word(kinds).get(word) if isinstance(word, str) else None
    if kind is None:
        raise Malformed(f"no message of type {_shown(word)}")
    return record(kind, value)


def record(kind: Any, value: object) -> Any:
    """Convert an object from another process into a record. Unknown keys are ignored.

    Raises:
        Malformed: if a field without a default is missing, or a value has the wrong type or size.
    """
    if not isinstance(value, dict):
        raise Malformed(f"{kind.__name__} can't be {_shown(value)}")
    values = []
    for field, check, default in _fields(kind):
        if field in value:
            values.append(check(value[field]))
        elif default is not _NO_DEFAULT:
            values.append(default)
        else:
            raise Malformed(f"{kind.__name__} without {field}")
    return kind(*values)


def to_json(record: Any) -> Message:
    """Convert a message into an object to send over the wire, within the bounds that `message`
    checks.
    """
    return {"type": type(record).__name__.lower(), **plain(record)}


def plain(value: Any, field: str = "") -> Any:
    """Convert a value to JSON, within the bounds that `message` checks. A record becomes an object
    that contains its fields.
    """
    kind = type(value)
    if kind is str:
        return fit(value, field)
    if kind is int or kind is float:
        if field not in _BOUNDS:
            return value
        least, most = _BOUNDS[field]
        return value if least <= value <= most else kind(max(least, min(value, most)))
    if value is None or kind is bool:
        return value
    if hasattr(kind, "_fields"):
        return {f: plain(v, f) for f, v in zip(kind._fields, value, strict=True)}
    if kind is list or kind is tuple:
        return [plain(each, field) for each in value[: _ITEMS.get(field, MAX_ITEMS)]]
    if isinstance(value, dict):
        return {fit(k, field): plain(v, field) for k, v in value.items()}
    if isinstance(value, Enum):
        return value.name
    return value


def fit(text: str, field: str = "") -> str:
    """Clean text and truncate it to a field's maximum length."""
    if field not in _EXACT:
        text = printable(text, lines=field in _OF_LINES)
    if field in _NAMES:
        text = text.replace("\t", "\ufffd")
    size = _length(field)
    return text if len(text) <= size else text[: size - 1] + "…"


def printable(text: str, *, lines: bool = True) -> str:
    """Return text from another machine without characters that could confuse a terminal."""
    if text.isprintable():
        return text
    kept = "\n\t" if lines else "\t"
    return "".join(c if c.isprintable() or c in kept else "\ufffd" for c in text)


@cache
def _fields(kind: Any) -> list[tuple[str, Check, Any]]:
    """Return the name, check and default of each field in a record."""
    return [
        (field, _check(kind, field, annotation), kind._field_defaults.get(field, _NO_DEFAULT))
        for field, annotation in kind.__annotations__.items()
    ]


def _check(kind: Any, field: str, annotation: Any) -> Check:
    """Return a function that converts a value from another process into the field's value."""
    if isinstance(annotation, UnionType):  # only `X | None`
        (some,) = (each for each in annotation.__args__ if each is not type(None))
        check = _check(kind, field, some)
        return lambda value: None if value is None else check(value)
    if hasattr(annotation, "_fields"):
        return partial(record, annotation)
    convert = _converter(kind, field, annotation)

    def checked(value: Any) -> Any:
        result = convert(value)
        if result is _UNFIT:
            raise Malformed(f"{kind.__name__}.{field} can't be {_shown(value)}")
        return result

    return checked


def _converter(kind: Any, field: str, annotation: Any) -> Check:
    """Return a function that converts a value, or returns `_UNFIT` if the value is not valid."""
    origin = getattr(annotation, "__origin__", None)
    if annotation is bool:
        return lambda value: value if type(value) is bool else _UNFIT
    if annotation in (int, float):
        return _number(annotation, *_BOUNDS.get(field, _INT if annotation is int else _FLOAT))
    if annotation is str:
        return partial(_text, field, _length(field))
    most = _ITEMS.get(field, MAX_ITEMS)
    if origin is tuple:
        element = _check(kind, field, annotation.__args__[0])
        return lambda value: (
            tuple(map(element, value)) if isinstance(value, list) and len(value) <= most else _UNFIT
        )
    if origin is dict:
        key, content = (_check(kind, field, each) for each in annotation.__args__)
        return lambda value: (
            {key(k): content(v) for k, v in value.items()}
            if isinstance(value, dict) and len(value) <= most
            else _UNFIT
        )
    assert issubclass(annotation, Enum), f"{kind.__name__}.{field}: {annotation}"
    members = annotation.__members__
    return lambda value: members.get(value, _UNFIT) if isinstance(value, str) else _UNFIT


def _number(kind: type, least: float, most: float) -> Check:
    if kind is int:
        return lambda value: value if type(value) is int and least <= value <= most else _UNFIT
    return lambda value: (
        float(value) if type(value) in (int, float) and least <= value <= most else _UNFIT
    )


def _text(field: str, length: int, value: Any) -> Any:
    if not isinstance(value, str) or len(value) > length:
        return _UNFIT
    if field in _NAMES:
        return value if value.isprintable() else _UNFIT
    return value if field in _EXACT else printable(value, lines=field in _OF_LINES)


def _length(field: str) -> int:
    return MAX_NAME if field in _NAMES else _LENGTHS.get(field, MAX_TEXT)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return repr(value)[:100]


@cache
def _by_word(kinds: Any) -> dict[str, Any]:
    every = kinds.__args__ if isinstance(kinds, UnionType) else (kinds,)
    return {kind.__name__.lower(): kind for kind in every}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is not a number")
    return number


_decode = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite).decode
