"""Stops workers, and all that they have started, for as long as their lease is over.

A worker's children may be in sessions of their own, and may have lost their parents; other
programs send SIGCONT as well, for instance whoever continues all processes of a machine that was
suspended. So the freeze is looked at again and again while it lasts. A process that somebody else
had stopped before is not continued at its end.
"""

import os
import signal

from relight.host import system

_ROUNDS = 100
"""For a process that forks faster than it can be stopped: on with the next look."""


class Freezer:
    """The descendants of this process that it has stopped."""

    def __init__(self) -> None:
        self._stopped: dict[int, None] = {}

    def hold(self) -> None:
        """Stop all that run, also what they start meanwhile."""
        for _ in range(_ROUNDS):
            running = [pid for pid in system.tree(os.getpid()) if system.is_running(pid)]
            for pid in running:
                _send(pid, signal.SIGSTOP)
            if self._stopped.keys() >= set(running):
                return
            self._stopped.update(dict.fromkeys(running))

    def release(self) -> None:
        """Let those go on that were stopped here.

        Children go first: a shell would take a child that it sees stopped for suspended.
        """
        for pid in reversed(system.tree(os.getpid())):
            if pid in self._stopped:
                _send(pid, signal.SIGCONT)
        self._stopped.clear()


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (PermissionError, ProcessLookupError):
        pass  # a setuid program's; or it has just ended
