"""The memory that an agent shares with one worker: one page of 8-byte words, in the byte order of
the machine.

The worker makes it, as a file beside its error file, when it first calls a function of
`relight.worker`; the agent makes it if it has something to say before. Each word has one writer.
A change of what words mean changes `SUFFIX`: workers that start after an upgrade may import another
version than that of their agent, and the two then share nothing.
"""

SIZE = 4096
"""Bytes of the file."""
SUFFIX = ".shared"
"""What the file's name has after the name of the error file."""

LIMIT = 0
"""By the agent: no worker may return from this call of `should_checkpoint` before AGREED is set, or
LIMIT is changed; 0 for no limit."""
AGREED = 1
"""By the agent: from this call on, `should_checkpoint` returns True; 0 for never."""
DEADLINE = 2
"""By the agent: when the worker is stopped, in nanoseconds of the monotonic clock; 0 for never."""

CALLS = 8
"""By the worker: how often it has called `should_checkpoint`."""
STEP = 9
"""By the worker: the step that it has reported last."""
STEP_AT = 10
"""By the worker: when, in nanoseconds of the monotonic clock; 0 if it has reported none."""
FIRST_AT = 11
"""By the worker: when it has reported the first."""


def leaves(page: memoryview, call: int) -> bool | None:
    """Return whether a worker saves and leaves at this call of `should_checkpoint`; None while it
    is held.
    """
    agreed = page[AGREED]
    if agreed:
        return bool(call >= agreed)
    limit = page[LIMIT]
    return None if limit and call >= limit else False
