"""Determines when a sandbox job has ended, and derives its exit code from its agents' exit codes.

On each host, the agent is running, has exited, or was killed by a fault. A host with a running
agent may be cut off or frozen. The job ends when no active agent is left. Once an agent has exited
on its own, the job does not wait for agents on hosts that are cut off or frozen, because the other
agents continue without them.
"""

from relight.base.errors import signal_exit_code

_KILLED = signal_exit_code(9)


class SandboxJob:
    """The agents in a job, one per host. Hosts are numbered starting at 1.

    Args:
        hosts: the number of hosts. Each host has a running agent at first.
    """

    def __init__(self, hosts: int) -> None:
        self.running = set(range(1, hosts + 1))
        """The hosts whose agents are running."""
        self.cut: set[int] = set()
        self.frozen: set[int] = set()
        self._killed: set[int] = set()
        self._code: int | None = None

    def killed(self, host: int) -> None:
        """Record that a fault killed a host, so that its agent's exit code is ignored."""
        self._killed.add(host)
        self.running.discard(host)
        self.cut.discard(host)
        self.frozen.discard(host)

    def started(self, host: int) -> None:
        """Record that an agent has been started on a host."""
        self._killed.discard(host)
        self.running.add(host)

    def ended(self, host: int, code: int) -> None:
        """Record that an agent has exited."""
        self.running.discard(host)
        if host not in self._killed:
            self._code = code

    def exit_code(self, *, faults_left: bool) -> int | None:
        """Return the job's exit code, or None while it is running.

        The job's exit code is that of the last agent to exit on its own. If all agents were killed,
        it is the exit code for SIGKILL.

        Args:
            faults_left: whether any faults are still pending. They may restart a host.
        """
        stuck = self.cut | self.frozen
        if self.running - stuck:
            return None
        if self._code is not None:
            return self._code
        if self.running - self.frozen or faults_left:
            return None
        return _KILLED

    def check(self) -> None:
        """Assert the invariant that no agent is running on a host that was killed."""
        assert not self._killed & self.running
