"""Finders: where the coordinator of a job is, and until when it is certain that it is here.

    endpoint_finder.py   one endpoint: whoever can bind it
    election_finder.py   an endpoint of several hosts: the one that they have elected
    register_finder.py   a register: the one that is written down

A finder answers questions (`seek`) and says of its own accord when this process begins to
coordinate, goes on, or has to stop. It knows neither link nor group nor coordinator: whoever asks
(the `Seeker`: an agent's link, `relight doctor`, `relight coordinator`) listens on the socket that
it is given, dials where it is told, and says what came of it.
"""

import socket
from collections.abc import Callable

from relight.core.group_types import GroupSettings
from relight.core.link import FOR_EVER, RETRY_S, Refusal
from relight.errors import UsageError
from relight.host.connection import Connection
from relight.host.loop import Loop
from relight.rendezvous.meeting import Meeting
from relight.typed import NamedTuple


class Here(NamedTuple):
    """The coordinator is to be in this process, which is certain until then."""

    until: float = FOR_EVER


class There(NamedTuple):
    """It may be at this address; who is to be said to people. Dial for so long."""

    address: tuple[str, int]
    timeout_s: float
    who: str = ""


class Nowhere(NamedTuple):
    """It is nowhere, as far as is known; ask again in a while."""

    reason: str
    again_s: float = RETRY_S


class Never(NamedTuple):
    """It will never be known, as something must be put right by the user."""

    error: UsageError


Answer = Here | There | Nowhere | Never


class Seeker:
    """Who asks a finder; always called from the loop."""

    def listen(self, sock: socket.socket) -> None:
        """Listen on this socket, whether this process coordinates or not."""
        raise NotImplementedError

    def found(self, answer: Answer) -> None:
        """Take the answer to `seek`; or Here, if this process coordinates unasked."""
        raise NotImplementedError

    def certain(self, until: float) -> None:
        """This process coordinates for certain until then, which is later than it was."""

    def ousted(self, reason: str, again_s: float) -> None:
        """This process must coordinate no longer; it may seek again in a while."""

    def say(self, text: str) -> None:
        """Tell the user."""

    def turned_away(self, line: str) -> None:
        """Tell of a peer that was not taken."""


class Finder:
    """What a finder is asked and told. Here for one that is always right.

    Attributes:
        stays: whether the socket given to `Seeker.listen` stays when this process is ousted.
    """

    stays = True

    def open(self, seeker: Seeker) -> None:
        """Begin."""
        raise NotImplementedError

    def seek(self, *, may_host: bool) -> None:
        """Find out where the coordinator is; the answer comes by `Seeker.found`."""
        raise NotImplementedError

    def answered(self) -> None:
        """A coordinator has answered at the place that was found."""

    def failed(self, *, refused: bool, working: bool) -> tuple[str, Refusal]:
        """The connection to the place that was found has ended, or nobody answers there; `working`:
        workers here wait for that. Return a better reason, if there is one, and what a refusal
        says.
        """
        del refused, working
        return "", Refusal.NOTHING

    def gone(self) -> None:
        """The coordinator that had answered, and said something, is gone."""

    def redirected(self, host: int) -> str:
        """Who was asked says that number `host` of the hosts coordinates, -1 if it doesn't know.
        Return that in words.
        """
        del host
        return "it coordinates no longer"

    def holds(self, is_torn: Callable[[], bool]) -> bool:
        """Return whether this process coordinates, and nobody else can. `is_torn` says whether a
        node of its group is gone that had not ended well.
        """
        del is_torn
        return True

    def present(self, *, enough: bool) -> None:
        """Hear, with each time that this process is certain for longer, whether enough nodes reach
        it.
        """

    def whereabouts(self) -> int:
        """Return which host of several coordinates, -1 if that is not known, or there is one."""
        return -1

    def take(self, connection: Connection, settings: GroupSettings | None) -> None:
        """Take a connection that another finder has made to the socket of this one."""
        del settings
        connection.close()

    def take_ballot(self, data: bytes) -> None:
        """Take a datagram that is no heartbeat of an agent."""

    def is_needed(self, *, connected: bool) -> bool:
        """Return whether others need this host although the agent here is done; `connected`: nodes
        are connected to it.
        """
        del connected
        return False

    def close(self) -> None:
        """End."""


def of(loop: Loop, meeting: Meeting, settings: GroupSettings) -> Finder:
    """Return the finder of a job.

    Args:
        loop: the loop of the process.
        meeting: how the nodes meet.
        settings: what the job was asked to be.
    """
    if meeting.register is not None:
        from relight.rendezvous.register_finder import RegisteredFinder

        return RegisteredFinder(loop, meeting, settings.lost_after_s)
    if len(meeting.hosts) > 1:
        from relight.rendezvous.election_finder import ElectedFinder

        return ElectedFinder(loop, meeting, settings)
    from relight.rendezvous.endpoint_finder import EndpointFinder

    return EndpointFinder(loop, meeting)
