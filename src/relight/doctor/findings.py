"""A finding: something that was looked at, how bad it is, and what to do."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from relight.core.fields import Malformed, printable
from relight.core.ranks import natural

OK, WARNING, ERROR = "ok", "warning", "error"
LEVELS = (ERROR, WARNING, OK)
MAX_FINDINGS = 1000

_MAX_TEXT = 4096
_MAX_NAMES = 4


class Finding(NamedTuple):
    """One thing that was found.

    `level` is one of `LEVELS`. `what` was found in a few words, `where`: a host, hosts, or pairs of
    them. `why` it matters or how it is known; `remedy`: what to do. The last two may be empty.
    """

    level: str
    what: str
    where: str
    why: str = ""
    remedy: str = ""


def from_json(value: object) -> tuple[Finding, ...]:
    """Return findings that came from another node as lists.

    Raises:
        Malformed: they are no findings.
    """
    if not isinstance(value, list) or len(value) > MAX_FINDINGS:
        raise Malformed("no list of findings")
    found = []
    for row in value:
        if not (isinstance(row, list) and len(row) == len(Finding._fields)):
            raise Malformed("a finding with other fields")
        if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in row):
            raise Malformed("a finding with other values")
        if row[0] not in LEVELS:
            raise Malformed("a finding of no level")
        found.append(Finding(*(printable(text).replace("\n", " ") for text in row)))
    return tuple(found)


def bounded(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the worst of many findings, so that `from_json` takes them."""
    worst = in_order(findings)[:MAX_FINDINGS]
    return tuple(Finding(*(text[:_MAX_TEXT] for text in finding)) for finding in worst)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with the worst first, otherwise in the order that they have."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def lines_of(finding: Finding) -> list[str]:
    """Return a finding for people: a line, and the remedy indented below."""
    where = f"{finding.where}: " if finding.where else ""
    why = f" ({finding.why})" if finding.why else ""
    lines = [f"{finding.level:<8} {where}{finding.what}{why}"]
    if finding.remedy:
        lines.append(f"         -> {finding.remedy}")
    return lines


def to_object(finding: Finding) -> dict[str, Any]:
    """Return a finding as an object of JSON."""
    return finding._asdict()


def names_of(hosts: Iterable[str]) -> str:
    """Return some hosts as people list them, not all of many."""
    names = sorted(hosts, key=natural)
    if len(names) <= _MAX_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _MAX_NAMES - 1])} and {len(names) - _MAX_NAMES + 1} more"


def pairs_of(pairs: Iterable[tuple[str, str]], hosts: Sequence[str]) -> str:
    """Return pairs of hosts as people see them: `node2 -> all others`, `node1 -> node3`.

    Args:
        pairs: from which host to which.
        hosts: all hosts, so that `all others` can be told.
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
    by_source: dict[str, list[str]] = {}
    for source, target in left:
        by_source.setdefault(source, []).append(target)
    parts += [f"{s} -> {names_of(by_source[s])}" for s in sorted(by_source, key=natural)]
    if len(parts) > _MAX_NAMES:
        parts = [*parts[: _MAX_NAMES - 1], f"{len(parts) - _MAX_NAMES + 1} more of that kind"]
    return "; ".join(parts)
