"""Renders dumps that torch's flight recorder wrote in waiting workers, to show which rank is
missing from which collective.

A dump contains the last entries in a process's ring buffer (torch 2.13, FlightRecorderDetail.hpp
and torch/distributed/flight_recorder). For each process group, the ranks are compared by the last
collective that they have entered. Messages between two ranks are ignored.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from relight.base import fields
from relight.base.fields import Malformed
from relight.base.text import format_ranks
from relight.core.diagnosis.excerpts import WIDTH, cut
from relight.core.failure import Collective, Failure

MAX_GROUPS = 8
"""Maximum number of process groups to compare per rank. Groups that the rank is waiting in come
first.
"""
_MAX_SIZES = 60
"""Maximum number of characters for tensor sizes."""
_DEFAULT = "default_pg"
"""Torch's name for the group of all ranks."""


class DumpEntry(NamedTuple):
    """The fields of a dump entry that relight uses. `process_group` is the group's name and
    description.
    """

    process_group: tuple[str, ...]
    collective_seq_id: int
    profiling_name: str
    input_sizes: tuple[tuple[int, ...], ...]
    state: str
    retired: bool
    is_p2p: bool = False


def last_collectives(dump: object) -> tuple[Collective, ...]:
    """Return the last collective of each process group in a dump.

    Raises:
        Malformed: if the object is not a dump.
    """
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list):
        raise Malformed("no dump from torch's flight recorder")
    last: dict[str, DumpEntry] = {}
    for each in entries:
        entry = fields.record(DumpEntry, _as_json(each))
        if not entry.is_p2p and entry.process_group:
            last[entry.process_group[0]] = entry
    found = [_collective(entry) for entry in last.values()]
    return tuple(sorted(found, key=lambda each: each.is_done)[:MAX_GROUPS])


def lines(failures: Iterable[Failure], most: int = 7) -> list[str]:
    """Describe which ranks are in which collective, and which ranks are missing from it. Return no
    lines if fewer than two ranks are known, or if all of them have left the same collective.

    Args:
        failures: the failures of all ranks.
        most: the maximum number of lines. If the maximum is less than three, no lines are returned.
    """
    known = {each.rank: each.collectives for each in failures if each.collectives is not None}
    groups = sorted({each.group for last in known.values() for each in last})
    rows = []
    for group in groups:
        last = {rank: one for rank, every in known.items() for one in every if one.group == group}
        absent = known.keys() - last.keys() if group == _DEFAULT else set()
        same = len({each[:4] for each in last.values()}) == 1 and not absent
        if len(known) > 1 and not (same and all(each.is_done for each in last.values())):
            rows += _format_group(last, absent)
    if len(rows) > most - 1:
        rows = [*rows[: most - 2], f"  … and {len(rows) - most + 2} more lines"]
    return ["torch's flight recorder:", *rows] if rows and most > 2 else []


def _format_group(last: Mapping[int, Collective], absent: Iterable[int]) -> list[str]:
    """Return one line for each set of ranks in a group that have the same last collective. The
    ranks that have progressed furthest come first.
    """
    ranks_by_collective: dict[Collective, list[int]] = {}
    for rank, each in sorted(last.items()):
        ranks_by_collective.setdefault(each, []).append(rank)
    ordered = sorted(ranks_by_collective.items(), key=lambda item: (-item[0].number, -len(item[1])))
    furthest, rows = ordered[0][0].number, []
    for each, ranks in ordered:
        be, have = ("are", "have") if len(ranks) > 1 else ("is", "has")
        where = f" of {each.group}" if each.number == furthest else ""
        sizes = f", sizes {each.sizes}" if each.sizes else ""
        if each.is_done and each.number < furthest:
            text = f"{have} not entered number {each.number + 1}; the last was {each.number}, "
            text += f"{each.name}{sizes}"
        else:
            text = f"{have} left" if each.is_done else f"{be} in"
            text += f" {each.name}, number {each.number}{where}{sizes}"
        rows.append(cut(f"  {format_ranks(ranks)} {text}", WIDTH))
    if missing := sorted(absent):
        have = "have" if len(missing) > 1 else "has"
        rows.append(cut(f"  {format_ranks(missing)} {have} entered none", WIDTH))
    return rows


def _collective(entry: DumpEntry) -> Collective:
    name, description = entry.process_group[0], entry.process_group[-1]
    unnamed = description in ("", "undefined", name)
    sizes = ", ".join(str(list(each)) for each in entry.input_sizes)
    return Collective(
        group=f"group {name}" if unnamed else description,
        number=entry.collective_seq_id,
        name=entry.profiling_name.rpartition(":")[2],  # gloo:all_reduce
        sizes=cut(sizes, _MAX_SIZES),
        is_done=entry.retired or entry.state == "completed",
    )


def _as_json(entry: object) -> object:
    """Convert the tuples in an entry that was read from a pickle to lists."""
    if not isinstance(entry, dict):
        return entry
    return {
        field: list(value) if isinstance(value, tuple) else value for field, value in entry.items()
    }
