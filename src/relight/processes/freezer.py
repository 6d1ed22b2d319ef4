"""Freezes workers and all their descendants (with SIGSTOP) when their lease has expired, until the
lease is renewed.

A lease limits how long the workers may run without a renewal by the agent. Descendants may be in
sessions of their own, and their parents may have exited. Another program may send them SIGCONT, for
example in order to resume all processes after the machine was suspended. The workers are therefore
stopped repeatedly as long as they are to stay frozen. A process that another program had already
stopped is not resumed afterwards.
"""

import os
import signal
from contextlib import suppress

from relight.host import system

_ROUNDS = 100
"""Maximum number of passes over the descendants if a process forks faster than it can be stopped.
The next check then stops the remaining ones.
"""
POLL_S = 0.05
"""How often frozen processes are checked, because another program may have resumed them."""


class Freezer:
    """Manages the lease for this process's descendants, and freezes them.

    Attributes:
        until: the end of the lease, on the clock whose time is passed to `look`, or 0 for no limit.
        frozen: whether the descendants are frozen.
    """

    def __init__(self) -> None:
        self.until = 0.0
        self.frozen = False
        self._frozen_pids: set[int] = set()

    def next_check(self, now: float) -> float | None:
        """Return the time of the next call to `look`, or None if no lease will expire."""
        if self.frozen:
            return now + POLL_S
        return self.until or None

    def look(self, now: float) -> bool:
        """Freeze the descendants if the lease has expired, or thaw them if it has been renewed.

        Returns:
            Whether `frozen` has changed.
        """
        expired = bool(self.until) and now >= self.until
        if expired:
            self._freeze_all()
        elif self.frozen:
            self._thaw_all()
        changed = expired != self.frozen
        self.frozen = expired
        return changed

    def _freeze_all(self) -> None:
        """Freeze all running descendants, including those started during the freeze."""
        signalled: set[int] = set()
        for _ in range(_ROUNDS):
            descendants = [pid for pid in system.tree(os.getpid()) if pid not in signalled]
            running = [pid for pid in descendants if system.is_running(pid)]
            if not running:
                return
            for pid in running:
                _send(pid, signal.SIGSTOP)
            signalled.update(running)
            self._frozen_pids.update(running)

    def _thaw_all(self) -> None:
        """Resume the processes that this freezer has frozen.

        Children are resumed before their parents, because a shell would mistake a stopped child for
        a suspended job.
        """
        for pid in reversed(system.tree(os.getpid())):
            if pid in self._frozen_pids:
                _send(pid, signal.SIGCONT)
        self._frozen_pids.clear()


def _send(pid: int, number: int) -> None:
    with suppress(PermissionError, ProcessLookupError):  # a setuid program, or it has just exited
        os.kill(pid, number)
