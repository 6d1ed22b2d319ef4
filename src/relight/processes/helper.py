"""Runs the processes that an agent starts in addition to the workers: a health check, py-spy, the
status page, or the event handler.

Each of these helpers has its own guard and spawner, as the workers do (`processes/spawner.py`). No
descendant is therefore left behind, no matter which process is killed, and a helper can run even
without a guard or spawner for workers. The agent never waits for the helper itself, because the
helper may be stuck in an uninterruptible call. Instead, the agent waits for messages on the
spawner's socket, with a time limit.

    agent --fork--> guard --fork--> spawner --fork, exec--> helper --> whatever it starts
"""

import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from relight.base.text import LineBuffer
from relight.host import system
from relight.host.descriptors import receive
from relight.host.loop import Loop
from relight.processes import spawner
from relight.processes.generation_pipe import WorkerPlan

_END_S = 1.0
"""How long `run` waits for a closed helper's guard to exit, so that it can be reaped."""
_MAX_OUTPUT = 16 << 20


class Finished(NamedTuple):
    """A program's exit code, and the first 16 MiB each of its stdout and stderr."""

    exitcode: int
    stdout: bytes
    stderr: bytes


class Helper:
    """A helper process. It and everything that it started are killed when this object is closed or
    when the agent exits.

    Args:
        command: the program, looked up in the PATH given by `variables`, and its arguments.
        variables: its environment.
        output: the descriptor for the process's stdout.
        errors: the descriptor for the process's stderr.
        stdin: the descriptor for the process's stdin, or None for no input.
        call: a function to run instead of the command, in a fork of this process with only these
            three descriptors.

    Attributes:
        exitcode: the exit code, negative for a signal, or None while the process is running.
        error: why the process could not be started, or empty.
        is_lost: whether its spawner was killed, which also killed the process.

    Raises:
        OSError: if the process can't be forked, or descriptors are exhausted.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        output: int,
        errors: int,
        *,
        stdin: int | None = None,
        call: Callable[[], object] | None = None,
    ) -> None:
        self.exitcode: int | None = None
        self.error: OSError | None = None
        self.is_lost = False
        self._spawner = 0
        self._buffer = LineBuffer()
        self._loop: Loop | None = None
        plan = WorkerPlan(
            0, tuple(command), variables, output, errors, frozenset(), signal_group=False
        )
        system.adopt_orphans()
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pid, self._socket = spawner.fork_helper(plan, null if stdin is None else stdin, call)
        finally:
            os.close(null)
        try:
            self._child = system.Child(pid)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there are messages for `hear` to
        process.
        """
        return self._socket.fileno()

    def watch(self, loop: Loop, on_end: Callable[[], None]) -> None:
        """Call `on_end` once, when the process has exited."""

        def hear() -> None:
            if self.hear():
                loop.forget(self)
                on_end()

        self._loop = loop
        loop.on_readable(self, hear)

    def hear(self) -> bool:
        """Process the spawner's messages, and return whether the process has exited. This never
        blocks.
        """
        if self.exitcode is not None:
            return True
        data = receive(self._socket, 4096, socket.MSG_DONTWAIT)
        if data is None:
            return False
        for line in self._buffer.feed(data):
            self._take(line.decode(errors="replace"))
        if not data and self.exitcode is None:
            self.exitcode, self.is_lost = -signal.SIGKILL, True
        return self.exitcode is not None

    def wait(self, limit_s: float) -> bool:
        """Wait, up to a time limit, until the process has exited, and return whether it has."""
        end, poll = time.monotonic() + limit_s, select.poll()
        poll.register(self._socket, select.POLLIN)
        while not self.hear():
            left = end - time.monotonic()
            if left <= 0:
                return False
            poll.poll(left * 1000 + 1)
        return True

    def ask_to_end(self) -> None:
        """Send SIGTERM to the process."""
        with suppress(OSError):  # its spawner has exited
            self._socket.sendall(f"signal 0 {signal.SIGTERM:d}\n".encode())
        self._child.send(signal.SIGCONT)

    def close(self) -> None:
        """Get the process and everything that it started killed, without waiting."""
        if self._socket.fileno() < 0:
            return
        loop = self._loop
        if loop is not None:
            loop.forget(self)
        self._socket.close()
        self._child.send(signal.SIGCONT)  # its spawner may have been stopped
        if loop is not None:
            loop.on_readable(self._child, self._reap)
            return
        poll = select.poll()
        poll.register(self._child, select.POLLIN)
        if poll.poll(_END_S * 1000):
            self._reap()

    def _take(self, line: str) -> None:
        word, *rest = line.split()
        if word == "holder":
            self._spawner = int(rest[0])
            self._child.guards(self._spawner)
            system.own_children.add(self._spawner)  # it becomes a child if its guard is killed
        elif word == "exited":
            self.exitcode = int(rest[1])
        elif word in ("failed", "unborn"):
            self.error = OSError(int(rest[1]), os.strerror(int(rest[1])))
            if word == "unborn":  # so there will be no exit message
                self.exitcode = 127
        elif word in ("refused", "broken"):
            self.error = OSError(errno.EIO, "its spawner failed: " + " ".join(rest))
            self.exitcode = 127

    def _reap(self) -> None:
        if self._loop is not None:
            self._loop.forget(self._child)
        self._child.reap()
        self._child.close()
        if self._spawner:
            with suppress(ChildProcessError):  # its guard is still alive and has reaped it
                system.reap(self._spawner, 0)


def run(command: Sequence[str], variables: Mapping[str, str], limit_s: float) -> Finished:
    """Run a program until it exits. Call this in a thread, or where blocking is acceptable.

    Raises:
        TimeoutError: if it has not ended in time. The process is killed if possible.
        OSError: if it can't be started.
    """
    files: list[int] = []
    try:
        files += [system.anonymous_file("stdout"), system.anonymous_file("stderr")]
        helper = Helper(command, variables, *files)
        try:
            if not helper.wait(limit_s):
                raise TimeoutError(errno.ETIMEDOUT, f"no end within {limit_s:g} s")
        finally:
            helper.close()
        if helper.error is not None:
            raise helper.error
        return Finished(helper.exitcode or 0, *(os.pread(fd, _MAX_OUTPUT, 0) for fd in files))
    finally:
        for fd in files:
            os.close(fd)
