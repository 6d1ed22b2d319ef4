"""Lets the nodes find each other at the endpoint, as in a job. The node that can bind the endpoint
becomes the meeting's host.

If the endpoint lists several hosts, only the first one is used.

    seeking     alternates between trying to host the endpoint and to reach it
      | we could bind the port      -> hosting (hosting.py)
      | a doctor responds           -> guest: introduces itself, probes, reports, gets the verdict
      | neither within `wait_s`     -> reports what this machine knows about it (health/endpoint.py)
"""

import socket
import time
from collections.abc import Callable

from relight.base import fields
from relight.base.errors import describe_bug
from relight.base.fields import Malformed, Message
from relight.core.group.group_types import GroupSettings, Hello
from relight.core.group.messages import StartProbes
from relight.doctor.hosting import REPORT_S, GatherSettings, MeetingHost
from relight.events.event_types import InternalErrorEvent
from relight.health import endpoint
from relight.health.doctor_messages import (
    Clock,
    DoctorNode,
    FromHost,
    NodeRefused,
    NodesPresent,
    Probe,
    ProbeReport,
    TargetProbe,
    Verdict,
)
from relight.health.endpoint import COORDINATOR, DOCTOR
from relight.health.finding import ERROR, WARNING, Finding
from relight.health.inspection import resolve_addresses
from relight.health.probes import Prober, cookie_from, mtu_to
from relight.host.loop import Loop, Timer
from relight.net.connection import Connection, dial
from relight.net.dns import is_numeric
from relight.net.ports import is_loopback
from relight.rendezvous.discovery import CoordinatorAt, NotFound, SearchResult, Seeker
from relight.rendezvous.endpoint_finder import EndpointFinder

_RETRY_S = 0.2
_DIAL_S = 2.0
_EXAMINE_S = 2.0
_CLOCK_QUESTIONS = 5
_LAST_CLOCK_S = 0.5
_VERDICT_S = REPORT_S + 1.0
_MAX_HOSTS = 4
_MAX_MISTAKES = 3


def gather(settings: GatherSettings, say: Callable[[list[str]], None]) -> Verdict:
    """Meet the other nodes, probe the network between all nodes, and return the findings.

    Args:
        settings: the settings for the meeting.
        say: called with the nodes that have joined, after each change.
    """
    loop, mistakes = Loop(), list[Finding]()

    def on_internal_error(what: str, error: Exception) -> None:
        mistakes.append(Finding(WARNING, InternalErrorEvent(what, describe_bug(error)).text, ""))

    loop.on_internal_error = on_internal_error
    gathering = _Participant(loop, settings, say)
    try:
        gathering.open()
        loop.run_until(lambda: gathering.verdict is not None)
    finally:
        gathering.close()
        loop.close()
    verdict = gathering.verdict or gathering.own_verdict()
    verdict = verdict._replace(findings=(*verdict.findings, *mistakes[:_MAX_MISTAKES]))
    loopback = endpoint.loopback_finding(
        settings.meeting.host, settings.meeting.port, gathering.addresses
    )
    if loopback is not None and len(verdict.came) < settings.nodes.max_nodes and gathering.hosted:
        return verdict._replace(findings=(loopback, *verdict.findings))
    return verdict


