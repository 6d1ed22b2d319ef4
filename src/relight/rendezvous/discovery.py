"""Finders determine where a job's coordinator is. If this process is the coordinator, they also
determine how long it is certain to remain so.

    endpoint_finder.py   with one endpoint, finds the process that can bind it
    election_finder.py   with an endpoint that lists several hosts, finds the elected host
    register_finder.py   with a registry, finds the process that the registry's record names

A finder searches on request (`seek`). Without a request, it also reports when this process becomes
the coordinator, remains the coordinator, or has to step down. A finder does not depend on the link,
group or coordinator modules. Its caller (the `Seeker`: an agent's link, `relight doctor`, `relight
coordinator`) listens on the socket that the finder provides, connects to the address that the
finder returns, and reports the outcome to the finder.
"""

import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from relight.base.errors import UsageError
from relight.core.group.group_types import GroupSettings
from relight.core.link.lease import Refusal
from relight.core.link.link_state import RETRY_S
from relight.core.workers.supervision import FOR_EVER
from relight.events.event_types import StateChanged
from relight.net.connection import Connection


class CoordinatorHere(NamedTuple):
    """This process is the coordinator, and is certain to remain so until the time `until`."""

    until: float = FOR_EVER


class CoordinatorAt(NamedTuple):
    """The coordinator may be at this address. The `who` field is the coordinator's host in readable
    form, or empty. The caller should try to connect for at most `timeout_s` seconds.
    """

    address: tuple[str, int]
    timeout_s: float
    who: str = ""


class NotFound(NamedTuple):
    """The finder doesn't currently know of a coordinator; the caller should try again after
    `again_s` seconds.
    """

    reason: str
    again_s: float = RETRY_S


class Misconfigured(NamedTuple):
    """The finder can't find a coordinator until the user fixes a configuration error."""

    error: UsageError


SearchResult = CoordinatorHere | CoordinatorAt | NotFound | Misconfigured


class Seeker:
    """The caller of a finder. The finder calls these methods only from the event loop."""

    def listen(self, sock: socket.socket) -> None:
        """Listen on this socket, even while another process is the coordinator."""
        raise NotImplementedError

    def found(self, result: SearchResult) -> None:
        """Handle the result of `seek`. CoordinatorHere can also arrive without a call to `seek`,
        when this process becomes the coordinator.
        """
        raise NotImplementedError

    def extended(self, until: float) -> None:
        """Record that this process is now certain to remain the coordinator until the time
        `until`.
        """

    def step_down(self, reason: str, again_s: float) -> None:
        """Step down as the coordinator. This process may call `seek` again after `again_s`
        seconds.
        """

    def say(self, text: str) -> None:
        """Print a message to the user."""

    def record(self, event: StateChanged) -> None:
        """Write a state change of an election or a candidacy to the event log."""

    def report_refused(self, line: str) -> None:
        """Report that a peer's connection was refused."""


class Finder:
    """The interface of all finders. The default implementations are for a finder whose result is
    always certain.

    Attributes:
        keeps_socket: whether the socket given to `Seeker.listen` stays open when this process
            steps down.
        slows_heartbeats: whether agents in large groups may send heartbeats less often
            (core/link/heartbeat_rate).
    """

    keeps_socket = True
    slows_heartbeats = True

    def open(self, seeker: Seeker) -> None:
        """Start working for this seeker."""
        raise NotImplementedError

    def seek(self, *, may_host: bool) -> None:
        """Find the coordinator, and pass the result to `Seeker.found`."""
        raise NotImplementedError

    def answered(self) -> None:
        """Record that a coordinator has responded at the address that this finder returned."""

    def failed(self, *, refused: bool, working: bool) -> tuple[str, Refusal]:
        """Record that the connection to the address returned by this finder has ended or failed.
        The argument `working` means that workers on this node depend on the connection. Return a
        more precise reason (or an empty string), and what a refused connection says about the
        coordinator.
        """
        del refused, working
        return "", Refusal.NOTHING

    def coordinator_lost(self) -> None:
        """Record that a coordinator was lost after it had responded and sent a message."""

    def redirected(self, host: int) -> str:
        """Record that the peer named the host with this index as the coordinator. The index is -1
        if the peer doesn't know the coordinator. Return a description of the peer's report.
        """
        del host
        return "it no longer coordinates"

    def coordinates(self, has_lost_nodes: Callable[[], bool]) -> bool:
        """Return whether this process is the coordinator and no other process can be.
        `has_lost_nodes` returns whether its group has lost a node whose workers had not succeeded.
        """
        del has_lost_nodes
        return True

    def set_enough_nodes(self, *, enough: bool) -> None:
        """Record whether enough nodes can reach this process. Called each time the process's term
        as coordinator is extended.
        """

    def loopback_addresses(self) -> Sequence[str]:
        """Return the endpoint's addresses if all of them are loopback addresses, or an empty
        sequence.
        """
        return ()

    def coordinator_index(self) -> int:
        """Return the index of the coordinator's host, or -1 if it is unknown or if there is only
        one host.
        """
        return -1

    def take_connection(self, connection: Connection, settings: GroupSettings | None) -> None:
        """Handle a connection that another host's finder has opened to this process's socket."""
        del settings
        connection.close()

    def take_ballot(self, data: bytes) -> None:
        """Handle a datagram that is not an agent's heartbeat."""

    def is_needed(self, *, connected: bool) -> bool:
        """Return whether other nodes still need this host after its agent has finished. The
        argument `connected` means that other nodes are still connected to this host.
        """
        del connected
        return False

    def predecessor(self) -> str:
        """Return why another process may have been the coordinator before this one, or "" if none
        was. A coordinator that depends on a register learns this from its nodes alone.
        """
        return ""

    def retire(self) -> None:
        """Make sure that this process doesn't become the coordinator again, because its node has
        given up.
        """

    def close(self) -> None:
        """Release all resources."""
