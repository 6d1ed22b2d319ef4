"""The processes of a node's workers. They start others, in sessions of their own or orphaned, and
other programs send them signals.

The shipped freezer stops and continues them. A process that is not stopped yet may start another
one between any two steps of the freezer.
"""

import signal
from random import Random

_SPAWNER = 0
_MOST = 12


class Processes:
    """The descendants of a node's spawner.

    Args:
        random: decides who starts what.
        workers: how many there are.
        lively: whether they start others.
    """

    def __init__(self, random: Random, workers: int, *, lively: bool) -> None:
        self._random = random
        self._lively = lively
        self._parents = dict.fromkeys(range(1, workers + 1), _SPAWNER)
        self._stopped: set[int] = set()
        self._stopped_by_others: set[int] = set()
        self._started = workers

    @property
    def running(self) -> list[int]:
        """Those that run."""
        return [pid for pid in self._parents if pid not in self._stopped]

    @property
    def left_stopped(self) -> set[int]:
        """Those that are stopped, and not by another program."""
        return self._stopped - self._stopped_by_others

    # The part of `relight.host.system` that the freezer uses, and `os.kill`.

    def tree(self, pid: int) -> list[int]:
        """Return all processes, each after its parent; orphans are the spawner's."""
        del pid
        found = [_SPAWNER]
        for each in found:
            found += [child for child, parent in self._parents.items() if parent == each]
        return found[1:]

    def is_running(self, pid: int) -> bool:
        """Return whether a process is there and not stopped."""
        return pid in self._parents and pid not in self._stopped

    def kill(self, pid: int, number: int) -> None:
        """Send a signal. Before it arrives, somebody may start another process, or end."""
        self.live()
        if pid not in self._parents:
            raise ProcessLookupError
        if number == signal.SIGSTOP:
            self._stopped.add(pid)
        else:
            self._stopped.discard(pid)

    # What happens to them.

    def live(self) -> None:
        """Let one that runs start another, or end before its children."""
        running = self.running
        if not self._lively or not running or self._random.random() < 0.5:
            return
        pid = self._random.choice(running)
        if self._parents[pid] != _SPAWNER and self._random.random() < 0.2:
            del self._parents[pid]
            for child, parent in self._parents.items():
                if parent == pid:
                    self._parents[child] = _SPAWNER
        elif len(self._parents) < _MOST:
            self._started += 1
            self._parents[self._started] = pid

    def continue_all(self) -> None:
        """Another program continues all processes, in the order of their pids."""
        self._stopped_by_others.clear()
        for pid in sorted(self._parents):
            self.live()
            self._stopped.discard(pid)

    def stop_one(self) -> None:
        """Another program stops one that runs, and will not want it to be continued."""
        if running := self.running:
            pid = self._random.choice(running)
            self._stopped.add(pid)
            self._stopped_by_others.add(pid)


class Below:
    """As `relight.host.system`: the descendants of the process that looks."""

    processes: Processes

    def tree(self, pid: int) -> list[int]:
        return self.processes.tree(pid)

    def is_running(self, pid: int) -> bool:
        return self.processes.is_running(pid)


BELOW = Below()


def send(pid: int, number: int) -> None:
    """As the freezer's `_send`."""
    try:
        BELOW.processes.kill(pid, number)
    except ProcessLookupError:
        pass
