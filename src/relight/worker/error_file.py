"""Writes an exception to the worker's error file (`relight.worker.record`).

The file has the same format as in torch 2.13 (torch/distributed/elastic/multiprocessing/errors).
"""

import json
import os
import time
import traceback
from contextlib import suppress


def write(error: Exception) -> None:
    """Write an exception to the file that TORCHELASTIC_ERROR_FILE specifies, if this variable is
    set.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not path:
        return
    stack = "".join(traceback.format_exception(error))
    described = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {"py_callstack": stack, "timestamp": str(int(time.time()))},
    }
    with suppress(OSError), open(path, "w") as file:
        # If, for example, the disk is full, Python still prints the exception.
        json.dump({"message": described}, file)
