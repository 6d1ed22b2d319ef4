"""The nodes meet at the endpoint as those of a job do: whoever can bind it hosts the meeting. Of
several hosts of an endpoint it is the first one that counts.

seeking     tries in turns to host the endpoint and to reach it
  | the port is ours            -> hosting (hosting.py)
  | a doctor answers            -> guest: introduces itself, probes, reports, hears the verdict
  | neither for `wait_s`        -> what this machine sees of the endpoint (endpoint.py)
"""

import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from relight.core.fields import Malformed, Message, printable
from relight.doctor import endpoint, findings
from relight.doctor.endpoint import COORDINATOR, DOCTOR
from relight.doctor.findings import ERROR, WARNING, Finding
from relight.doctor.hosting import REPORT_S, Host, Verdict
from relight.doctor.inspection import addresses_of
from relight.doctor.network import Node, Probe
from relight.doctor.probes import Station, cookie_from, mtu_to
from relight.host.connection import Connection, dial, resolve
from relight.host.loop import Loop, Timer
from relight.host.names import is_numeric
from relight.host.ports import is_loopback, is_ours, listen
from relight.rendezvous.meeting import Meeting
from relight.values import Nodes

_RETRY_S = 0.2
_LOOK_UP_S = 1.0
_DIAL_S = 2.0
_LOOK_S = 2.0
_CLOCK_QUESTIONS = 5
_LAST_CLOCK_S = 0.5
_VERDICT_S = REPORT_S + 1.0
_MAX_CAME = 100_000
_MAX_HOSTS = 4


class Wish(NamedTuple):
    """How the nodes shall meet.

    `nodes`: how many there are. `wait_s`: how long to wait for more after the last one came.
    `facts` should be equal on all of them.
    """

    meeting: Meeting
    nodes: Nodes
    wait_s: float
    facts: dict[str, str]


def gather(wish: Wish, say: Callable[[list[str]], None]) -> Verdict:
    """Meet the other nodes, probe all pairs, and return what was found.

    Args:
        wish: where, and how many.
        say: is told which nodes have come, each time that this changes.
    """
    loop = Loop()
    gathering = _Gathering(loop, wish, say)
    try:
        gathering.open()
        loop.run_until(lambda: gathering.verdict is not None)
    finally:
        gathering.close()
        loop.close()
    verdict = gathering.verdict or gathering.give_up()
    itself = endpoint.itself(wish.meeting.host, wish.meeting.port, gathering.addresses)
    if itself is not None and len(verdict.came) < wish.nodes.most and gathering.hosted:
        return verdict._replace(findings=(itself, *verdict.findings))
    return verdict


