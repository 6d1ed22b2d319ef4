"""Collects the results saved by `relight.launch` workers, or determines the error to raise."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from relight.base import notebook_traceback
from relight.base.errors import RelightError, UsageError, WorkersFailedError
from relight.worker import call
from relight.worker.main_module import Unpickler


class RemoteTraceback(Exception):  # noqa: N818  # as multiprocessing calls it
    """The cause of an exception raised in a worker. `str()` returns the full traceback."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class LaunchRefusal:
    """The error message and hint printed by a `relight run` command that didn't start any workers.

    Args:
        directory: the directory with the workers' results.
    """

    def __init__(self, directory: str) -> None:
        self.message = ""
        self.hint = ""
        self._directory = directory

    def matches(self, line: str) -> bool:
        """Return whether this stderr line is the error message, which becomes part of the
        exception.
        """
        error, hint = "relight: error: ", "hint: "
        if line.startswith(error) and not _any_worker_began(self._directory):
            self.message = line.removeprefix(error).strip()
            return True
        if line.startswith(hint) and self.message:
            self.hint = line.removeprefix(hint).strip()
            return True
        return False


def collect(
    directory: str, name: str, exit_codes: Sequence[int], refusal: LaunchRefusal
) -> list[Any]:
    """Return the result of each rank in the last attempt, in rank order.

    Args:
        directory: the results directory, with a subdirectory for each remote host.
        name: the name of the function.
        exit_codes: the agents' exit codes.
        refusal: the agents' error if they didn't start any workers.

    Raises:
        Exception: the exception from the rank that failed first.
        WorkersFailedError: if a worker failed in another way, or exited before the function
            returned.
        UsageError: if a flag is invalid.
    """
    __tracebackhide__ = True  # IPython and pytest then show the caller's own line
    if any(exit_codes):
        raise _failure(directory, exit_codes, refusal)
    last = _last_attempt(directory, name)
    found = returned(directory, name)
    missing = [rank for rank in range(last.world_size) if rank not in found]
    errors = [error for _, (*_, error, _) in _saved(directory, call.ERROR)] if missing else []
    if not all(map(is_exit_with_0, errors)):  # SIGCHLD is ignored, so exit codes are lost
        raise _failure(directory, exit_codes, refusal)
    if missing:
        *some, one = map(str, missing)
        ranks = f"ranks {', '.join(some)} and {one}" if some else f"rank {one}"
        error = WorkersFailedError(
            f"{ranks} exited with 0 before {name} returned",
            hint="look for exit(0) in it; each rank has to return or raise",
        )
        texts = [text for (rank, (*_, text)) in _saved(directory, call.ERROR) if rank in missing]
        raise error from RemoteTraceback(texts[0]) if texts else None
    return [found[rank] for rank in range(last.world_size)]


def returned(directory: str, name: str) -> dict[int, Any]:
    """Return the last attempt's results, keyed by rank. Ranks without a result are missing.

    Raises:
        WorkersFailedError: if no rank reached the function.
    """
    last = _last_attempt(directory, name)
    saved = _saved(directory, call.RESULT)
    return {rank: value for rank, (attempt, value) in saved if attempt == last.attempt}


class Raised(NamedTuple):
    """A failed call on one rank. It consists of the exception (None if it can't be pickled), the
    full traceback, and the time in seconds since 1970.
    """

    error: BaseException | None
    text: str
    time: float


def raised(directory: str) -> dict[int, Raised]:
    """Return the exceptions that the function raised in the last attempt, keyed by rank."""
    last = _last_begun(directory)
    saved = _saved(directory, call.ERROR)
    return {
        rank: Raised(error, text, when)
        for rank, (attempt, when, error, text) in saved
        if last is not None and attempt == last.attempt
    }


def _last_attempt(directory: str, name: str) -> call.Begun:
    last = _last_begun(directory)
    if last is None:
        raise WorkersFailedError(f"no worker reached {name}; check the workers' output")
    return last


def _last_begun(directory: str) -> call.Begun | None:
    return max((call.Begun(*each) for _, each in _saved(directory, call.BEGUN)), default=None)


def _any_worker_began(directory: str) -> bool:
    return any(_saved(directory, call.BEGUN))


def _failure(directory: str, exit_codes: Sequence[int], refusal: LaunchRefusal) -> BaseException:
    """Return the exception for a failed job."""
    error = first_exception(directory)
    if error is None:
        code = next(code for code in exit_codes if code)
        if code == UsageError.exit_code and refusal.message and not _any_worker_began(directory):
            return UsageError(refusal.message, hint=refusal.hint)
        why = refusal.message or "check its output"
        return WorkersFailedError(f"relight run exited with code {code}; {why}", hint=refusal.hint)
    return error


def first_exception(directory: str) -> Exception | None:
    """Return the exception from the rank that failed first, with the full traceback as its
    cause.
    """
    errors = [(-kept[0][0], rank, *kept[1:]) for rank, kept in _saved(directory, call.ERROR)]
    failed = [each for each in errors if not is_exit_with_0(each[3])]
    if not failed:
        return None
    _, rank, _, kept, text = min(failed, key=lambda each: (each[0], each[2]))
    if isinstance(kept, Exception):
        error = kept
    else:  # it can't be pickled, or would end the caller (like SystemExit)
        error = WorkersFailedError(f"rank {rank} raised {text.strip().splitlines()[-1]}")
    if text:  # empty if the message is complete
        error.__cause__ = RemoteTraceback(text)
    notebook_traceback.attach(error)
    return error


def is_exit_with_0(error: BaseException | None) -> bool:
    """Return whether an exception makes a process exit with 0."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _saved(directory: str, kind: str) -> Iterator[tuple[int, Any]]:
    """Yield the saved results. A rank occurs twice if it was attempted on two hosts."""
    for folder, _, names in os.walk(directory):
        for name in names:
            if call.is_result_file(name) and name.endswith(f".{kind}"):
                yield int(name.partition(".")[0]), _load(os.path.join(folder, name))


def _load(path: str) -> Any:
    with open(path, "rb") as file:
        try:
            return Unpickler(file.read()).load()  # our own workers wrote it
        except Exception as error:
            name = os.path.basename(path)
            raise RelightError(f"the result file {name} can't be read: {error}") from None
