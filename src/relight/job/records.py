"""Keeps a record of each job, in a directory that contains `job.json`, a description of the
submission.

The directory is `~/.local/state/relight/jobs/NAME-RANDOM/` (XDG base directories;
`RELIGHT_STATE_DIR` replaces `~/.local/state/relight`). Schedulers that keep their own logs or state
store them in subdirectories. Only the user can read the directories and files.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from relight.base import env as environment
from relight.base.env import Environment
from relight.base.errors import MachineError, RelightError, UsageError
from relight.host import files
from relight.host.files import make_directories, remove_tree
from relight.host.waiting import wait_until
from relight.job.handles import is_whole
from relight.job.states import AppState

FILE = "job.json"
_LOCK = "sending"
_SUBMIT_LIMIT_S, _POLL_S = 120.0, 0.05
_DEEPEST = 64
"""Maximum nesting depth of objects in relight's own files."""
_NEEDED = ("id", "app_id", "handle", "scheduler", "name", "state", "submitted")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_OF_NAME, _OF_ID = _LETTERS | set(".-"), _LETTERS | set(".:@%+=-")
_FIRST, _REST = "bcdfghjklmnpqrstvwxz", "bcdfghjklmnpqrstvwxz012345679"


def new_id(name: str) -> str:
    """Return a unique id of the form `NAME-RANDOM`, which contains only characters that are valid
    in both file names and host names.
    """
    number = int.from_bytes(os.urandom(8), "big")
    number, digit = divmod(number, len(_FIRST))
    word = _FIRST[digit]
    while number:
        number, digit = divmod(number, len(_REST))
        word += _REST[digit]
    plain = "".join(each if each in _OF_NAME else "-" for each in name)[:100].strip("-._")
    return f"{plain or 'job'}-{word}"


def root(env: Environment | None = None) -> str:
    """Return the parent directory of all job directories. It may not exist yet."""
    env = environment.read() if env is None else env
    return os.path.join(environment.state_directory(env), "jobs")


def path(app_id: str) -> str:
    """Return a job's directory. It may not exist yet.

    Raises:
        UsageError: if the id is invalid.
    """
    if not _is_id(app_id):
        raise UsageError(f"{app_id!r} is not a job id", hint="see relight list")
    return os.path.join(root(), app_id)


def directory(app_id: str) -> str:
    """Return a job's directory, creating it if necessary.

    Raises:
        MachineError: if it can't be created.
    """
    where = path(app_id)
    try:
        make_directories(os.path.dirname(where), 0o700)
        make_directories(where, 0o700)
    except OSError as error:
        raise MachineError(
            f"can't create the job directory {where}: {error.strerror}",
            hint="choose another place with RELIGHT_STATE_DIR",
        ) from None
    return where


def write(app_id: str, record: Mapping[str, Any]) -> None:
    """Replace a job's record atomically.

    Raises:
        MachineError: if it can't be written.
    """
    file = os.path.join(directory(app_id), FILE)
    try:
        files.replace(file, json.dumps(record, indent=1))
    except OSError as error:
        raise MachineError(f"can't write {file}: {error.strerror}") from None
    except RecursionError:
        raise MachineError(f"can't write {file}: nested too deeply") from None


@contextmanager
def submitting(record: Mapping[str, Any]) -> Iterator[None]:
    """Write a job's record, which the block completes, and lock the job while it is being
    submitted. A command that stops the job waits for this lock. If the block fails, no record is
    left.

    Raises:
        UsageError: if the job already has a record.
        MachineError: if its directory can't be written.
    """
    import fcntl

    app_id = record["id"]
    folder = directory(app_id)
    if os.path.exists(os.path.join(folder, FILE)):
        raise UsageError(f"{app_id} was already submitted", hint="create another one with dryrun")
    file = os.path.join(folder, _LOCK)
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MachineError(f"can't write {file}: {error.strerror}") from None
    try:
        with suppress(OSError):  # the file system doesn't support locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        write(app_id, record)  # first, so that every running job has a record
        yield
    except BaseException:
        with suppress(RelightError):  # the original error matters more
            remove(app_id)
        raise
    else:
        write(app_id, record)
    finally:
        with suppress(OSError):
            os.unlink(file)
        os.close(fd)