class _Participant(Seeker):
    """This node's role in the meeting."""

    def __init__(
        self, loop: Loop, settings: GatherSettings, say: Callable[[list[str]], None]
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._say = say
        self._verdict: Verdict | None = None
        self._prober: Prober | None = None
        self._host: MeetingHost | None = None
        self._connection: Connection | None = None
        self._finder = EndpointFinder(loop, settings.meeting)
        self._dialled = ""
        self._timer: Timer | None = None
        self._limit: Timer | None = None
        self._refused = ""
        self._present: tuple[str, ...] = ()
        self._examination: _Examination | None = None

    @property
    def addresses(self) -> list[str]:
        """The addresses of the endpoint's host, as resolved by this machine."""
        return [address for address, _ in self._finder.addresses]

    @property
    def hosted(self) -> bool:
        """Whether this node hosted the meeting."""
        return self._host is not None

    @property
    def verdict(self) -> Verdict | None:
        return self._host.verdict if self._host is not None else self._verdict

    def open(self) -> None:
        self._wait(self._settings.wait_s)
        self._finder.open(self)
        self._seek()

    def close(self) -> None:
        self._finder.close()
        for timer in (self._timer, self._limit):
            if timer is not None:
                timer.cancel()
        for each in (self._host, self._connection, self._examination, self._prober):
            if each is not None:
                each.close()

    def own_verdict(self) -> Verdict:
        """Return the findings that don't depend on other nodes."""
        meeting = self._settings.meeting
        hosts = meeting.hosts[:_MAX_HOSTS]
        seen = [endpoint.examine(host, port, _EXAMINE_S / len(hosts)) for host, port in hosts]
        judged = [finding for each in seen for finding in endpoint.judge(each)]
        found = [f for f in judged if f.level == ERROR or not self._refused]
        spoken = {answer.what for each in seen for answer in each.answers}
        level = ERROR
        if self._present:
            reason = "the rendezvous ended without a verdict"
            remedy = "run it again; the node at the endpoint must keep running until the end"
        elif self._refused:
            reason = f"this node was refused: {self._refused}"
            remedy = "use the same flags, RELIGHT_TOKEN and tls_ settings on all nodes"
        elif COORDINATOR in spoken:
            level = WARNING
            reason = "the endpoint is in use by a coordinator"
            remedy = "to check the network between the nodes, use another port in --rdzv-endpoint"
        else:
            reason = f"no other node reached {meeting.where}"
            remedy = "run the same command on all nodes at about the same time"
            if DOCTOR in spoken:
                remedy = "run it again, at about the same time as on the others"
        found.insert(0, Finding(level, reason, "", "", remedy))
        return Verdict(tuple(found), self._present)

    def _wait(self, seconds: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self._loop.call_after(seconds, self._stop)

    def _stop(self) -> None:
        if self._host is None:
            self._verdict = self._verdict or self.own_verdict()

    # Called by the finder:

    def _seek(self) -> None:
        if self.verdict is None:
            self._finder.seek(may_host=not self._refused)

    def found(self, result: SearchResult) -> None:
        """Connect to the meeting's host or become the host, depending on the search result."""
        match result:
            case CoordinatorAt(address):
                self._dial(address)
            case NotFound(_, again_s):
                self._timer = self._loop.call_after(again_s, self._seek)

    def _dial(self, address: tuple[str, int]) -> None:
        self._dialled = address[0]
        meeting = self._settings.meeting
        group = GroupSettings(*self._settings.nodes, max_restarts=0)
        hello = fields.plain(Hello(DOCTOR, meeting.job, group))
        try:
            self._connection = dial(
                self._loop, address, self, hello, meeting.security, timeout_s=_DIAL_S
            )
        except OSError:
            self._seek_later()

    def _seek_later(self) -> None:
        self._timer = self._loop.call_after(_RETRY_S, self._seek)

    def listen(self, sock: socket.socket) -> None:
        """Host the meeting on this listening socket."""
        prober = self._prober = Prober(self._loop, self._settings.meeting.port)
        own = self._own(prober, "")
        self._host = MeetingHost(self._loop, sock, self._settings, own, prober, self._say)

    def _own(self, prober: Prober, address: str) -> DoctorNode:
        """Return the description of this node that the other nodes receive. The node connects to
        the host from `address`.
        """
        chosen = self._settings.meeting.local_addr
        if chosen and not is_numeric(chosen):
            chosen = next(iter(resolve_addresses(chosen)), "")
        resolved = self.addresses
        if is_numeric(self._settings.meeting.host) or any(map(is_loopback, resolved)):
            resolved = []
        return DoctorNode(
            name=socket.gethostname(),
            address=chosen or address,
            tcp_port=prober.tcp_port,
            udp_port=prober.udp_port,
            mtu=mtu_to(self._dialled) if self._dialled else 0,
            resolved=tuple(resolved),
            facts=self._settings.facts,
            udp_taken=prober.udp_taken,
            own=address,
        )

    # Called by the connection to the host:

    def opened(self, connection: Connection, hello: Message) -> None:
        """Introduce this node to the peer if the peer is hosting the meeting."""
        if fields.record(Hello, hello).sender != DOCTOR:
            connection.fail("the program that listens there is not `relight doctor`")
            return
        if self._prober is None:
            self._prober = Prober(self._loop)
        own = self._own(self._prober, connection.own_address())
        connection.send(fields.to_json(own))

    def received(self, connection: Connection, message: Message) -> None:
        """Handle a message from the host."""
        match fields.message(FromHost, message):
            case NodesPresent(hosts):
                self._present = hosts
                self._say(list(hosts))
                self._wait(self._settings.wait_s + _VERDICT_S)
            case NodeRefused(why):
                self._refused = why
                self._stop()
            case StartProbes() as begin:
                self._begin(connection, begin)
            case Clock(number, time_s):
                if self._examination is None:
                    raise Malformed("unexpected clock message")
                self._examination.compare_clocks(number, time_s)
            case Verdict() as verdict:
                began = (
                    self._loop.now() if self._examination is None else self._examination.began_at
                )
                self._verdict = verdict._replace(seconds=self._loop.now() - began)

    def closed(self, connection: Connection, reason: str) -> None:
        """Handle the end of the connection to the host, or a failure to connect."""
        self._connection = None
        if connection.turned_away:
            self._refused = reason
        if self._examination is not None:
            self._stop()
        elif self.verdict is None:
            self._finder.failed(refused=connection.refused, working=False)
            self._seek_later()

    def _begin(self, connection: Connection, begin: StartProbes) -> None:
        if self._examination is not None or self._prober is None:
            raise Malformed("duplicate start message")
        if not 0 < begin.number < len(begin.nodes):
            raise Malformed("an invalid node number")
        # The host does not know which address this node used to reach it.
        nodes = (begin.nodes[0]._replace(address=self._dialled), *begin.nodes[1:])
        cookie = cookie_from(begin.cookie)
        self._wait(_VERDICT_S)
        self._examination = _Examination(self._loop, connection)
        self._prober.start(cookie, begin.number, nodes, self._examination.take_probes)


class _Examination:
    """Collects this node's probe results and its clock offset from the host, and then reports both
    to the host.
    """

    def __init__(self, loop: Loop, connection: Connection) -> None:
        self.began_at = loop.now()
        self._loop = loop
        self._connection = connection
        self._requested_at = 0.0
        self._clocks: list[tuple[float, float | None]] = []
        """The measured errors of this node's clock offset, each with the offset."""
        self._found: dict[int, Probe] | None = None
        self._timer: Timer | None = None
        self._request_time()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def take_probes(self, found: dict[int, Probe]) -> None:
        """Report these results, but first wait briefly for the clock comparison."""
        self._found = found
        if len(self._clocks) == _CLOCK_QUESTIONS:
            self._send_report()
        else:
            self._timer = self._loop.call_after(_LAST_CLOCK_S, self._send_report)

    def compare_clocks(self, number: int, time_s: float | None) -> None:
        """Record this node's clock offset. Its error is at most half the round-trip time."""
        if number != len(self._clocks) or number == _CLOCK_QUESTIONS or time_s is None:
            raise Malformed("unexpected clock message")
        half_s = (self._loop.now() - self._requested_at) / 2
        self._clocks.append((half_s, time.time() - half_s - time_s))
        if len(self._clocks) < _CLOCK_QUESTIONS:
            self._request_time()
        else:
            self._send_report()

    def _request_time(self) -> None:
        self._requested_at = self._loop.now()
        self._connection.send(fields.to_json(Clock(len(self._clocks))))

    def _send_report(self) -> None:
        """Send this node's results, unless they have already been sent."""
        found, self._found = self._found, None
        if found is None:
            return
        error_s, ahead_s = min(self._clocks, default=(0.0, None))
        probes = tuple(TargetProbe(target, probe) for target, probe in found.items())
        self._connection.send(fields.to_json(ProbeReport(probes, ahead_s, error_s)))
