"""A node's worker processes, the processes that they start, and signals from other programs.

Started processes have their own sessions or are orphaned. The shipped freezer stops and resumes
them all. A process that isn't stopped yet may start another one between any two freezer steps.
"""

import signal
from random import Random

_SPAWNER = 0
_MAX = 12


class Processes:
    """The descendants of a node's spawner.

    Args:
        random: Determines which process starts another one.
        workers: The number of workers.
        lively: Whether they start other processes.
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
        """Return the running processes."""
        return [pid for pid in self._parents if pid not in self._stopped]

    @property
    def left_stopped(self) -> set[int]:
        """Return the processes stopped by anyone other than another program."""
        return self._stopped - self._stopped_by_others

    # The parts of `relight.host.system` that the freezer uses, and `os.kill`.

    def tree(self, pid: int) -> list[int]:
        """Return all processes, each after its parent. Orphans belong to the spawner."""
        del pid
        found = [_SPAWNER]
        for each in found:
            found += [child for child, parent in self._parents.items() if parent == each]
        return found[1:]

    def is_running(self, pid: int) -> bool:
        """Return whether a process exists and isn't stopped."""
        return pid in self._parents and pid not in self._stopped

    def kill(self, pid: int, number: int) -> None:
        """Send a signal. Before it arrives, some process may start another one or exit."""
        self.live()
        if pid not in self._parents:
            raise ProcessLookupError
        if number == signal.SIGSTOP:
            self._stopped.add(pid)
        else:
            self._stopped.discard(pid)

    # What happens to them.

    def live(self) -> None:
        """Let a running process start another one, or exit before its children."""
        running = self.running
        if not self._lively or not running or self._random.random() < 0.5:
            return
        pid = self._random.choice(running)
        if self._parents[pid] != _SPAWNER and self._random.random() < 0.2:
            del self._parents[pid]
            for child, parent in self._parents.items():
                if parent == pid:
                    self._parents[child] = _SPAWNER
        elif len(self._parents) < _MAX:
            self._started += 1
            self._parents[self._started] = pid

    def continue_all(self) -> None:
        """Let another program resume all processes, ordered by pid."""
        self._stopped_by_others.clear()
        for pid in sorted(self._parents):
            self.live()
            self._stopped.discard(pid)

    def stop_one(self) -> None:
        """Let another program stop a running process. It must then stay stopped."""
        if running := self.running:
            pid = self._random.choice(running)
            self._stopped.add(pid)
            self._stopped_by_others.add(pid)


class Below:
    """Replaces `relight.host.system`: descendants of the calling process."""

    processes: Processes

    def tree(self, pid: int) -> list[int]:
        return self.processes.tree(pid)

    def is_running(self, pid: int) -> bool:
        return self.processes.is_running(pid)


BELOW = Below()


def send(pid: int, number: int) -> None:
    """Replaces the freezer's `_send`."""
    try:
        BELOW.processes.kill(pid, number)
    except ProcessLookupError:
        pass