def is_being_submitted(app_id: str) -> bool:
    """Return whether a live process is currently submitting this job."""
    import fcntl

    try:
        fd = os.open(os.path.join(path(app_id), _LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, UsageError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(fd)
    return False


def wait_until_submitted(app_id: str) -> None:
    """Wait until no process is submitting this job.

    Raises:
        MachineError: if that takes too long.
    """
    if not wait_until(lambda: not is_being_submitted(app_id), _SUBMIT_LIMIT_S, _POLL_S):
        raise MachineError(f"{app_id} is still being submitted", hint="interrupt `relight submit`")


def read(app_id: str) -> dict[str, Any] | None:
    """Return a job's record, or None if it doesn't exist or can't be read."""
    return _load(os.path.join(path(app_id), FILE))


def names() -> list[str]:
    """Return the names of all job directories."""
    try:
        return os.listdir(root())
    except OSError:
        return []


def every() -> list[dict[str, Any]]:
    """Return the records of all jobs, newest first, skipping unreadable ones."""
    found = [_load(os.path.join(root(), name, FILE)) for name in names()]
    records = [record for record in found if record is not None]
    return sorted(records, key=lambda record: instant(record["submitted"]), reverse=True)


def instant(text: str) -> float:
    """Convert an ISO 8601 time in any time zone to seconds since 1970, or return 0 if it is
    invalid.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def find_by_handle(scheduler: str, app_id: str) -> dict[str, Any] | None:
    """Look up a job's record by the scheduler's job id. The job's directory may have a different
    name.
    """
    record = read(app_id) if _is_id(app_id) else None
    if record is not None and record.get("scheduler") == scheduler:
        return record
    for record in every():
        if (record.get("scheduler"), record.get("app_id")) == (scheduler, app_id):
            return record
    return None


def remove(name: str) -> None:
    """Remove a job's directory and its contents.

    Raises:
        MachineError: if any of it can't be removed.
    """
    where = path(name)
    remove_tree(where)
    if os.path.lexists(where):
        raise MachineError(f"can't remove {where} completely", hint="check the owner of its files")


def token() -> str:
    """Return the token that authenticates the agents of this user's jobs, creating it on first use.

    Raises:
        MachineError: if it can't be saved.
    """
    import fcntl

    file = os.path.join(os.path.dirname(root()), "token")
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with open(os.open(file, flags, 0o600), "r+") as opened:
            if os.fstat(opened.fileno()).st_uid not in (os.geteuid(), 0) and os.geteuid():
                raise PermissionError(errno.EPERM, "it belongs to another user", file)
            fcntl.flock(opened, fcntl.LOCK_EX)
            known = opened.read().strip()
            if not known:
                known = os.urandom(16).hex()
                opened.write(known)
            return known
    except OSError as error:
        raise MachineError(f"can't use {file}: {error.strerror}") from None


def _is_id(text: str) -> bool:
    return bool(text) and text[0] in _LETTERS and _OF_ID.issuperset(text)


def load(file: str) -> Any:
    """Return the content of a JSON file, or None if it can't be read or is nested too deeply. A
    broken file is not an error, because it must not hide other jobs.
    """
    try:
        if not os.path.isfile(file):  # a FIFO would block
            return None
        with open(file) as opened:
            found = json.load(opened)
    except (OSError, ValueError, RecursionError):
        return None
    level, depth = [found], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            return None
        inner = [each.values() if isinstance(each, dict) else each for each in level
                 if isinstance(each, (dict, list))]  # fmt: skip
        level = [value for values in inner for value in values]
    return found


def _load(file: str) -> dict[str, Any] | None:
    record = load(file)
    if not isinstance(record, dict) or not all(isinstance(record.get(n), str) for n in _NEEDED):
        return None
    good = record["state"] in AppState.__members__ and is_whole(record["handle"])
    return record if good else None
