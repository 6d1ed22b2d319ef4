"""The run directory of a job, and safe ways to read and write files.

The layout is torchrun's: `<base>/<run id>_<random>/`. Each agent makes its own.
"""

import errno
import os
import stat

from relight.env import Environment
from relight.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

_CHUNK = 1 << 14


def new_run_id() -> str:
    """Return a random id in the form of a UUID."""
    number = int.from_bytes(os.urandom(16), "big")
    number = (number & ~(0xF000 << 64)) | (0x4000 << 64)  # version 4 (RFC 9562, section 5.4)
    number = (number & ~(0xC000 << 48)) | (0x8000 << 48)
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def own_directory(env: Environment) -> str:
    """Return the default log directory of this user's jobs: `/tmp/relight-<uid>`.

    Raises:
        UsageError: the directory belongs to another user.
    """
    directory = os.path.join(temporary_base(env), f"relight-{os.getuid()}")
    try:
        os.mkdir(directory, 0o700)
    except OSError:
        pass  # it exists already, or make_run_directory reports the error
    try:
        owner = os.lstat(directory).st_uid
        if owner != os.getuid():
            raise UsageError(
                f"the log directory {directory} belongs to another user, uid {owner}",
                hint="--log-dir=DIRECTORY names one of yours",
            )
    except FileNotFoundError:
        pass
    return directory


def make_run_directory(base: str, run_id: str) -> str:
    """Make `<base>/<run id>_<random>` and return it.

    Raises:
        UsageError: the directory can't be made or written.
    """
    directory = os.path.join(base, f"{run_id}_{os.urandom(4).hex()}")
    try:
        make_directories(base)
        os.mkdir(directory, 0o700)
    except OSError as error:
        what = "it is a file" if os.path.isfile(base) else error.strerror
        raise UsageError(
            f"can't write logs to {error.filename or base:.200}: {what}",
            hint="--log-dir takes a directory; /dev/null switches all files off",
        ) from None
    return directory


def make_directories(path: str, mode: int = 0o777) -> None:
    """Make a directory and those above it, as far as they do not exist.

    Raises:
        OSError: one can't be made.
    """
    try:
        os.makedirs(path, mode, exist_ok=True)
    except RecursionError:  # it calls itself for each directory of the path
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path) from None


def temporary_base(env: Environment) -> str:
    """Return the directory for temporary files."""
    return env.get("TMPDIR", "/tmp")  # noqa: S108  # as torchrun; names in it are random


def replace(path: str, text: str, mode: int = 0o600) -> None:
    """Replace a file atomically in a directory where other users may write: follow no link of
    theirs, and neither read nor change their files.

    Args:
        path: the file, which need not exist.
        text: its new content.
        mode: its permissions, less the umask.

    Raises:
        OSError: it can't be written, or `path` is not a regular file.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # /dev/null, which root could replace
            raise OSError(errno.EINVAL, "not a regular file", path)
    except FileNotFoundError:
        pass
    new = os.path.join(os.path.dirname(path), f".relight-{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(new, flags, mode)
    try:
        with open(fd, "w") as file:
            file.write(text)
        os.replace(new, path)
    except BaseException:
        _try(os.unlink, new)
        raise


def opened(path: str) -> "BinaryIO":
    """Open a regular file for reading; refuse what blocks or never ends, such as a FIFO or device.

    Raises:
        OSError: it can't be opened, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return open(fd, "rb")


def read_small(path: str) -> bytes:
    """Return the content of a small file, such as those of proc(5).

    It makes no file object: a process that was just forked would copy pages for one.

    Raises:
        OSError: it can't be read.
    """
    parts = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, _CHUNK):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts)


def attempt_directory(run_directory: str, restart: int, generation: int) -> str:
    """Return the directory of a generation's logs: torchrun's name, unless it exists already."""
    path = os.path.join(run_directory, f"attempt_{restart}")
    return f"{path}_generation_{generation}" if os.path.exists(path) else path


def remove_tree(directory: str) -> None:
    """Remove a directory and its content, as far as possible."""
    for folder, folders, files in os.walk(directory, topdown=False):
        for name in files:
            _try(os.unlink, os.path.join(folder, name))
        for name in folders:
            path = os.path.join(folder, name)
            _try(os.unlink if os.path.islink(path) else os.rmdir, path)
    _try(os.rmdir, directory)


def _try(remove: "object", path: str) -> None:
    try:
        remove(path)  # type: ignore[operator]  # unlink or rmdir
    except OSError:
        pass
