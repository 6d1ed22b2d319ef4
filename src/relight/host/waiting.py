"""Waits for conditions that don't generate an event."""

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], limit_s: float, poll_s: float) -> bool:
    """Poll every `poll_s` seconds until a condition is true, or return False after `limit_s`
    seconds.
    """
    end = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() >= end:
            return False
        time.sleep(poll_s)
    return True
