"""Waits until the process that started this one has exited (--end-with-parent)."""

import os
from collections.abc import Callable

from relight.host.loop import Loop

_POLL_S = 0.5


class ParentWatch:
    """Polls to detect when this process's parent changes. PR_SET_PDEATHSIG is not used, because it
    would report the exit of the thread that started this process, even if the parent's other
    threads are still running.

    Args:
        loop: the agent's loop.
        on_end: called once, with the pid of the parent that has exited.
    """

    def __init__(self, loop: Loop, on_end: Callable[[int], None]) -> None:
        self._loop = loop
        self._pid = os.getppid()
        self._on_end = on_end
        loop.call_after(_POLL_S, self._poll)

    def _poll(self) -> None:
        if os.getppid() != self._pid:
            self._on_end(self._pid)
        else:
            self._loop.call_after(_POLL_S, self._poll)
