"""Start a program in a process that is set up as requested: `under.py JSON PROGRAM ARGUMENTS…`."""

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any


def set_up(told: Mapping[str, Any]) -> None:
    """Set up this process as a case requests."""
    for name in told.get("ignore", ()):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {getattr(signal, n) for n in told.get("block", ())})
    if "umask" in told:
        os.umask(told["umask"])
    if "nice" in told:
        os.nice(told["nice"])
    if "cpus" in told:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: told["cpus"]])
    for name, value in told.get("limits", {}).items():
        number = getattr(resource, name)
        resource.setrlimit(number, (value, resource.getrlimit(number)[1]))
    for fd in told.get("fds", ()):
        os.dup2(0, fd)
    for fd in told.get("close", ()):
        os.close(fd)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python itself ignores it
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    set_up(json.loads(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
