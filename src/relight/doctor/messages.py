"""What the nodes that look at the network say to each other: one small immutable type a message.

A message is checked field by field before anything looks at it (`core/fields`).

    node -> host of the meeting    Node, Clock, Report
    host of the meeting -> node    Came, Sorry, Begin, Clock, Verdict
"""

from enum import StrEnum
from typing import NamedTuple

from relight.core.fields import MAX_FINDINGS
from relight.doctor.findings import Finding, in_order

_MOST_TEXT = 800
"""So many letters of a text of a finding, that all of them fit into a message."""


class Way(StrEnum):
    """How something went that was tried."""

    UNTRIED = ""
    PASSED = "ok"
    SILENT = "silent"
    REFUSED = "refused"
    NO_ROUTE = "no route"
    MUTE = "mute"
    STUCK = "stuck"


class DoctorNode(NamedTuple):
    """One node, as it describes itself.

    `address` is where the others try to reach it, at `tcp_port` and `udp_port`, and `own` the one
    from which it calls the host of the meeting. `resolved`: what the endpoint's host is here.
    `udp_taken`: it hosts the endpoint, and datagrams to that port go to another program.

    The host adds: `seen_as`, the address that its connection comes from, if not `own`; `clock_s`,
    how much its clock is ahead of the host's, within `clock_error_s`; None if it was not found.
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
    """What one node found about another.

    `tcp`: how a connection to a free port went, `large`: how much data over it did. `answered`: the
    largest packet in bytes that was answered, `heard`: the largest that came from there; 0 for
    none. `mtu`: the largest that the interface takes.
    """

    tcp: Way = Way.UNTRIED
    large: Way = Way.UNTRIED
    answered: int = 0
    heard: int = 0
    mtu: int = 0


class Target(NamedTuple):
    """Where to reach a node: a numeric address, and ports for connections and datagrams."""

    address: str
    tcp_port: int
    udp_port: int


class Tried(NamedTuple):
    """What was found about the node with the number `target`."""

    target: int
    probe: Probe


class Came(NamedTuple):
    """These nodes are there."""

    hosts: tuple[str, ...]


class Sorry(NamedTuple):
    """The node is not taken in."""

    why: str


class Begin(NamedTuple):
    """Probe these nodes. `number` is that of the node which gets this; `cookie` is hexadecimal, and
    known to all of them and nobody else.
    """

    cookie: str
    number: int
    nodes: tuple[Target, ...]


class Clock(NamedTuple):
    """What time is it, and the answer: `time_s` since 1970. `number` is that of the question."""

    number: int
    time_s: float | None = None


class ProbeReport(NamedTuple):
    """What a node found, and how much its clock is ahead of the host's."""

    probes: tuple[Tried, ...]
    clock_s: float | None
    clock_error_s: float


class Verdict(NamedTuple):
    """What was found between the nodes, which nodes came, and how long the probes took."""

    findings: tuple[Finding, ...]
    came: tuple[str, ...]
    seconds: float = 0.0

    def bounded(self) -> "Verdict":
        """Return it with the worst of many findings, so that it fits into a message."""
        worst = in_order(self.findings)[:MAX_FINDINGS]
        short = (Finding(each.level, *(text[:_MOST_TEXT] for text in each[1:])) for each in worst)
        return self._replace(findings=tuple(short))


FromNode = DoctorNode | Clock | ProbeReport
FromHost = Came | Sorry | Begin | Clock | Verdict
