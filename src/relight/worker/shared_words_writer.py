"""The worker's side of the memory that it shares with its agent (core/workers/shared_words)."""

import os
import struct
import time
from collections.abc import Mapping
from contextlib import suppress

from relight.core.workers import shared_words as words
from relight.processes.shared_page import mapped

_places: dict[str, int] = {}
"""The position of each name that has been reported."""
_writes = 0
_POLL_S = 0.0005
"""How often a waiting worker checks whether it may continue."""


def open_page() -> memoryview:
    """Return the shared memory as a view of 8-byte words. Without an agent, the memory is private
    to this process.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if path:
        try:
            return mapped(path + words.SUFFIX, make=True)
        except OSError as error:
            _warn(error, path + words.SUFFIX)
    return memoryview(bytearray(words.SIZE)).cast("Q")


def _warn(error: OSError, path: str) -> None:
    """Warn the user that this worker's reports don't reach the launcher. Only one worker per node
    prints the warning.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    text = (
        "relight: progress() and should_checkpoint() have no effect: "
        f"can't share {path} with the launcher: {error.strerror}\n"
    )
    with suppress(OSError):  # stderr is closed, or its disk is also full
        os.write(2, text.encode(errors="replace"))


def report(page: memoryview, values: Mapping[str, float]) -> None:
    """Write the numbers to display to users, each in the slot for its name.

    Raises:
        ValueError: if all positions are taken, or a name is too long.
    """
    global _writes
    places = {**_places, **{name: 0 for name in values if name not in _places}}
    long = [name for name in values if len(name.encode()) > words.MAX_NAME_BYTES]
    if len(places) > words.MAX_VALUES or long:
        raise ValueError(
            f"report() takes {words.MAX_VALUES} names of {words.MAX_NAME_BYTES} bytes at most"
        )
    page[words.WRITES] = _writes + 1
    for name, value in values.items():
        place = _places.setdefault(name, len(_places))
        text = name.encode().ljust(words.MAX_NAME_BYTES, b"\0")
        start = words.VALUES + place * (words.NAME_WORDS + 1)
        end = start + words.NAME_WORDS + 1
        page[start:end] = memoryview(text + struct.pack("d", value)).cast("Q")
    _writes += 2
    page[words.WRITES] = _writes


def is_agreed(page: memoryview, call: int) -> bool:
    """Return whether the workers should save a checkpoint and exit on this call. Wait until that
    has been decided.
    """
    while (leaves := words.leaves(page, call)) is None:
        time.sleep(_POLL_S)
    return leaves
