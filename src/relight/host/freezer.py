"""Stops workers and all their descendants while their lease has expired.

A worker's children may be in sessions of their own, and may have lost their parents; other
programs send SIGCONT as well, for instance one that continues all processes after a machine was
suspended. So the freeze is repeated while it lasts. A process that was already stopped by another
program is not continued afterwards.
"""

import os
import signal

from relight.host import system

_ROUNDS = 100
"""Limit for a process that forks faster than it can be stopped: the next call continues."""


class Freezer:
    """The descendants of this process that it has stopped."""

    def __init__(self) -> None:
        self._stopped: dict[int, None] = {}

    def hold(self) -> None:
        """Stop all running descendants, also those that they start meanwhile."""
        for _ in range(_ROUNDS):
            running = [pid for pid in system.tree(os.getpid()) if system.is_running(pid)]
            for pid in running:
                _send(pid, signal.SIGSTOP)
            if self._stopped.keys() >= set(running):
                return
            self._stopped.update(dict.fromkeys(running))

    def release(self) -> None:
        """Continue the processes that `hold` has stopped.

        Children go first: a shell would take a stopped child for a suspended job.
        """
        for pid in reversed(system.tree(os.getpid())):
            if pid in self._stopped:
                _send(pid, signal.SIGCONT)
        self._stopped.clear()


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (PermissionError, ProcessLookupError):
        pass  # a setuid program, or it has just ended
