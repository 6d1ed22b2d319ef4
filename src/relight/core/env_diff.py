"""Compares facts that should be the same on all nodes of a job, and reports differences to
users.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from relight.core.ranks import natural

_SUBJECTS = {
    "script": "the script's content differs",
    "arguments": "the script's arguments differ",
}
_MAX_HOSTS = 4
_MAX_VALUES = 4
_MAX_LENGTH = 60
T = TypeVar("T")


def compare(
    known: Mapping[str, Mapping[str, str]], new_host: str, new: Mapping[str, str]
) -> list[str]:
    """Return a line for each fact whose value on a new node differs from the value on all other
    nodes.

    If another node has the same value, the difference was already reported when that node joined.
    The value that the fewest nodes have is listed first, because it is probably the wrong one.
    Facts that a node does not report are not compared.

    Args:
        known: the facts of the other nodes, by host.
        new_host: the host of the new node.
        new: the new node's facts.
    """
    lines = []
    for name, value in new.items():
        hosts_by_value = by_value((f[name], host) for host, f in known.items() if name in f)
        if not hosts_by_value or value in hosts_by_value:
            continue
        hosts_by_value[value] = [new_host]
        lines.append(_sentence(name, hosts_by_value))
    return lines


def _sentence(name: str, hosts_by_value: Mapping[str, Sequence[str]]) -> str:
    values = sorted(hosts_by_value, key=lambda v: (len(hosts_by_value[v]), natural(v)))
    short = _shorten(values)
    parts = [f"{short[v]} on {format_hosts(hosts_by_value[v])}" for v in values[:_MAX_VALUES]]
    if len(values) > _MAX_VALUES:
        rest = len(values) - _MAX_VALUES
        parts.append(f"{rest} other value{'s' * (rest > 1)} elsewhere")
    subject = _SUBJECTS.get(name, f"{name} differs")
    return f"{subject} between the nodes: {', '.join(parts)}"


def by_value(values: Iterable[tuple[T, str]]) -> dict[T, list[str]]:
    """Group the hosts from (value, host) pairs by value."""
    hosts_by_value: dict[T, list[str]] = {}
    for value, host in values:
        hosts_by_value.setdefault(value, []).append(host)
    return hosts_by_value


def format_hosts(hosts: Iterable[str]) -> str:
    """Format host names for users. Long lists are shortened."""
    names = sorted(hosts, key=natural)
    if len(names) <= _MAX_HOSTS:
        return ", ".join(names)
    return f"{', '.join(names[: _MAX_HOSTS - 1])} and {len(names) - _MAX_HOSTS + 1} more"


def _shorten(values: Sequence[str]) -> dict[str, str]:
    """Shorten long values by dropping the words before the first difference between them."""
    if max(map(len, values)) <= _MAX_LENGTH:
        return {value: value or "nothing" for value in values}
    words = [value.split(" ") for value in values]
    same = 0
    while all(len(w) > same for w in words) and len({w[same] for w in words}) == 1:
        same += 1
    result = {}
    for value, split in zip(values, words, strict=True):
        rest = " ".join(split[same:])
        if len(rest) > _MAX_LENGTH:
            rest = rest[: _MAX_LENGTH - 1] + "…"
        result[value] = f"… {rest}".strip() if same and rest else rest or "nothing more"
    return result
