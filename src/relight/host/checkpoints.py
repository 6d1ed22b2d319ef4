"""Finds the checkpoints that workers save (--checkpoints)."""

import os
from glob import iglob
from itertools import islice

_MAX_FILES = 100_000


def newest(pattern: str) -> int:
    """Return the modification time of the newest file that matches a pattern, in nanoseconds since
    1970 by its file system's clock. Return 0 if no file matches.

    Args:
        pattern: the file paths, in the syntax of `glob`; `**` matches any number of directories.
    """
    latest = 0
    for path in islice(iglob(pattern, recursive=True), _MAX_FILES):
        try:
            latest = max(latest, os.stat(path).st_mtime_ns)
        except OSError:
            continue  # it was removed
    return latest
