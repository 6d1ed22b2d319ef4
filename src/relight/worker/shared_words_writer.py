"""The worker's side of the memory that it shares with its agent (core/workers/shared_words)."""

import os
import time

from relight.core.workers import shared_words as words
from relight.processes.shared_page import mapped

_POLL_S = 0.0005
"""How often a worker that is held looks whether it may go on."""


def open_page() -> memoryview:
    """Return the memory as 8-byte words; if there is no agent, memory of this process alone."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if path:
        try:
            return mapped(path + words.SUFFIX, make=True)
        except OSError as error:
            _tell(error, path + words.SUFFIX)
    return memoryview(bytearray(words.SIZE)).cast("Q")


def _tell(error: OSError, path: str) -> None:
    """Tell the user that the launcher gets no reports; one worker of a node is enough."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    text = (
        "relight: progress() and should_checkpoint() have no effect: "
        f"can't share {path} with the launcher: {error.strerror}\n"
    )
    try:
        os.write(2, text.encode(errors="replace"))
    except OSError:
        pass  # stderr is closed, or its disk is full too


def is_agreed(page: memoryview, call: int) -> bool:
    """Return whether the workers save and leave at this call; wait as long as this is open."""
    while (leaves := words.leaves(page, call)) is None:
        time.sleep(_POLL_S)
    return leaves
