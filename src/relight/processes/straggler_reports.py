"""Publishes the slow-rank reports that an agent receives, both as events and in `relight status`.

`relight status` reads the reports from an in-memory file, found by name among the agent's open
files (proc_pid_fd(5)). No file is therefore left behind.
"""

import os
import time
from contextlib import suppress

from relight.core.group.messages import SlowRanks
from relight.events.event_types import RanksSlow
from relight.host import system
from relight.host.files import open_descriptors

_NAME = "relight-slow-ranks"
_MAX = 4096
"""Maximum number of bytes read from the file."""


def event(found: SlowRanks) -> RanksSlow:
    """Convert a coordinator's message to an event."""
    from relight.core.group.straggler_detector import describe

    since = time.time() - found.age_s
    now, then = time.localtime(), time.localtime(since)
    today = (now.tm_year, now.tm_yday) == (then.tm_year, then.tm_yday)
    return RanksSlow(
        ranks=tuple(sorted(rank for node in found.nodes for rank in node.ranks)),
        hosts=tuple(node.host for node in found.nodes),
        slower=max((node.slower for node in found.nodes), default=0.0),
        waited=max((node.waited for node in found.nodes), default=0.0),
        since=round(since, 3),
        text=describe(found.nodes, time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)),
    )


class ShownSlowRanks:
    """Shows the slow ranks among this agent's workers in `relight status`."""

    def __init__(self) -> None:
        self._fd = -1

    def show(self, told: RanksSlow) -> None:
        """Show the latest report, or nothing if no rank is slow."""
        self.close()
        if told.ranks:
            # No descriptor or memory is left; the console also shows the report.
            with suppress(OSError):
                self._fd = system.anonymous_file(_NAME)
                os.write(self._fd, told.text.encode()[:_MAX])

    def close(self) -> None:
        """Stop showing the report."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def shown_by(pid: int) -> str:
    """Return an agent's slow-rank reports. The result is empty if nothing was reported or if
    the agent's open files can't be read.
    """
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):  # it has exited, or has just closed one
        for fd, path in open_descriptors(folder).items():
            if _NAME in os.path.basename(path):
                with open(f"{folder}/{fd}", encoding="utf-8", errors="replace") as file:
                    return file.read(_MAX)
    return ""
