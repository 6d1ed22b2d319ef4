"""Decides when a sandbox job has ended, and derives its exit code from its agents.

A host runs, or its agent ended, or a fault killed it; a running host may be cut off or
frozen. The job ends when no active agent is left: one that is cut off or frozen is not waited for
once another has ended on its own, because the job continues without it.
"""

from relight.base.errors import exit_code_of_signal

_KILLED = exit_code_of_signal(9)


class SandboxJob:
    """The agents of a job, one a host. Hosts are numbers from 1.

    Args:
        hosts: how many there are; the agents of all are running.
    """

    def __init__(self, hosts: int) -> None:
        self.running = set(range(1, hosts + 1))
        """Hosts whose agents run."""
        self.cut: set[int] = set()
        self.frozen: set[int] = set()
        self._killed: set[int] = set()
        self._code: int | None = None

    def killed(self, host: int) -> None:
        """Record that a fault kills a host: its agent's exit code is ignored."""
        self._killed.add(host)
        self.running.discard(host)
        self.cut.discard(host)
        self.frozen.discard(host)

    def started(self, host: int) -> None:
        """Record the start of an agent on a host."""
        self._killed.discard(host)
        self.running.add(host)

    def ended(self, host: int, code: int) -> None:
        """Record the end of an agent."""
        self.running.discard(host)
        if host not in self._killed:
            self._code = code

    def exit_code(self, *, faults_left: bool) -> int | None:
        """Return the job's exit code, or None while it runs.

        It is the code of the last agent that ended on its own, or that of SIGKILL if all were
        killed.

        Args:
            faults_left: whether there are pending faults, which may restart a host.
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
        """Assert what always holds: a host that was killed does not run."""
        assert not self._killed & self.running
