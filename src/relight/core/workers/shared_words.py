"""The memory that an agent shares with one worker: a single page of 8-byte words in native byte
order.

The worker creates the page next to its error file (shared_page) when it first calls a function from
`relight.worker`. If the agent has to write something before that, the agent creates the page. Each
word has a single writer, which never makes decisions based on values that it reads back. A bug in
the script may overwrite any part of this memory, so readers access words through the functions
below, which ignore values that are out of bounds. Change `SUFFIX` whenever the meaning of a word
changes. Workers that start after an upgrade may import a newer version of relight than their agent
runs. Such workers must not share memory with the agent.
"""

import struct
from collections.abc import Callable

SIZE = 4096
"""File size in bytes."""
SUFFIX = ".shared"
"""The name of this file is the error file's name with this suffix."""

LIMIT = 0
"""Written by the agent: no worker may return from this call of `should_checkpoint` before AGREED is
set or LIMIT is changed. 0 means no limit.
"""
AGREED = 1
"""Written by the agent: starting with this call, `should_checkpoint` returns True. 0 means
never.
"""
DEADLINE = 2
"""Written by the agent: when it will stop the worker, in nanoseconds on the monotonic clock. 0
means never.
"""
LEAVE = 3
"""Written by the agent: how many process groups the worker must have left by now (worker/survivor).
0 means none.
"""
JOIN = 4
"""Written by the agent: how many of these groups have been replaced by a new group, whose variables
are in a file.
"""
MAX_LEFT_S = 2e6
"""How many seconds in the future a deadline may be. The limit is the same as on the command line
(`values.MAX_SECONDS`).
"""

CALLS = 8
"""Written by the worker: how often it has called `should_checkpoint`."""
STEP = 9
"""Written by the worker: the last step that it has reported."""
STEP_AT = 10
"""Written by the worker: when it reported that step, in nanoseconds on the monotonic clock, or 0 if
it has not reported a step.
"""
FIRST_AT = 11
"""Written by the worker: when it reported its first step."""
INSIDE = 12
"""Written by the worker: 1 while it is running a recoverable function, and 2 afterwards."""
LEFT = 13
"""Written by the worker: the latest value of LEAVE that it has acted on."""
JOINED = 14
"""Written by the worker: the latest value of JOIN that it has acted on."""
VARIABLES_SUFFIX = ".group.json"
"""The file with a new group's variables has the error file's name with this suffix."""
WRITES = 15
"""Written by the worker: a counter that is incremented before and after each write to VALUES, and
is therefore odd during a write.
"""
VALUES = 16
"""Written by the worker: the values that it reported last. Each value consists of a name,
NAME_WORDS words long, and a float.
"""
MAX_VALUES = 8
NAME_WORDS = 3
TOTAL = VALUES + MAX_VALUES * (NAME_WORDS + 1)
"""Written by the worker: the total number of steps that it will run, or 0 if it does not report a
total.
"""
MAX_NAME_BYTES = 8 * NAME_WORDS
MAX_CALLS = 1 << 60
"""The highest call count that base/fields accepts."""
MAX_STEP = 1 << 62
"""The highest step that base/fields accepts."""


def calls(page: memoryview) -> int:
    """Return how many times the worker has called `should_checkpoint`, or 0 if the value is
    invalid.
    """
    count = page[CALLS]
    return count if count <= MAX_CALLS else 0


def progress(page: memoryview, began: float, now: Callable[[], float]) -> tuple[int, float] | None:
    """Return the last step that the worker reported and when it did so, or None.

    Args:
        page: the memory.
        began: when the worker was started, or a moment before that, on the monotonic clock.
        now: returns the time on that clock.
    """
    step, at = page[STEP], page[STEP_AT] / 1e9
    return (step, at) if at and step <= MAX_STEP and began <= at <= now() else None


def total(page: memoryview) -> int | None:
    """Return the total number of steps that the worker will run, or None if unknown."""
    return page[TOTAL] if 0 < page[TOTAL] <= MAX_STEP else None


def values(page: memoryview) -> tuple[str, ...]:
    """Return the values that the worker reported last, such as `loss=0.31`. Return an empty tuple
    while the worker is writing them.
    """
    writes, width = page[WRITES], NAME_WORDS + 1
    data = page[VALUES : VALUES + MAX_VALUES * width].tobytes()
    if writes % 2 or page[WRITES] != writes:
        return ()
    found = []
    for start in range(0, len(data), 8 * width):
        end = start + MAX_NAME_BYTES
        name = data[start:end].rstrip(b"\0").decode(errors="replace")
        if name.isidentifier():
            found.append(f"{name}={struct.unpack_from('d', data, end)[0]:.6g}")
    return tuple(found)


def span(page: memoryview, began: float, now: Callable[[], float]) -> tuple[float, float] | None:
    """Return the times when the worker reported its first and last steps, or None if it has not
    reported any.
    """
    first, last = page[FIRST_AT] / 1e9, page[STEP_AT] / 1e9
    return (first, last) if first and began <= first <= last <= now() else None


def left_s(page: memoryview, now: float) -> float | None:
    """Return how many seconds remain until the agent's deadline for the worker, or None if there is
    no deadline. The number is negative once the deadline has passed.
    """
    deadline = page[DEADLINE]
    left = deadline / 1e9 - now
    return left if deadline and abs(left) <= MAX_LEFT_S else None


def leaves(page: memoryview, call: int) -> bool | None:
    """Return whether a worker must save and exit on this call to `should_checkpoint`, or None while
    a decision is pending.
    """
    agreed = page[AGREED]
    if agreed:
        return bool(call >= agreed)
    limit = page[LIMIT]
    return None if limit and call >= limit else False
