"""Opens the memory that an agent shares with a worker (core/worker_words), for both sides."""

import errno
import mmap
import os

from relight.core.worker_words import SIZE

_LEAST_BLOCK = 512
"""Bytes of the smallest block of a file system."""


def mapped(path: str, *, make: bool) -> memoryview:
    """Return the memory in a file as 8-byte words; either side may make the file.

    Its blocks are allocated first: a write to a hole ends the process with SIGBUS if the disk is
    full (mmap(2)).

    Raises:
        OSError: there is no such file and `make` is not set, or the disk is full.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o600)
    try:
        _allocate(fd)
        return memoryview(mmap.mmap(fd, SIZE)).cast("Q")
    except ValueError as error:  # somebody has truncated it
        raise OSError(errno.EIO, str(error), path) from None
    finally:
        os.close(fd)


def _allocate(fd: int) -> None:
    try:
        os.posix_fallocate(fd, 0, SIZE)
    except (AttributeError, OSError):
        # The disk is full, which a write says too; or macOS or musl, which do not emulate it as
        # glibc does: by a byte in each block, here one that is in no word in use.
        for block in range(0, SIZE, _LEAST_BLOCK):
            os.pwrite(fd, b"\0", block + _LEAST_BLOCK - 1)
