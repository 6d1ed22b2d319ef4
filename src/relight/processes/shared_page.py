"""Opens the memory that an agent shares with a worker (core/workers/shared_words), for both sides.

It is a file that both find by its path. If the disk is full, it is a file in memory
(memfd_create(2)) of the process that came first, and the path is a link to its descriptor, because
a link that short does not need a block.
"""

import errno
import mmap
import os
import weakref

from relight.core.workers.shared_words import SIZE

_LEAST_BLOCK = 512
"""Bytes of the smallest block of a file system."""
_NAME = "relight-page"
_TARGET = f"/memfd:{_NAME} (deleted)"
"""The link of such a descriptor in proc_pid_fd(5)."""


def mapped(path: str, *, make: bool) -> memoryview:
    """Return the memory at a path as 8-byte words; either side may create it. An access raises
    SIGBUS if the file was truncated, so only the worker maps it; it can only harm itself.

    Raises:
        OSError: if it is missing and `make` is not set, or it can't be created.
    """
    fd = opened(path, make=make)
    try:
        page = memoryview(mmap.mmap(fd, SIZE)).cast("Q")
    except ValueError as error:  # somebody has truncated it
        os.close(fd)
        raise OSError(errno.EIO, str(error), path) from None
    weakref.finalize(page.obj, os.close, fd)  # the path may lead to it
    return page


def opened(path: str, *, make: bool) -> int:
    """Return a descriptor of the memory at a path; either side may create it.

    Raises:
        OSError: if it is missing and `make` is not set, or it can't be created.
    """
    where, flags = path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0)
    if os.path.islink(path):
        where, flags = os.readlink(path), os.O_RDWR | os.O_CLOEXEC
        if os.readlink(where) != _TARGET:  # another process has that number by now
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    fd = os.open(where, flags, 0o600)
    try:
        _allocate(fd)
    except OSError:
        os.close(fd)
        if not make or where != path or not hasattr(os, "memfd_create"):
            raise
        return _in_memory(path)
    return fd


def _allocate(fd: int) -> None:
    """Allocate the blocks: a write to a hole ends the process with SIGBUS if the disk is full
    (mmap(2)).
    """
    try:
        os.posix_fallocate(fd, 0, SIZE)
    except (AttributeError, OSError):
        # The disk is full, as a write would report; or macOS or musl, which do not emulate it as
        # glibc does: by a byte in each block, here one that is in no word in use.
        for block in range(0, SIZE, _LEAST_BLOCK):
            os.pwrite(fd, b"\0", block + _LEAST_BLOCK - 1)


def _in_memory(path: str) -> int:
    fd = os.memfd_create(_NAME)
    try:
        os.ftruncate(fd, SIZE)
        os.unlink(path)
        os.symlink(f"/proc/{os.getpid()}/fd/{fd}", path)
    except OSError:
        os.close(fd)
        raise
    return fd
