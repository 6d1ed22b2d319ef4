"""Reads the memory of another process, which changes meanwhile. Nothing in it is trusted."""

import os
import struct

from relight.errors import RelightError

_MOST_BYTES = 1 << 20


class StackError(RelightError):
    """The Python stack of a process can't be read; the message says why."""


class Memory:
    """The memory of a process; close it after use.

    Args:
        pid: the process.

    Raises:
        StackError: it is gone, or may not be read.
    """

    def __init__(self, pid: int) -> None:
        try:
            self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StackError(f"there is no process {pid}") from None
        except PermissionError:
            raise StackError(
                f"pid {pid} may not be read",
                hint="it belongs to another user, or kernel.yama.ptrace_scope forbids it: "
                "be root, or have CAP_SYS_PTRACE",
            ) from None
        except OSError as error:
            raise StackError(f"pid {pid} can't be read: {error.strerror}") from None

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes from an address.

        Raises:
            StackError: they are not there.
        """
        if not (0 < address < 1 << 63 and 0 <= size <= _MOST_BYTES):
            raise StackError(f"a pointer to {address:#x} leads nowhere")
        try:
            data = os.pread(self._fd, size, address)
        except OSError:
            data = b""  # not mapped, or the process has ended
        if len(data) < size:
            raise StackError(f"there are no {size} bytes at {address:#x}")
        return data

    def word(self, address: int) -> int:
        """Return the 8 bytes at an address as a number."""
        (value,) = struct.unpack("<Q", self.read(address, 8))
        return int(value)

    def number(self, address: int) -> int:
        """Return the C int at an address."""
        (value,) = struct.unpack("<i", self.read(address, 4))
        return int(value)
