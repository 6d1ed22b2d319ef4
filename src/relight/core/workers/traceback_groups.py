"""Shows the fatal tracebacks from a node's workers. Each distinct traceback is shown once, with the
ranks that printed it, unless it is already in the failure report.

Two tracebacks count as the same if their frames are equal and their messages differ only in
numbers, because workers that fail in the same way print different addresses and ranks. A traceback
counts as shown by the report if the report contains all its lines, except those that are always
left out of long tracebacks (torch frames and marks under source lines). This module is loaded only
after a failure.
"""

from collections.abc import Iterable, Mapping, Sequence

from relight.base.text import format_ranks
from relight.core.diagnosis.excerpts import count_rows, torch_frames, with_gaps, without_starters
from relight.core.diagnosis.traceback_lines import frame_of, is_marks, without_numbers
from relight.core.diagnosis.tracebacks import last_raised

_LONG = 25
"""A traceback with more rows than this is shown without torch frames."""


def split(held: bytes) -> tuple[tuple[str, ...], bytes]:
    """Split a worker's last output into the lines of the traceback at its start and the output
    after it. If the traceback is incomplete, return no lines and the whole output.
    """
    raw = held.split(b"\n")
    lines, end = last_raised([line.decode(errors="replace") for line in raw])
    if not lines:
        return (), held
    rest = b"\n".join(raw[end:])
    return tuple(lines), rest if rest.strip() else b""  # an empty line ends the message


def grouped(tracebacks: Mapping[int, Sequence[str]], report: str) -> list[str]:
    """Return the text of each distinct traceback that is missing from a report.

    Args:
        tracebacks: the lines of each rank's traceback.
        report: the failure report (always shown), or an empty string.
    """
    shown = {_key(line) for line in report.split("\n")}
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in sorted(tracebacks):
        key = tuple(map(_key, without_starters(tracebacks[rank])))
        groups.setdefault(key, []).append(rank)
    texts = []
    for first, *others in groups.values():
        lines = without_starters(tracebacks[first])
        if _is_in(lines, shown):
            continue
        if count_rows(lines) > _LONG:
            lines = with_gaps(lines, torch_frames(lines)[:-1])
        title = f"traceback of rank {first}"
        if others:
            equal = all(tracebacks[rank] == tracebacks[first] for rank in others)
            title += f"; {format_ranks(others)}: the same{'' if equal else ' except for numbers'}"
        texts.append("\n".join([title, *lines]))
    return texts


def _key(line: str) -> str:
    return line if frame_of(line) is not None else without_numbers(line)


def _is_in(lines: Sequence[str], shown: Iterable[str]) -> bool:
    left_out = {number for frame in torch_frames(lines) for number in frame}
    return all(
        number in left_out or is_marks(line) or not line.strip() or _key(line) in shown
        for number, line in enumerate(lines)
    )
