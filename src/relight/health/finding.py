"""Defines findings, each with a subject, a severity and a remedy."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from relight.core.env_diff import by_value, format_hosts
from relight.core.ranks import natural

_MAX_PARTS = 4


class Level(StrEnum):
    """The severity of a finding, worst first."""

    ERROR = "error"
    WARNING = "warning"
    OK = "ok"


OK, WARNING, ERROR = Level.OK, Level.WARNING, Level.ERROR


class Finding(NamedTuple):
    """A single result of `relight doctor`.

    The `what` field names the finding in a few words, and `where` is a host, several hosts, or
    pairs of hosts. The `why` field explains why the finding matters or how it was determined, and
    `remedy` says what to do. The last three may be empty.
    """

    level: Level
    what: str
    where: str = ""
    why: str = ""
    remedy: str = ""


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the worst first. Findings of the same severity keep their order."""
    levels = list(Level)
    return sorted(findings, key=lambda finding: levels.index(finding.level))


def format_finding(finding: Finding) -> list[str]:
    """Format a finding as human-readable lines, with the remedy indented below."""
    where = f"{finding.where}: " if finding.where else ""
    why = f" ({finding.why})" if finding.why else ""
    lines = [f"{finding.level:<8} {where}{finding.what}{why}"]
    if finding.remedy:
        lines.append(f"         -> {finding.remedy}")
    return lines


def format_pairs(pairs: Iterable[tuple[str, str]], hosts: Sequence[str]) -> str:
    """Format pairs of hosts as human-readable text, such as `node2 -> all others`,
    `node1 -> node3`.

    Args:
        pairs: the two hosts of each connection, in its direction.
        hosts: all hosts, to detect `all others`.
    """
    left = set(pairs)
    parts = []
    if len(hosts) > 2:
        if len(left) == len(hosts) * (len(hosts) - 1):
            return "all nodes, in both directions"
        for host in sorted(hosts, key=natural):
            others = [other for other in hosts if other != host]
            for words, wanted in (
                (f"{host} -> all others", {(host, other) for other in others}),
                (f"all others -> {host}", {(other, host) for other in others}),
            ):
                if wanted <= left:
                    left -= wanted
                    parts.append(words)
    by_source = by_value(left)
    parts += [f"{s} -> {format_hosts(by_source[s])}" for s in sorted(by_source, key=natural)]
    if len(parts) > _MAX_PARTS:
        parts = [*parts[: _MAX_PARTS - 1], f"{len(parts) - _MAX_PARTS + 1} more like this"]
    return "; ".join(parts)
