"""Slow-rank reports that an agent received: as an event, and for `relight status`.

`relight status` reads them from a file in memory, found by its name among the open files of the
agent (proc_pid_fd(5)). So no file is left behind.
"""

import os
import time

from relight.core.group.messages import SlowRanks
from relight.events.event_types import RanksSlow
from relight.host import system

_NAME = "relight-slow-ranks"
_MOST = 4096
"""Most bytes of the file that are read."""


def event(found: SlowRanks) -> RanksSlow:
    """Return the event of a coordinator's message."""
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
    """What `relight status` shows of the slow ranks of this process's workers."""

    def __init__(self) -> None:
        self._fd = -1

    def show(self, told: RanksSlow) -> None:
        """Show the latest event, or nothing if no rank is slow."""
        self.close()
        if told.ranks:
            try:
                self._fd = system.anonymous_file(_NAME)
                os.write(self._fd, told.text.encode()[:_MOST])
            except OSError:
                pass  # no descriptor or memory is left; the event and the console have it

    def close(self) -> None:
        """Show nothing any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def shown_by(pid: int) -> str:
    """Return an agent's reports; empty without any, or if its open files can't be read."""
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            if _NAME in os.path.basename(os.readlink(f"{folder}/{name}")):
                with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
                    return file.read(_MOST)
    except OSError:
        pass  # it has ended, or has just closed one
    return ""
