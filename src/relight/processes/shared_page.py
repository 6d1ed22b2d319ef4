"""Opens the memory that an agent shares with a worker (core/workers/shared_words). Both sides use
this module.

The memory is a file that both sides find by its path. If the disk is full, the process that opens
the file first creates a file in memory (memfd_create(2)) instead. The path is then a link to that
file's descriptor, because such a short link doesn't need a disk block.
"""

import errno
import mmap
import os
import weakref

from relight.core.workers.shared_words import SIZE

_MIN_BLOCK = 512
"""The smallest block size that a file system may have, in bytes."""
_NAME = "relight-page"
_TARGET = f"/memfd:{_NAME} (deleted)"
"""The target of the link that proc_pid_fd(5) shows for the descriptor of such a file."""


def mapped(path: str, *, make: bool) -> memoryview:
    """Return the memory at a path as 8-byte words. Either side may create it. Only the worker maps
    the file, because access raises SIGBUS once the file has been truncated. A worker that truncates
    the file only harms itself.

    Raises:
        OSError: if the file is missing and `make` is not set, or if it can't be created.
    """
    fd = opened(path, make=make)
    try:
        page = memoryview(mmap.mmap(fd, SIZE)).cast("Q")
    except ValueError as error:  # the file has been truncated
        os.close(fd)
        raise OSError(errno.EIO, str(error), path) from None
    weakref.finalize(page.obj, os.close, fd)  # the path may be a link to it
    return page


def opened(path: str, *, make: bool) -> int:
    """Return a descriptor for the memory at a path. Either side may create it.

    Raises:
        OSError: if the file is missing and `make` is not set, or if it can't be created.
    """
    where, flags = path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0)
    if os.path.islink(path):
        where, flags = os.readlink(path), os.O_RDWR | os.O_CLOEXEC
        if os.readlink(where) != _TARGET:  # that pid or descriptor has since been reused
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
    """Allocate the file's blocks, because writing to a hole in a mapped file kills the process with
    SIGBUS if the disk is full (mmap(2)).
    """
    try:
        os.posix_fallocate(fd, 0, SIZE)
    except (AttributeError, OSError):
        # Either the disk is full (a write would also report this), or this is macOS or musl, which
        # don't emulate the call. glibc emulates it by writing one byte to each block; here that
        # byte is outside all words in use.
        for block in range(0, SIZE, _MIN_BLOCK):
            os.pwrite(fd, b"\0", block + _MIN_BLOCK - 1)


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
