"""The messages that nodes running `relight doctor` exchange. Each message has a small immutable
type.

Each field of a message is checked before the message is used (`base/fields`).

    node -> host of the meeting    DoctorNode, Clock, ProbeReport
    host of the meeting -> node    NodesPresent, NodeRefused, StartProbes, Clock, Verdict
"""

from enum import StrEnum
from typing import NamedTuple

from relight.base.fields import MAX_FINDINGS
from relight.core.group.messages import StartProbes
from relight.health.finding import Finding, in_order

_MAX_TEXT = 800
"""The maximum number of characters in each text field of a finding, so that all findings fit into
one message.
"""


class ProbeResult(StrEnum):
    """The result of an attempt to reach another node."""

    UNTRIED = ""
    PASSED = "ok"
    SILENT = "silent"
    REFUSED = "refused"
    NO_ROUTE = "no route"
    MUTE = "mute"
    STUCK = "stuck"


class DoctorNode(NamedTuple):
    """A node's description of itself.

    Other nodes try to reach the node at `address`, on the ports `tcp_port` and `udp_port`. The
    `own` field is the local address of its connection to the meeting's host. The `resolved` field
    holds the addresses that the endpoint's host resolves to on this node. `udp_taken` means that
    the node hosts the endpoint, but another program receives the datagrams.

    The host adds `seen_as`, the source address of the node's connection if it differs from `own`.
    It also adds `clock_s`, the offset of the node's clock from the host's, with an error of up to
    `clock_error_s`, or None if unknown.
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
    """The result of a node's probe of another node.

    `tcp` is the result of connecting to a free port, and `large` is the result of sending a large
    amount of data over that connection. The `answered` field is the size in bytes of the largest
    packet that the other node replied to, and `heard` is the size of the largest packet received
    from the other node. 0 means no packet. The `mtu` field is the size of the largest packet that
    the interface accepts.
    """

    tcp: ProbeResult = ProbeResult.UNTRIED
    large: ProbeResult = ProbeResult.UNTRIED
    answered: int = 0
    heard: int = 0
    mtu: int = 0


class TargetProbe(NamedTuple):
    """A probe of the node whose number is `target`."""

    target: int
    probe: Probe


class NodesPresent(NamedTuple):
    """Tells a node which nodes have joined so far."""

    hosts: tuple[str, ...]


class NodeRefused(NamedTuple):
    """Tells a node that the host has rejected it."""

    why: str


class Clock(NamedTuple):
    """A request for the host's time, or the reply to it. A reply has the same `number` as its
    request, and contains the seconds since 1970 as `time_s`.
    """

    number: int
    time_s: float | None = None


class ProbeReport(NamedTuple):
    """A node's probe results, and how far its clock is ahead of the host's."""

    probes: tuple[TargetProbe, ...]
    clock_s: float | None
    clock_error_s: float


class Verdict(NamedTuple):
    """The findings about the connections between nodes, the nodes that took part, and how long the
    probes took.
    """

    findings: tuple[Finding, ...]
    came: tuple[str, ...]
    seconds: float = 0.0

    def bounded(self) -> "Verdict":
        """Return a copy that is small enough for a message. If there are too many findings, only
        the worst ones are kept.
        """
        worst = in_order(self.findings)[:MAX_FINDINGS]
        short = (Finding(each.level, *(text[:_MAX_TEXT] for text in each[1:])) for each in worst)
        return self._replace(findings=tuple(short))


FromNode = DoctorNode | Clock | ProbeReport
FromHost = NodesPresent | NodeRefused | StartProbes | Clock | Verdict
