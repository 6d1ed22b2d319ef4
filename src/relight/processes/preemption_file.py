"""Waits for the file that announces a preemption (--on-preempt=FILE)."""

import os
from collections.abc import Callable

from relight.host.loop import Loop

_POLL_S = 1.0


class NoticeFile:
    """Checks whether a file exists, immediately and then every second until it does.

    Args:
        loop: the agent's loop.
        path: the file.
        on_there: called once, with the reason for the preemption.
    """

    def __init__(self, loop: Loop, path: str, on_there: Callable[[str], None]) -> None:
        self._loop = loop
        self._path = path
        self._on_there = on_there
        loop.call_after(0, self._poll)

    def _poll(self) -> None:
        if os.path.exists(self._path):
            self._on_there(f"{self._path} was created")
        else:
            self._loop.call_after(_POLL_S, self._poll)
