"""Implements a worker that calls a function and saves the function's result. The worker is started
as `python -m relight.worker.call DIR [VARIABLE]`.

`relight.launch` writes `call.pickle` to the directory or, for a job array, to the subdirectory
whose name is the variable's value. DIR may also be the name of a variable that contains the
directory. Next to `call.pickle`, each worker writes `RANK.begun`, and then `RANK.result` or
`RANK.error`. Files are loaded only if they belong to the calling user, and only from a directory
that no other user can enter.
"""

import atexit
import contextlib
import os
import pickle
import re
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from relight.base.errors import EXIT_FAILED, EXIT_OK, UsageError, WorkersFailedError
from relight.worker import cells
from relight.worker.main_module import Unpickler

RESULT, ERROR, BEGUN = "result", "error", "begun"
CALL_DIRECTORY = "RELIGHT_CALL_DIRECTORY"
_RESULT_FILE = re.compile(rf"[0-9]{{1,9}}\.({RESULT}|{ERROR}|{BEGUN})")


class Begun(NamedTuple):
    """The attempt that a worker belongs to. A later attempt compares as greater.

    The `place` field distinguishes attempts that have the same number of restarts, because each
    attempt has its own store.
    """

    restart: int
    time: float
    place: str
    world_size: int

    @property
    def attempt(self) -> tuple[int, str]:
        """A value that all ranks in an attempt have in common."""
        return self.restart, self.place


class WithLocalRank:
    """A function whose arguments may refer to the worker. In string arguments, `${local_rank}` is
    replaced as in torch's launcher (torch.distributed.elastic.utils.macros).
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        from relight.core.workers.worker_command import with_local_rank

        own = int(os.environ["LOCAL_RANK"])
        texts = [with_local_rank(each, own) if isinstance(each, str) else each for each in args]
        return self.function(*texts)


def main(directory: str) -> None:
    """Call the function, and save its result or its exception."""
    rank = os.environ["RANK"]
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    begun = Begun(restart, time.time(), place, int(os.environ["WORLD_SIZE"]))
    for kind in (RESULT, ERROR):  # the files may be left over from an earlier attempt
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, f"{rank}.{kind}"))
    _save(directory, f"{rank}.{BEGUN}", tuple(begun))

    def save_error(error: BaseException | None, text: str) -> None:
        _save(directory, f"{rank}.{ERROR}", (begun.attempt, time.time(), error, text))

    function = None
    try:
        function, args, kwargs = _received(directory)
        sys.argv[1:] = []
        result = function(*args, **kwargs)
    except BaseException as error:
        if function is None and isinstance(error, UsageError):  # the message is already complete
            save_error(error, "")
            sys.exit(EXIT_FAILED)
        error.__traceback__ = _user_frames(error.__traceback__)
        save_error(_portable(error), "".join(traceback.format_exception(error)))
        if sys.excepthook is sys.__excepthook__:
            sys.excepthook = _show
        raise
    try:
        _save(directory, f"{rank}.{RESULT}", (begun.attempt, result))
    except Exception as error:
        why = f"what the function returned on rank {rank} can't be sent: {_describe(error)}"
        hint = "return values that can be pickled, such as numbers, strings or tensors"
        save_error(WorkersFailedError(why, hint=hint), "")
        sys.exit(EXIT_FAILED)
    leave(EXIT_OK)


def _user_frames(found: types.TracebackType | None) -> types.TracebackType | None:
    """Return the part of a traceback that begins in the user's function, or None if the traceback
    doesn't include that function.
    """
    own, each = found, found
    while each is not None:
        if each.tb_frame.f_code.co_filename == __file__:
            own = each.tb_next
        each = each.tb_next
    return own or found


def _show(
    kind: type[BaseException], error: BaseException, found: types.TracebackType | None
) -> None:
    """Print an uncaught exception as Python does, but without relight's frames. Source lines are
    also shown for code without a file, which Python 3.12 and earlier don't do (Python/traceback.c).
    """
    error.__traceback__ = found = _user_frames(found)
    if sys.version_info < (3, 13):
        traceback.print_exception(error)
    else:
        sys.__excepthook__(kind, error, found)


def leave(exit_code: int) -> NoReturn:
    """Exit this process in the same way as a multiprocessing worker. Threads and exit functions
    finish first, but objects are not freed one by one, which would take half a second with torch.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    _keep_operators()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(exit_code)


def _keep_operators() -> None:
    """Keep the operators that Python code has registered (torch.library, torch 2.13). On exit,
    torch would remove them one by one. Removing them takes 40 ms in a forked process, and has no
    effect outside the process.
    """
    remove = getattr(sys.modules.get("torch.library"), "_del_library", None)
    if remove is None:
        return
    for finalizer, call in list(getattr(weakref.finalize, "_registry", {}).items()):
        if call.func is remove:
            finalizer.atexit = False


def _received(directory: str) -> Any:
    """Load the function, along with its positional and keyword arguments."""
    with open(os.path.join(directory, "call.pickle"), "rb") as file:
        elsewhere, path, main_module, payload, sources = pickle.load(file)  # noqa: S301  # from the caller
    sys.path[:] = [*sys.path, *(each for each in path if each not in sys.path)] * elsewhere or path
    if main_module:
        main_module.load()
    cells.take(sources)
    return Unpickler(payload).load()


def is_result_file(name: str) -> bool:
    """Return whether a file name is one of those that workers use to save results."""
    return _RESULT_FILE.fullmatch(name) is not None


def dumps(value: Any) -> bytes:
    """Pickle a value. If cloudpickle is installed, functions that can't be imported are also
    supported.
    """
    try:
        from cloudpickle import dumps as dump
    except ImportError:
        from pickle import dumps as dump
    pickled: bytes = dump(value)
    return pickled


def _save(directory: str, name: str, value: Any) -> None:
    path = os.path.join(directory, name)
    with open(path + ".new", "wb") as file:
        file.write(dumps(value))
    os.replace(path + ".new", path)


def _describe(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _portable(error: BaseException) -> BaseException | None:
    """Return the exception if it can be pickled and unpickled, and None otherwise."""
    try:
        Unpickler(dumps(error)).load()
    except Exception:
        return None
    return error


if __name__ == "__main__":
    place, *variables = sys.argv[1:] or [os.environ[CALL_DIRECTORY]]
    main(os.path.join(place, *map(os.environ.__getitem__, variables)))
