"""Waits for what sends no event."""

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], limit_s: float, poll_s: float) -> bool:
    """Look at intervals of `poll_s` seconds until something is so; return False after `limit_s`."""
    end = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() >= end:
            return False
        time.sleep(poll_s)
    return True
