"""Reads another process's memory. The data can't be trusted and may change at any time, so the size
and number of reads are limited.
"""

import os
import struct
from collections.abc import Callable

from relight.base.errors import MachineError

_HIGHEST = 2**63
"""A number that is larger than any user-space address, and the limit for the offsets that os.pread
accepts.
"""
MAX_BYTES = 1 << 20
"""The maximum number of bytes per read."""
_MAX_READS = 500_000
"""The maximum number of reads per process, which takes about a second. 100 threads with 100 frames
each take 20,000.
"""


class StackError(MachineError):
    """Raised if the stack of a process can't be read. This package raises no other error.

    The message contains the process and the reason, and the hint describes the remedy. `unreadable`
    means that a different program might be able to read the stack.

    Args:
        message: the message, in one line.
        hint: the next step for the user.
        unreadable: whether it is worth trying py-spy.
    """

    def __init__(self, message: str, *, hint: str = "", unreadable: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.unreadable = unreadable


class Memory:
    """Reads numbers and bytes at addresses in a process.

    Args:
        pread: a function that, like `os.pread`, returns up to the requested number of bytes from an
            address, and raises OSError.
        pid: the process, for use in messages.
    """

    def __init__(self, pread: Callable[[int, int], bytes], pid: int) -> None:
        self._pread = pread
        self.pid = pid
        self._left = _MAX_READS

    def read(self, address: int, size: int) -> bytes:
        """Read exactly `size` bytes.

        Raises:
            StackError: if the bytes can't be read, or if the limit is exceeded.
        """
        self._left -= 1
        if self._left < 0 or not (0 < address < _HIGHEST - MAX_BYTES and 0 <= size <= MAX_BYTES):
            raise self.broken()
        try:
            data = self._pread(size, address)
        except ProcessLookupError:
            raise gone(self.pid) from None
        except OSError:
            raise self.broken() from None
        if len(data) != size:
            raise self.broken()
        return data

    def word(self, address: int) -> int:
        """Read the 8 bytes at an address as an unsigned integer."""
        return word_at(self.read(address, 8), 0)

    def broken(self) -> StackError:
        """Return the error to raise for memory that doesn't have the expected content."""
        return StackError(
            f"the memory of process {self.pid} does not have CPython's layout, or changes too fast",
            hint="try again, or try py-spy dump --pid",
            unreadable=True,
        )


def word_at(data: bytes, offset: int) -> int:
    """Return the 8 bytes at an offset in `data` as an unsigned integer. The caller must have
    checked the length of `data`.
    """
    number: int = struct.unpack_from("<Q", data, offset)[0]
    return number


def gone(pid: int) -> StackError:
    """Return the error to raise for a process that no longer exists."""
    return StackError(f"process {pid} has ended", hint="relight status shows the running agents")


def open_memory(pid: int) -> int:
    """Return a descriptor for /proc/PID/mem, for use with `os.pread`. The caller must close the
    descriptor.

    The kernel requires permission to trace the process (proc(5), PTRACE_MODE_ATTACH_FSCREDS).

    Raises:
        StackError: if the process has exited or may not be read.
    """
    try:
        return os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        raise gone(pid) from None
    except OSError as error:
        raise forbidden(pid, error) from None


def forbidden(pid: int, error: OSError) -> StackError:
    """Return the error to raise for a process whose files in /proc this user may not read."""
    return StackError(
        f"not permitted to read the memory of process {pid}: {error.strerror}",
        hint="run this command as the same user or with sudo (CAP_SYS_PTRACE), or allow it with "
        "sysctl kernel.yama.ptrace_scope=0",
        unreadable=True,
    )
