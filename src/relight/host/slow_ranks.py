"""What an agent has been told of slow ranks: as an event, and for `relight status`.

`relight status` reads a file that the agent keeps beside the logs of its workers.
"""

import os
import time

from relight.core.messages import SlowRanks
from relight.events import RanksSlow

_FILE = "slow_ranks"
_MOST = 4096
"""Most bytes of the file that are read."""


def event(found: SlowRanks) -> RanksSlow:
    """Return the event of a coordinator's message."""
    from relight.core.slow_ranks import describe

    since = time.time() - found.age_s
    now, then = time.localtime(), time.localtime(since)
    today = (now.tm_year, now.tm_yday) == (then.tm_year, then.tm_yday)
    return RanksSlow(
        ranks=sorted(rank for node in found.nodes for rank in node.ranks),
        hosts=[node.host for node in found.nodes],
        slower=max((node.slower for node in found.nodes), default=0.0),
        waited=max((node.waited for node in found.nodes), default=0.0),
        since=round(since, 3),
        text=describe(found.nodes, time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)),
    )


def keep(directory: str, told: RanksSlow) -> None:
    """Write the file of these workers, or remove it if none of them is slow.

    Args:
        directory: that of the generation; empty for none.
        told: the latest event.
    """
    if not directory:
        return
    path = os.path.join(directory, _FILE)
    try:
        if told.ranks:
            with open(path, "w", encoding="utf-8") as file:
                file.write(told.text)
        else:
            os.unlink(path)
    except OSError:
        pass  # a full disk; the event and the console have it


def kept(error_file: str) -> str:
    """Return the text of the file of these workers, empty for none.

    Args:
        error_file: TORCHELASTIC_ERROR_FILE of a worker.
    """
    directory = os.path.dirname(error_file)
    for place in (directory, os.path.dirname(directory)):  # as `Logs` may have a folder for each
        try:
            with open(os.path.join(place, _FILE), encoding="utf-8", errors="replace") as file:
                return file.read(_MOST)
        except OSError:
            pass
    return ""
