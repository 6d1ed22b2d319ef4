"""Creates a job's run directory, and reads and writes files safely.

The layout is torchrun's: `<base>/<run id>_<random>/`. Each agent creates its own directory.
"""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import BinaryIO

from relight.base.env import Environment
from relight.base.errors import UsageError

_CHUNK = 1 << 14
_MAX_OWN = 10
"""How many names to try when creating a user's own directory."""


def new_run_id() -> str:
    """Return a random id in the form of a UUID."""
    number = int.from_bytes(os.urandom(16), "big")
    number = (number & ~(0xF000 << 64)) | (0x4000 << 64)  # version 4 (RFC 9562, section 5.4)
    number = (number & ~(0xC000 << 48)) | (0x8000 << 48)
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def own_directory(base: str, forbidden: int = 0) -> str:
    """Return this user's own directory inside a world-writable directory.

    The directory is named `relight-<uid>`, or `relight-<uid>-1` to `-9` if another user has taken
    that name. The first directory that belongs to this user is returned, so that all of the user's
    processes find the same directory. If none exists, it is created.

    Args:
        base: the shared directory.
        forbidden: mode bits that must not be set on the user's directory.

    Raises:
        OSError: if it can't be created, or other users have taken all names.
    """
    paths = [os.path.join(base, name) for name in _own_names()]
    for path in paths:
        if _is_own(path, forbidden):
            return path
    for path in paths:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        if _is_own(path, forbidden):
            return path
    raise PermissionError(
        errno.EPERM, "belongs to another user or is accessible to others", paths[0]
    )


def why_elsewhere(own: str) -> str:
    """Return the reason why `own_directory` did not return the usual name, or an empty string."""
    folder, name = os.path.split(own)
    usual, *others = _own_names()
    if name not in others:
        return ""
    return f"{os.path.join(folder, usual)} belongs to another user or is accessible to others"


def _own_names() -> list[str]:
    usual = f"relight-{os.getuid()}"
    return [usual, *(f"{usual}-{number}" for number in range(1, _MAX_OWN))]


def _is_own(path: str, forbidden: int) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_mine and not found.st_mode & forbidden


def make_run_directory(base: str, run_id: str) -> str:
    """Create `<base>/<run id>_<random>` and return its path.

    Raises:
        UsageError: if the directory can't be created or written to.
    """
    directory = os.path.join(base, f"{run_id}_{os.urandom(4).hex()}")
    try:
        make_directories(base)
        os.mkdir(directory, 0o700)
    except OSError as error:
        what = "it is a file" if os.path.isfile(base) else error.strerror
        raise UsageError(
            f"can't write logs to {error.filename or base:.200}: {what}",
            hint="pass a directory to --log-dir, or /dev/null for no log files",
        ) from None
    return directory


def make_directories(path: str, mode: int = 0o777) -> None:
    """Create a directory and its missing parents.

    Raises:
        OSError: if a directory can't be created.
    """
    try:
        os.makedirs(path, mode, exist_ok=True)
    except RecursionError:  # makedirs recurses once for each directory in the path
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path) from None


def temporary_base(env: Environment) -> str:
    """Return the directory for temporary files."""
    return env.get("TMPDIR", "/tmp")  # noqa: S108  # as torchrun; names in it are random


def replace(path: str, content: str | bytes, mode: int = 0o600) -> None:
    """Replace a file atomically, in a directory that other users may write to.

    It never follows other users' links, and never reads or changes their files.

    Args:
        path: the file; created if it does not exist.
        content: its new content.
        mode: its permissions, before the umask is applied.

    Raises:
        OSError: if it can't be written, or `path` is not a regular file.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):  # /dev/null, which root could replace
            raise OSError(errno.EINVAL, "not a regular file", path)
    new = os.path.join(os.path.dirname(path), f".relight-{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(new, flags, mode)
    try:
        with open(fd, "w" if isinstance(content, str) else "wb") as file:
            file.write(content)
        os.replace(new, path)
    except BaseException:
        _try(os.unlink, new)
        raise


def opened(path: str) -> BinaryIO:
    """Open a regular file for reading. Reject anything whose reads may block or never end, such as
    a FIFO or a device.

    Raises:
        OSError: if it can't be opened, or is not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return open(fd, "rb")


def read_small(path: str) -> bytes:
    """Return the content of a small file, such as a file in /proc.

    It avoids file objects, because these would make a newly forked process copy memory pages.

    Raises:
        OSError: if it can't be read.
    """
    parts = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, _CHUNK):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts)


def newest_first(paths: Iterable[str]) -> list[str]:
    """Return the paths that exist, most recently modified first."""
    ages = []
    for path in paths:
        with suppress(OSError):
            ages.append((os.lstat(path).st_mtime_ns, path))
    return [path for _, path in sorted(ages, reverse=True)]


def open_descriptors(folder: str = "/proc/self/fd") -> dict[int, str]:
    """Return a process's open descriptors and the files that they refer to.

    Args:
        folder: the process's fd directory in /proc.

    Raises:
        OSError: if the process belongs to another user or has exited.
    """
    found = {}
    for name in os.listdir(folder):
        with suppress(OSError):  # closed in the meantime, as is the descriptor of the listing
            found[int(name)] = os.readlink(f"{folder}/{name}")
    return found


def sockets_on_port(folder: str, port: int, *, listening: bool) -> set[str]:
    """Return the sockets that listen on a TCP port, or those that are connected to it, in the form
    in which `open_descriptors` contains them.

    Args:
        folder: a process's net directory in /proc (proc(5)).
        port: the port.
        listening: whether to return the listening sockets.
    """
    column, state = (1, "0A") if listening else (2, "01")
    found: set[str] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"{folder}/{name}") as file:  # there may be no IPv6
            for row in list(map(str.split, file))[1:]:
                if row[3] == state and row[column].endswith(f":{port:04X}"):
                    found.add(f"socket:[{row[9]}]")
    return found


def attempt_directory(run_directory: str, restart: int, generation: int) -> str:
    """Return the log directory for a generation. Its name is the one that torchrun would use,
    unless that name is already taken.
    """
    path = os.path.join(run_directory, f"attempt_{restart}")
    return f"{path}_generation_{generation}" if os.path.exists(path) else path


def remove_tree(directory: str) -> None:
    """Remove a directory and as much of its content as possible."""
    for folder, folders, files in os.walk(directory, topdown=False):
        for name in files:
            _try(os.unlink, os.path.join(folder, name))
        for name in folders:
            path = os.path.join(folder, name)
            _try(os.unlink if os.path.islink(path) else os.rmdir, path)
    _try(os.rmdir, directory)


def _try(remove: "object", path: str) -> None:
    with suppress(OSError):
        remove(path)  # type: ignore[operator]  # unlink or rmdir
