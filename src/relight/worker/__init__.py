"""Functions for training scripts. Importing it costs nothing, and works without the launcher.

from relight.worker import should_checkpoint

for batch in batches:
    step(batch)
    if should_checkpoint():
        save()
        sys.exit(0)
"""

import os

_VARIABLE = "RELIGHT_CHECKPOINT_FLAG"
_flag: "memoryview | None" = None


def should_checkpoint() -> bool:
    """Return whether nodes wait to join, so that this worker should save a checkpoint and exit.

    With `--membership-change=at-checkpoint` the launcher asks the workers before it stops them for
    a change of the group. All ranks should exit at the same step, so use the answer of one rank
    (for example, broadcast it). Without that flag, or without relight, it is always False. A call
    takes well below a microsecond.
    """
    global _flag
    if _flag is None:
        _flag = _open(os.environ.get(_VARIABLE, ""))
    return _flag[0] != 0


def _open(path: str) -> memoryview:
    import mmap

    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return memoryview(b"\0")
    try:
        return memoryview(mmap.mmap(fd, 1, access=mmap.ACCESS_READ))
    finally:
        os.close(fd)