class _Gathering:
    """This node's part."""

    def __init__(self, loop: Loop, wish: Wish, say: Callable[[list[str]], None]) -> None:
        self._loop = loop
        self._wish = wish
        self._meeting = wish.meeting
        self._say = say
        self._verdict: Verdict | None = None
        self._station: Station | None = None
        self._host: Host | None = None
        self._connection: Connection | None = None
        self._addresses: list[tuple[str, int]] = []
        self._dialled = ""
        self._turn = 0
        self._timer: Timer | None = None
        self._limit: Timer | None = None
        self._turned_away = ""
        self._came: tuple[str, ...] = ()
        self._asked_at: dict[int, float] = {}
        self._clock: tuple[float, float] | None = None
        self._clock_known = False
        self._began_at = 0.0
        self._report: dict[int, Probe] | None = None
        self._nodes: list[tuple[str, int, int]] = []

    @property
    def addresses(self) -> list[str]:
        """What the endpoint's host is here."""
        return [address for address, _ in self._addresses]

    @property
    def hosted(self) -> bool:
        """Whether this node hosted the meeting."""
        return self._host is not None

    @property
    def verdict(self) -> Verdict | None:
        return self._host.verdict if self._host is not None else self._verdict

    def open(self) -> None:
        self._wait(self._wish.wait_s)
        self._look_up()

    def close(self) -> None:
        if self._host is not None:
            self._host.close()
        for timer in (self._timer, self._limit):
            if timer is not None:
                timer.cancel()
        if self._connection is not None:
            self._connection.close()
        if self._station is not None:
            self._station.close()

    def give_up(self) -> Verdict:
        """Return what can be said without the others."""
        meeting = self._meeting
        hosts = meeting.hosts[:_MAX_HOSTS]
        seen = [endpoint.look(host, port, _LOOK_S / len(hosts)) for host, port in hosts]
        judged = [finding for each in seen for finding in endpoint.judge(each)]
        found = [f for f in judged if f.level == ERROR or not self._turned_away]
        spoken = {answer.what for each in seen for answer in each.answers}
        level = ERROR
        if self._came:
            reason = "the meeting of the nodes ended without a verdict"
            remedy = "run it again; the node that has the endpoint must stay"
        elif self._turned_away:
            reason = f"turned away: {self._turned_away}"
            remedy = "give all nodes the same flags, RELIGHT_TOKEN and tls_ settings"
        elif COORDINATOR in spoken:
            level = WARNING
            reason = "a coordinator has the endpoint, so that the nodes can't meet there"
            remedy = "for the checks between nodes use another port in --rdzv-endpoint, on a node"
        else:
            reason = f"no other node was met at {meeting.where}"
            remedy = "run the same command on all nodes at about the same time"
            if DOCTOR in spoken:
                remedy = "run it again, and sooner after the others"
        found.insert(0, Finding(level, reason, "", "", remedy))
        return Verdict(tuple(found), self._came)

    def _wait(self, seconds: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self._loop.call_after(seconds, self._stop)

    def _stop(self) -> None:
        if self._host is None:
            self._verdict = self._verdict or self.give_up()

    # Seeking.

    def _look_up(self) -> None:
        resolve(self._loop, self._meeting.host, self._meeting.port, self._on_addresses)

    def _on_addresses(self, addresses: list[tuple[str, int]], error: str) -> None:
        del error
        self._addresses = addresses or self._addresses
        own_name = self._meeting.host == socket.gethostname()
        if self._addresses or self._meeting.hosted or own_name:
            self._seek()
        else:
            self._timer = self._loop.call_after(_LOOK_UP_S, self._look_up)

    def _seek(self) -> None:
        if self.verdict is not None or self._try_to_host():
            return
        if not self._addresses:
            self._again()
            return
        self._turn += 1
        address = self._addresses[self._turn % len(self._addresses)]
        self._dialled = address[0]
        hello: Message = {
            "type": "hello",
            "sender": DOCTOR,
            "job": self._meeting.job,
            "least": self._wish.nodes.least,
            "most": self._wish.nodes.most,
        }
        try:
            self._connection = dial(
                self._loop, address, self, hello, self._meeting.security, timeout_s=_DIAL_S
            )
        except OSError:
            self._again()

    def _again(self) -> None:
        self._timer = self._loop.call_after(_RETRY_S, self._seek)

    def _try_to_host(self) -> bool:
        """Host the endpoint if it is an address of this machine and its port is free; the rules are
        those of an agent's link.
        """
        meeting = self._meeting
        if meeting.hosted is False or self._turned_away:
            return False
        ours = [address for address, _ in self._addresses if is_ours(address)]
        anyway = bool(meeting.hosted) or (
            meeting.host == socket.gethostname() and not self._addresses
        )
        if not ours and not anyway:
            return False
        meant = meeting.host == "localhost" or meeting.host in ours
        only = ours[0] if ours and meant and is_loopback(ours[0]) else ""
        sock = listen(only, meeting.port)
        if sock is None:
            return False
        self._station = Station(self._loop, meeting.port)
        own = self._own(self._station, "")
        wish = self._wish
        self._host = Host(
            self._loop,
            sock,
            meeting.security,
            meeting.job,
            wish.nodes,
            own,
            self._station,
            wish.wait_s,
            self._say,
        )
        return True

    def _own(self, station: Station, address: str) -> Node:
        """Return this node as the others shall see it."""
        chosen = self._meeting.local_addr
        if chosen and not is_numeric(chosen):
            chosen = next(iter(addresses_of(chosen)), "")
        resolved = self.addresses
        if is_numeric(self._meeting.host) or any(map(is_loopback, resolved)):
            resolved = []
        return Node(
            name=socket.gethostname(),
            address=chosen or address,
            tcp_port=station.tcp_port,
            udp_port=station.udp_port,
            mtu=mtu_to(self._dialled) if self._dialled else 0,
            resolved=tuple(resolved),
            facts=self._wish.facts,
            udp_taken=station.udp_taken,
        )

    # Guest: the connection's owner.

    def opened(self, connection: Connection, hello: Message) -> None:
        """Somebody has answered."""
        if hello.get("sender") != DOCTOR:
            connection.fail("what listens there is no doctor")
            return
        if self._station is None:
            self._station = Station(self._loop)
        address = connection.own_address()
        own = self._own(self._station, address)
        connection.send({"type": "node", "own": address, **own._asdict()})

    def received(self, connection: Connection, message: Message) -> None:
        """The host of the meeting says something."""
        try:
            self._take(connection, message)
        except Malformed as error:
            connection.fail(f"it sent nonsense: {error}")

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone, or could not be made."""
        self._connection = None
        if connection.unfit:
            self._turned_away = reason
        if self._nodes:
            self._stop()
        elif self.verdict is None:
            self._again()

    def _take(self, connection: Connection, message: Message) -> None:
        kind = message["type"]
        if kind == "came":
            self._came = _names(message.get("hosts"))
            self._say(list(self._came))
            self._wait(self._wish.wait_s + _VERDICT_S)
        elif kind == "sorry":
            self._turned_away = printable(str(message.get("reason"))[:200])
            self._stop()
        elif kind == "probe":
            self._begin(connection, message)
        elif kind == "clock":
            self._compare_clocks(connection, message)
        elif kind == "verdict":
            found = findings.from_json(message.get("findings"))
            seconds = self._loop.now() - self._began_at
            self._verdict = Verdict(found, _names(message.get("came")), seconds)

    def _begin(self, connection: Connection, message: Message) -> None:
        if self._nodes or self._station is None:
            raise Malformed("a second beginning")
        nodes, number = _targets(message.get("nodes")), message.get("number")
        if type(number) is not int or not 0 < number < len(nodes):
            raise Malformed("a number that is none")
        # The host of the meeting can't know where we find it.
        self._nodes = [(self._dialled, *nodes[0][1:]), *nodes[1:]]
        cookie = cookie_from(message.get("cookie"))
        self._began_at = self._loop.now()
        self._wait(_VERDICT_S)
        self._station.start(cookie, number, self._nodes, self._on_probes)
        self._ask_for_time(connection)

    def _on_probes(self, found: dict[int, Probe]) -> None:
        self._report = found
        if self._clock_known:
            self._send_report()
        else:
            self._timer = self._loop.call_after(_LAST_CLOCK_S, self._send_report)

    def _ask_for_time(self, connection: Connection) -> None:
        number = len(self._asked_at)
        self._asked_at[number] = self._loop.now()
        connection.send({"type": "clock", "number": number})

    def _compare_clocks(self, connection: Connection, message: Message) -> None:
        """Half of the round trip is what the difference may be wrong by."""
        number, at = message.get("number"), message.get("at")
        if type(number) is not int or number not in self._asked_at or type(at) is not float:
            raise Malformed("a time that nobody asked for")
        half_s = (self._loop.now() - self._asked_at[number]) / 2
        if self._clock is None or half_s < self._clock[1]:
            self._clock = time.time() - half_s - at, half_s
        if len(self._asked_at) < _CLOCK_QUESTIONS:
            self._ask_for_time(connection)
        else:
            self._clock_known = True
            self._send_report()

    def _send_report(self) -> None:
        """Tell what was found, once."""
        found, self._report = self._report, None
        if found is None or self._connection is None:
            return
        rows = [[target, *probe] for target, probe in found.items()]
        ahead_s, error_s = self._clock or (None, 0.0)
        self._connection.send(
            {"type": "report", "probes": rows, "clock_s": ahead_s, "clock_error_s": error_s}
        )


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MAX_CAME:
        raise Malformed("no list of hosts")
    if not all(isinstance(name, str) and len(name) <= 300 for name in value):
        raise Malformed("a host that is none")
    return tuple(map(printable, value))


def _targets(value: object) -> list[tuple[str, int, int]]:
    if not isinstance(value, list) or len(value) > _MAX_CAME:
        raise Malformed("no list of nodes")
    found = []
    for row in value:
        if not (isinstance(row, list) and len(row) == 3 and isinstance(row[0], str)):
            raise Malformed("a node that is none")
        for port in row[1:]:
            if type(port) is not int or not 0 <= port <= 65535:
                raise Malformed("a port that is none")
        found.append((row[0], row[1], row[2]))
    return found
