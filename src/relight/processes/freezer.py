"""Freezes workers and all their descendants (SIGSTOP) while their lease has expired.

A lease is a time until which the workers may run; the agent renews it. A worker's children may be
in sessions of their own, and may have lost their parents; other programs may send SIGCONT, for
instance one that continues all processes after a machine was suspended. So the freeze is repeated
while it lasts. A process that was already stopped by another program is not continued afterwards.
"""

import os
import signal

from relight.host import system

_ROUNDS = 100
"""Limit for a process that forks faster than it can be stopped: the next look continues."""
LOOK_EVERY_S = 0.05
"""How often frozen processes are checked: another program may continue them."""


class Freezer:
    """The lease of this process's descendants, and those that it has frozen.

    Attributes:
        until: the end of the lease, on the clock of `look`; 0 for no limit.
        frozen: whether the descendants are frozen.
    """

    def __init__(self) -> None:
        self.until = 0.0
        self.frozen = False
        self._frozen_pids: set[int] = set()

    def next_look(self, now: float) -> float | None:
        """Return the time of the next `look`, or None if no lease ends."""
        if self.frozen:
            return now + LOOK_EVERY_S
        return self.until or None

    def look(self, now: float) -> bool:
        """Freeze the descendants if the lease has expired, thaw them if it was renewed.

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
        """Freeze all running descendants, including ones started during the freeze."""
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
        """Continue the processes that were frozen here.

        Children go first: a shell would take a stopped child for a suspended job.
        """
        for pid in reversed(system.tree(os.getpid())):
            if pid in self._frozen_pids:
                _send(pid, signal.SIGCONT)
        self._frozen_pids.clear()


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (PermissionError, ProcessLookupError):
        pass  # a setuid program, or it has just ended
