"""Converts text or JSON values to the type given by an annotation or an option.

The grammar and the conversions match TorchX's command line, except that invalid values which TorchX
silently accepts are rejected here.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_PLAIN: dict[type, str] = {str: "text", int: "a whole number", float: "a number", bool: ""}


class ParameterKind(NamedTuple):
    """A type. `base` is str, int, float, bool, list, dict or tuple. `items` has the type of a
    list's items, the types of a dict's keys and values, or the type of each tuple item; if a tuple
    may have any length, the second item is `...`. With `optional`, an empty list, dict or tuple
    becomes None.
    """

    base: type
    items: tuple[Any, ...] = ()
    optional: bool = False

    def __str__(self) -> str:
        if self.items:
            names = (getattr(item, "__name__", "...") for item in self.items)
            return f"{self.base.__name__}[{', '.join(names)}]"
        return self.base.__name__


def decode(text: str, kind: ParameterKind) -> Any:
    """Convert a command-line string to a value.

    Raises:
        ValueError: if the string is invalid; the message describes the expected form.
    """
    if kind.base is list:
        if not text:
            return None if kind.optional else []
        return [_plain(part.strip(), kind.items[0]) for part in text.split(",")]
    if kind.base is tuple:
        if not text and (kind.optional or ... in kind.items):
            return None if kind.optional else ()
        return _in_turn(text.split(","), kind, lambda part, item: _plain(part.strip(), item))
    if kind.base is dict:
        if not text.strip():
            return None if kind.optional else {}
        key, value = kind.items
        return {_plain(k, key): _plain(v, value) for k, v in pairs(text).items()}
    return _plain(text, kind.base)


def from_value(value: Any, kind: ParameterKind) -> Any:
    """Return a JSON or Python value if it has the expected type; decode it if it is a string.

    Raises:
        ValueError: if it has a different type.
    """
    if value is None and kind.optional:
        return None
    if isinstance(value, str):
        return value if kind.base is str else decode(value, kind)
    if kind.base is list and isinstance(value, (list, tuple)):
        return [from_value(inner, ParameterKind(kind.items[0])) for inner in value]
    if kind.base is tuple and isinstance(value, (list, tuple)):
        return _in_turn(value, kind, lambda part, item: from_value(part, ParameterKind(item)))
    if kind.base is dict and isinstance(value, dict):
        key, inner = (ParameterKind(item) for item in kind.items)
        return {from_value(k, key): from_value(v, inner) for k, v in value.items()}
    if kind.base is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is kind.base:
        return value
    raise ValueError(f"expected {kind}, not {value!r}")


def pairs(text: str, outer: str = ",;") -> dict[str, str]:
    """Parse `k=v,k2="a,b";k3=c,d` into a dict.

    A value ends at the last separator before the next `=`, so it may contain separators;
    quotes protect the content of a value.

    Raises:
        ValueError: if a key or a `=` is missing, or a quote is not closed.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        equals = text.find("=", at)
        key = text[at : None if equals < 0 else equals].strip()
        if equals < 0 or not key:
            raise ValueError(f"expected key=value, not {text[at:]!r}")
        start = equals + 1
        if text[start : start + 1] in ("'", '"'):
            close = text.find(text[start], start + 1)
            while 0 <= close < len(text) - 1 and text[close + 1] not in outer:
                close = text.find(text[start], close + 1)
            if close >= 0:
                value, at = text[start + 1 : close], close + 2
                _put(found, key, value)
                continue
        following = text.find("=", start)
        if following < 0:
            end = len(text)
        else:
            end = max(text.rfind(mark, start, following) for mark in outer)
            if end < 0:
                raise ValueError(
                    f"{text[at:]!r} has two '=' without a separator; quote values that contain '='"
                )
        _put(found, key, text[start:end])
        at = end + 1
    return found


def _in_turn(
    parts: Sequence[Any], kind: ParameterKind, each: Callable[[Any, type], Any]
) -> tuple[Any, ...]:
    """Decode each part with the type at the same position; return a tuple."""
    items = kind.items[:1] * len(parts) if ... in kind.items else kind.items
    if len(parts) != len(items):
        raise ValueError(f"expected {len(items)} values, not {len(parts)}")
    return tuple(each(part, item) for part, item in zip(parts, items, strict=True))


def _put(found: dict[str, str], key: str, value: str) -> None:
    if key in found:
        raise ValueError(f"{key} is given twice")
    found[key] = value


def _plain(text: str, base: type) -> Any:
    if base is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("expected true or false")
        return text.lower() == "true"
    cast: Callable[[str], Any] = base
    try:
        return cast(text)
    except ValueError:
        raise ValueError(f"expected {_PLAIN[base]}, not {text!r}") from None
