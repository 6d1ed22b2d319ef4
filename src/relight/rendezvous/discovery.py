"""Finders determine where a job's coordinator is. If it is this process, they also determine until
when that is certain.

    endpoint_finder.py   with one endpoint, finds the process that can bind it
    election_finder.py   with an endpoint that lists several hosts, finds the host that they elected
    register_finder.py   with a registry, finds the process that the registry's record names

A finder searches on request (`seek`). It also reports on its own initiative when this process
starts to coordinate, continues, or has to stop. It does not depend on link, group or coordinator.
Its caller (the `Seeker`: an agent's link, `relight doctor`, `relight coordinator`) listens on the
socket that the finder provides, connects to the address that the finder names, and reports the
outcome.
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
    """This process is the coordinator, and is certain to remain so until `until`."""

    until: float = FOR_EVER


class CoordinatorAt(NamedTuple):
    """The coordinator may be at this address; `who` is its readable name. Try to connect for at
    most `timeout_s`.
    """

    address: tuple[str, int]
    timeout_s: float
    who: str = ""


class NotFound(NamedTuple):
    """The finder currently knows no coordinator; try again after `again_s`."""

    reason: str
    again_s: float = RETRY_S


class Misconfigured(NamedTuple):
    """The finder can't find a coordinator until the user corrects an error."""

    error: UsageError


SearchResult = CoordinatorHere | CoordinatorAt | NotFound | Misconfigured


class Seeker:
    """The caller of a finder; the finder only calls it from the loop."""

    def listen(self, sock: socket.socket) -> None:
        """Listen on this socket, even if another process is the coordinator."""
        raise NotImplementedError

    def found(self, result: SearchResult) -> None:
        """Handle the result of `seek`. CoordinatorHere can also arrive without a call to `seek`,
        when this process becomes the coordinator.
        """
        raise NotImplementedError

    def extended(self, until: float) -> None:
        """Record that the time until which this process is certain to be the coordinator has been
        extended to `until`.
        """

    def step_down(self, reason: str, again_s: float) -> None:
        """Stop coordinating; this process may seek again after `again_s`."""

    def say(self, text: str) -> None:
        """Print a message to the user."""

    def record(self, event: StateChanged) -> None:
        """Write a state change in an election or a candidacy to the event log."""

    def report_refused(self, line: str) -> None:
        """Report a refused peer."""


class Finder:
    """The interface of finders. The defaults suit a finder whose result is always certain.

    Attributes:
        keeps_socket: whether the socket given to `Seeker.listen` stays open when this process
            steps down.
        slows_heartbeats: whether agents of large groups may send fewer heartbeats
            (core/link/heartbeat_rate).
    """

    keeps_socket = True
    slows_heartbeats = True

    def open(self, seeker: Seeker) -> None:
        """Start working for this seeker."""
        raise NotImplementedError

    def seek(self, *, may_host: bool) -> None:
        """Find out where the coordinator is; the result is passed to `Seeker.found`."""
        raise NotImplementedError

    def answered(self) -> None:
        """Record that a coordinator has responded at the address that was found."""

    def failed(self, *, refused: bool, working: bool) -> tuple[str, Refusal]:
        """Record that the connection to the address that was found has ended or failed. `working`
        means that workers on this node depend on the connection. Return a better reason, or an
        empty string, and the meaning of a refusal.
        """
        del refused, working
        return "", Refusal.NOTHING

    def coordinator_lost(self) -> None:
        """Record the loss of a coordinator that had responded and sent a message."""

    def redirected(self, host: int) -> str:
        """Record that the peer named the host with this index as the coordinator. The index is -1
        if the peer knows no coordinator. Return a description of the peer's report.
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
        """Record whether enough nodes can reach this process; called whenever its role is
        extended.
        """

    def loopback_addresses(self) -> Sequence[str]:
        """Return the endpoint's addresses if they are loopback addresses."""
        return ()

    def coordinator_index(self) -> int:
        """Return the coordinating host's index, or -1 if it is unknown or if there is only one
        host.
        """
        return -1

    def take_connection(self, connection: Connection, settings: GroupSettings | None) -> None:
        """Handle a connection that another host's finder has opened to this process's socket."""
        del settings
        connection.close()

    def take_ballot(self, data: bytes) -> None:
        """Handle a datagram that is not an agent's heartbeat."""

    def is_needed(self, *, connected: bool) -> bool:
        """Return whether other nodes still need this host after its agent has finished. `connected`
        means that nodes are connected to it.
        """
        del connected
        return False

    def follows_another(self) -> bool:
        """Return whether another process is known to have been the coordinator before this one."""
        return False

    def retire(self) -> None:
        """Prevent this process from coordinating again because its node has given up."""

    def close(self) -> None:
        """Release all resources."""
