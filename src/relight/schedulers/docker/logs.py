"""Reads a container's output lines, including those from before a restart."""

import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from relight.schedulers.api import LogQuery
from relight.schedulers.docker.daemon import Daemon

_POLL_S = 0.2
Piece = tuple[str, bytes]
"""A timestamp from Docker, and the bytes that were written. All pieces of a line have the same
timestamp.
"""


def lines(container_id: str, query: LogQuery) -> Iterator[str]:
    """Yield a container's output lines. With `follow`, keep yielding new lines until the container
    has exited and will not be restarted.
    """
    daemon = Daemon()  # threads that read logs can't share a connection
    try:
        with daemon.client() as client:
            yield from _follow(client, container_id, query)
    finally:
        daemon.close()


def seconds(text: str) -> float:
    """Convert one of Docker's timestamps, which include nanoseconds, to seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def whole_lines(pieces: Iterable[Piece]) -> Iterator[str]:
    """Join pieces of output into lines. Pieces of stdout and stderr may alternate."""
    begun: dict[str, bytes] = {}
    for written_at, data in pieces:
        *whole, rest = (begun.pop(written_at, b"") + data).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        if rest:
            begun[written_at] = rest
    for rest in begun.values():
        yield rest.decode(errors="replace")


def _follow(client: Any, container_id: str, query: LogQuery) -> Iterator[str]:
    since = query.since.timestamp() if query.since else None
    last = ""

    def unseen(frames: Iterator[bytes]) -> Iterator[Piece]:
        """Yield the output that was written after `last`, and advance `last`."""
        nonlocal last
        before = last
        for frame in frames:
            head, _, data = frame.partition(b" ")
            written_at = head.decode()
            if written_at > before:  # all timestamps have the same length
                last = max(last, written_at)
                yield written_at, data

    while True:
        began = client.inspect_container(container_id)["State"]["StartedAt"]
        frames = client.logs(
            container_id,
            stdout=query.stream != "stderr",
            stderr=query.stream != "stdout",
            stream=True,
            follow=query.follow,
            timestamps=True,
            since=since,
            until=query.until.timestamp() if query.until else None,
        )
        yield from whole_lines(unseen(frames))
        if not query.follow or not _was_restarted(client, container_id, began):
            return
        # Skip lines that have already been returned, because the daemon may send them again.
        since = seconds(last) - 1 if last else since


def _was_restarted(client: Any, container_id: str, began: str) -> bool:
    """Wait until a container has either been restarted or will certainly not be, and return whether
    it has been restarted.
    """
    while True:
        state = client.inspect_container(container_id)["State"]
        if state["StartedAt"] != began:
            return True
        if not (state["Running"] or state["Restarting"]):
            return False
        time.sleep(_POLL_S)
