"""The messages between the nodes of `relight doctor`: one small immutable type for each.

Each field of a message is checked before the message is used (`base/fields`).

    node -> host of the meeting    DoctorNode, Clock, ProbeReport
    host of the meeting -> node    NodesPresent, NodeRefused, StartProbes, Clock, Verdict
"""

from enum import StrEnum
from typing import NamedTuple

from relight.base.fields import MAX_FINDINGS
from relight.core.group.messages import StartProbes
from relight.health.finding import Finding, in_order

_MOST_TEXT = 800
"""Limit of characters per text of a finding, so that all findings fit into a message."""


class ProbeResult(StrEnum):
    """The result of an attempt."""

    UNTRIED = ""
    PASSED = "ok"
    SILENT = "silent"
    REFUSED = "refused"
    NO_ROUTE = "no route"
    MUTE = "mute"
    STUCK = "stuck"


class DoctorNode(NamedTuple):
    """A node's description of itself.

    Other nodes try to reach it at `address`, ports `tcp_port` and `udp_port`; `own` is the address
    from which it connects to the host of the meeting. `resolved`: the addresses of the endpoint's
    host on this node. `udp_taken`: it hosts the endpoint, but another program gets the datagrams.

    The host adds `seen_as`, the source address of its connection if that differs from `own`, and
    `clock_s`, the offset of its clock from the host's, within `clock_error_s`; None if unknown.
    """

    name: str
    address: str
    tcp_port: int
    udp_port: int
    mtu: int
    resolved: tuple[str, ...]
    facts: dict[str, str]
    udp_taken: bool = False
    own: str = ""
    seen_as: str = ""
    clock_s: float | None = None
    clock_error_s: float = 0.0


class Probe(NamedTuple):
    """A node's probe of another one.

    `tcp`: the result of a connection to a free port; `large`: of sending much data over it.
    `answered`: the largest packet in bytes that was answered; `heard`: the largest that came from
    there; 0 for none. `mtu`: the largest that the interface takes.
    """

    tcp: ProbeResult = ProbeResult.UNTRIED
    large: ProbeResult = ProbeResult.UNTRIED
    answered: int = 0
    heard: int = 0
    mtu: int = 0


class TargetProbe(NamedTuple):
    """The probe of the node with the number `target`."""

    target: int
    probe: Probe


class NodesPresent(NamedTuple):
    """The nodes that have joined."""

    hosts: tuple[str, ...]


class NodeRefused(NamedTuple):
    """The node is refused."""

    why: str


class Clock(NamedTuple):
    """A question for the time, or its answer: `time_s` since 1970. Both have the same `number`."""

    number: int
    time_s: float | None = None


class ProbeReport(NamedTuple):
    """The probes of one node, and how much its clock is ahead of the host's."""

    probes: tuple[TargetProbe, ...]
    clock_s: float | None
    clock_error_s: float


class Verdict(NamedTuple):
    """The findings between the nodes, which nodes came, and how long the probes took."""

    findings: tuple[Finding, ...]
    came: tuple[str, ...]
    seconds: float = 0.0

    def bounded(self) -> "Verdict":
        """Return a copy that fits into a message: of many findings it has the worst."""
        worst = in_order(self.findings)[:MAX_FINDINGS]
        short = (Finding(each.level, *(text[:_MOST_TEXT] for text in each[1:])) for each in worst)
        return self._replace(findings=tuple(short))


FromNode = DoctorNode | Clock | ProbeReport
FromHost = NodesPresent | NodeRefused | StartProbes | Clock | Verdict
