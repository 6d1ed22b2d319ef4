"""Defines a process handle that remains valid even after the pid has been reused.

Linux provides descriptors called pidfds for this purpose (pidfd_open(2), Linux 5.3). There are
three implementations, and the first one that works is used:

    os.pidfd_open       CPython has this function if it was built with kernel headers that support
                        the system call
    the system call     is made by its number
    without pidfds      a process is recognised by its start time (proc_pid_stat(5)), and a thread
                        polls every 50 ms until it ends. This is for kernels that lack the system
                        call (RHEL 8, gVisor), and for seccomp filters that refuse it
"""

import _thread
import errno
import os
import select
import signal
import time
from collections.abc import Callable

from relight.host.files import read_small

_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434
"""The system call numbers, which since Linux 5.1 are the same on all architectures except Alpha and
MIPS (syscalls(2)).
"""
_REFUSALS = (errno.ENOSYS, errno.EPERM, errno.EACCES)
"""The errors that kernels and seccomp filters return when they refuse a system call. pidfd_open(2)
itself never returns them.
"""
_POLL_S = 0.05


class ProcessHandle:
    """A reference to a process. Without pidfds, `fileno` starts a thread. A forked process doesn't
    inherit that thread, so `fileno` starts another one in that process.

    Args:
        pid: the process. It may have ended, but it must not have been reaped yet.

    Raises:
        ProcessLookupError: if the process does not exist.
        OSError: if no descriptor is left.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = _pidfd_open(pid)
        self._started = b""
        if self._pidfd < 0:
            _, self._started = _state_and_start(pid)
        self._pipe = -1
        self._owner = 0
        """The pid of the process whose thread writes to the pipe."""
        self._is_closed = False

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that a forked process must keep open for this handle to work."""
        return () if self._pidfd < 0 else (self._pidfd,)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable once the process has exited.

        Raises:
            OSError: if no descriptor or thread is left.
        """
        if self._pidfd >= 0:
            return self._pidfd
        if self._owner != os.getpid():
            self._pipe = self._start_thread()
            self._owner = os.getpid()
        return self._pipe

    def has_ended(self) -> bool:
        """Return whether the process has exited, even if it has not been reaped yet."""
        return self.wait(0)

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait up to `limit_s` seconds for the process to end, and return whether it has. The
        process is not reaped.
        """
        if self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(None if limit_s is None else limit_s * 1000))
        end = None if limit_s is None else time.monotonic() + limit_s
        while True:
            try:
                state, started = _state_and_start(self.pid)
            except ProcessLookupError:
                return True
            except OSError:
                state, started = b"", self._started  # no descriptor is left: check again later
            if started != self._started or state in (b"Z", b"X"):
                return True
            left = _POLL_S if end is None else end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _POLL_S))

    def send(self, number: int) -> None:
        """Send the process a signal.

        Raises:
            ProcessLookupError: if it has ended.
            PermissionError: if it belongs to another user.
        """
        if self._pidfd >= 0 and _pidfd_send_signal(self._pidfd, number):
            return
        if self.has_ended():
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        os.kill(self.pid, number)

    def close(self) -> None:
        """Close the descriptor."""
        self._is_closed = True
        if self._pidfd >= 0:
            os.close(self._pidfd)
        elif self._owner == os.getpid():
            os.close(self._pipe)

    def _start_thread(self) -> int:
        reading, writing = os.pipe()
        # Signals must interrupt the main thread, so this thread blocks them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._report_end, (writing,))
        except RuntimeError as error:
            os.close(reading)
            os.close(writing)
            raise OSError(errno.EAGAIN, str(error)) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return reading

    def _report_end(self, writing: int) -> None:
        while not (self._is_closed or self.wait(_POLL_S)):
            pass
        if not self._is_closed:
            os.write(writing, b"\0")
        os.close(writing)


def _pidfd_open(pid: int) -> int:
    """Return a pidfd, or -1 on systems that don't support them.

    Raises:
        OSError: if the process does not exist, or no descriptor is left.
    """
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        return _system_call(_PIDFD_OPEN, pid, 0)
    except OSError as error:
        if error.errno in _REFUSALS:
            return -1
        raise


def _pidfd_send_signal(pidfd: int, number: int) -> bool:
    """Send a signal, and return False if the kernel or a seccomp filter refuses the system call.

    Raises:
        ProcessLookupError: if the process has been reaped.
    """
    try:
        if hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(pidfd, number)
        else:
            _system_call(_PIDFD_SEND_SIGNAL, pidfd, number, None, 0)
    except OSError as error:
        if error.errno in _REFUSALS:
            return False
        raise
    return True


def _system_call(number: int, *arguments: "int | None") -> int:
    import ctypes

    call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall
    result = call(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _state_and_start(pid: int) -> tuple[bytes, bytes]:
    """Return the state letter and the start time of a process.

    Raises:
        ProcessLookupError: if the process does not exist.
        OSError: if no descriptor is left.
    """
    try:
        words = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split(None, 20)
    except FileNotFoundError as error:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error
    return words[0], words[19]
