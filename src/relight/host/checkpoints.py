"""The checkpoints that workers save (--checkpoints)."""

import os
from glob import iglob
from itertools import islice

_MOST_FILES = 100_000


def newest(pattern: str) -> int:
    """Return when the newest file of a pattern was changed, in nanoseconds since 1970 by the clock
    of its file system; 0 if no file matches.

    Args:
        pattern: the files' paths, as in `glob`; `**` matches any directories.
    """
    latest = 0
    for path in islice(iglob(pattern, recursive=True), _MOST_FILES):
        try:
            latest = max(latest, os.stat(path).st_mtime_ns)
        except OSError:
            continue  # it was removed
    return latest
