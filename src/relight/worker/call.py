"""A worker that calls a function and keeps what it returns: `python -m relight.worker.call DIR`.

`relight.launch` writes `call.pickle` into the directory; each worker writes `RANK.result` or
`RANK.error` beside it. Only files of the caller, in a directory that only he can enter, are loaded.
"""

import os
import pickle
import sys
import time
import traceback
from typing import Any

RESULT, ERROR = "result", "error"


def main(directory: str) -> None:
    """Call the function, and keep its result or its exception."""
    rank, restart = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with open(os.path.join(directory, "call.pickle"), "rb") as file:
        elsewhere, path, payload = pickle.load(file)  # noqa: S301  # written by the caller
    sys.path[:] = [*sys.path, *(each for each in path if each not in sys.path)] * elsewhere or path
    function, args, kwargs = pickle.loads(payload)  # noqa: S301
    sys.argv[1:] = []
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        _keep(directory, f"{rank}.{ERROR}", (-restart, time.time(), _portable(error), text))
        raise
    _keep(directory, f"{rank}.{RESULT}", result)


def dumps(value: Any) -> bytes:
    """Return a pickle, also of functions that no module has, if cloudpickle is installed."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(value)
    pickled: bytes = cloudpickle.dumps(value)
    return pickled


def _keep(directory: str, name: str, value: Any) -> None:
    path = os.path.join(directory, name)
    with open(path + ".new", "wb") as file:
        file.write(dumps(value))
    os.replace(path + ".new", path)


def _portable(error: BaseException) -> BaseException | None:
    """Return the exception if it survives being pickled, else None."""
    try:
        pickle.loads(dumps(error))  # noqa: S301
    except Exception:
        return None
    return error


if __name__ == "__main__":
    main(sys.argv[1])
