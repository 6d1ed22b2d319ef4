"""The memory that an agent shares with one worker: one page of 8-byte words, in the byte order of
the machine.

The worker makes it, at a path beside its error file (shared_page), when it first calls a function
of `relight.worker`; the agent makes it if it has something to say earlier. Each word has one
writer, which never bases a decision on reading it back. A bug in the script can write anything
anywhere, so readers take words through the functions below, which ignore a word out of bounds.
Change `SUFFIX` whenever the meaning of a word changes: workers that start after an upgrade may
import another version than their agent, and must then share nothing with it.
"""

import struct
from collections.abc import Callable

SIZE = 4096
"""Bytes of the file."""
SUFFIX = ".shared"
"""Suffix that the name of the error file gets for this file."""

LIMIT = 0
"""By the agent: no worker may return from this call of `should_checkpoint` before AGREED is set, or
LIMIT is changed; 0 for no limit."""
AGREED = 1
"""By the agent: from this call on, `should_checkpoint` returns True; 0 for never."""
DEADLINE = 2
"""By the agent: when the worker is stopped, in nanoseconds of the monotonic clock; 0 for never."""
LEAVE = 3
"""By the agent: how many groups the worker is to have left (worker/recovery); 0 for none."""
JOIN = 4
"""By the agent: how many of them it has replaced by a new one, whose variables are in a file."""
MOST_LEFT_S = 2e6
"""The latest deadline from now, in seconds; the same as on the command line
(`values.MOST_SECONDS`)."""

CALLS = 8
"""By the worker: how often it has called `should_checkpoint`."""
STEP = 9
"""By the worker: the step that it has reported last."""
STEP_AT = 10
"""By the worker: when, in nanoseconds of the monotonic clock; 0 if it has reported none."""
FIRST_AT = 11
"""By the worker: when it has reported the first."""
INSIDE = 12
"""By the worker: 1 while it runs a recoverable function, then 2."""
LEFT = 13
"""By the worker: the value of LEAVE that it has obeyed."""
JOINED = 14
"""By the worker: the value of JOIN that it has obeyed."""
VARIABLES_SUFFIX = ".group.json"
"""Suffix that the name of the error file gets for the file with the variables of a new group."""
WRITES = 15
"""By the worker: incremented before and after each write of VALUES; odd during a write."""
VALUES = 16
"""By the worker: its last reported values, each a name of NAME_WORDS words and a float."""
MOST_VALUES = 8
NAME_WORDS = 3
TOTAL = VALUES + MOST_VALUES * (NAME_WORDS + 1)
"""By the worker: the number of steps that it will do; 0 if it does not tell."""
MOST_NAME_BYTES = 8 * NAME_WORDS
MOST_CALLS = 1 << 60
"""base/fields accepts no higher number of calls."""
MOST_STEP = 1 << 62
"""base/fields accepts no higher step."""


def calls(page: memoryview) -> int:
    """Return how often the worker has called `should_checkpoint`; 0 for nonsense."""
    count = page[CALLS]
    return count if count <= MOST_CALLS else 0


def progress(page: memoryview, began: float, now: Callable[[], float]) -> tuple[int, float] | None:
    """Return the step that the worker has reported last, and when; None if it has reported none.

    Args:
        page: the memory.
        began: when its worker was started, or a moment before, on the monotonic clock.
        now: returns the time on that clock.
    """
    step, at = page[STEP], page[STEP_AT] / 1e9
    return (step, at) if at and step <= MOST_STEP and began <= at <= now() else None


def total(page: memoryview) -> int | None:
    """Return the number of steps that the worker will do, or None."""
    return page[TOTAL] if 0 < page[TOTAL] <= MOST_STEP else None


def values(page: memoryview) -> tuple[str, ...]:
    """Return the last reported values, as `loss=0.31`; empty while the worker writes."""
    writes, width = page[WRITES], NAME_WORDS + 1
    data = page[VALUES : VALUES + MOST_VALUES * width].tobytes()
    if writes % 2 or page[WRITES] != writes:
        return ()
    found = []
    for start in range(0, len(data), 8 * width):
        end = start + MOST_NAME_BYTES
        name = data[start:end].rstrip(b"\0").decode(errors="replace")
        if name.isidentifier():
            found.append(f"{name}={struct.unpack_from('d', data, end)[0]:.6g}")
    return tuple(found)


def span(page: memoryview, began: float, now: Callable[[], float]) -> tuple[float, float] | None:
    """Return when the worker has first and last reported a step; None if it has reported none."""
    first, last = page[FIRST_AT] / 1e9, page[STEP_AT] / 1e9
    return (first, last) if first and began <= first <= last <= now() else None


def left_s(page: memoryview, now: float) -> float | None:
    """Return how long the agent lets the worker run, in seconds, negative if that is over; None if
    the agent has set no deadline.
    """
    deadline = page[DEADLINE]
    left = deadline / 1e9 - now
    return left if deadline and abs(left) <= MOST_LEFT_S else None


def leaves(page: memoryview, call: int) -> bool | None:
    """Return whether a worker saves and leaves at this call of `should_checkpoint`; None while it
    is held.
    """
    agreed = page[AGREED]
    if agreed:
        return bool(call >= agreed)
    limit = page[LIMIT]
    return None if limit and call >= limit else False
