"""The worker's side of the memory that it shares with its agent (core/worker_words)."""

import mmap
import os
import time

from relight.core import worker_words as words

_POLL_S = 0.0005
"""How often a worker that is held looks whether it may go on."""


def open_page() -> memoryview:
    """Return the memory as 8-byte words; if there is no agent, memory of this process alone."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if path:
        try:
            fd = os.open(path + words.SUFFIX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.truncate(fd, words.SIZE)  # the agent may have made it
                return memoryview(mmap.mmap(fd, words.SIZE)).cast("Q")
            finally:
                os.close(fd)
        except OSError:
            pass  # as on a full disk: the agent can say nothing
    return memoryview(bytearray(words.SIZE)).cast("Q")


def is_agreed(page: memoryview, call: int) -> bool:
    """Return whether the workers save and leave at this call; wait as long as this is open."""
    while (leaves := words.leaves(page, call)) is None:
        time.sleep(_POLL_S)
    return leaves
