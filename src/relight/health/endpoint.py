"""Examines the endpoint from this machine: its addresses, the program that responds, and the
process that owns its port.

The functions in this module don't need an event loop, so an agent can call them just before it
gives up.
"""

import os
import socket
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from relight.base.fields import Malformed, printable
from relight.core.link import wire
from relight.core.link.authentication import NONCE_BYTES
from relight.health.finding import ERROR, OK, WARNING, Finding, format_finding
from relight.health.inspection import open_files, resolve_addresses, with_time_limit
from relight.host.devices import content
from relight.host.files import sockets_on_port
from relight.net.dns import format_address, is_numeric, sock_address
from relight.net.ports import is_loopback, is_ours

SILENT, REFUSED, NO_ROUTE = "silent", "refused", "no route"
COORDINATOR, DOCTOR, RELIGHT = "coordinator", "doctor", "relight"
RELIGHT_PROGRAMS = (COORDINATOR, DOCTOR, RELIGHT)

_MAX_ADDRESSES = 8
_NAME_S = 0.4
_ANSWER_S = 0.4
"""The fractions of the time limit for the name lookup and for the response. The rest is for
connecting.
"""
_SPARE_S = 1.0
"""Extra time for a thread whose calls have time limits of their own."""
_TRACE_PORT = 33434
"""A port on which no program listens, so that a machine that is up refuses connections
(traceroute(8)).
"""


class EndpointAnswer(NamedTuple):
    """The response from one address.

    The `what` field is one of the words above, or a description of how the program at the address
    behaved. The `alive` field indicates that the machine responds on another port. The `ours` field
    indicates that the address belongs to this machine, and `holder` is the process that is using
    the port.
    """

    address: str
    what: str
    alive: bool = False
    ours: bool = False
    holder: str = ""


class EndpointReport(NamedTuple):
    """What this machine can tell about an endpoint. If `addresses` is empty, the endpoint's name
    does not resolve.
    """

    host: str
    port: int
    answers: tuple[EndpointAnswer, ...]


def at_timeout(host: str, port: int, *, seconds: float = 2.0) -> list[str]:
    """Return a diagnosis, as lines, of an endpoint at which this node found no other nodes.

    The diagnosis takes at most `seconds`, and never raises an exception.
    """
    try:
        found = judge(examine(host, port, seconds * 0.9))
        return [line for finding in found for line in format_finding(finding)]
    except Exception as error:  # must not hide why the rendezvous failed
        return [f"the endpoint could not be examined: {error}"]


def examine(host: str, port: int, seconds: float) -> EndpointReport:
    """Examine an endpoint from this machine. This takes at most `seconds`."""
    end = time.monotonic() + seconds
    addresses: tuple[str, ...] = (host,)
    if not is_numeric(host):
        addresses = with_time_limit(seconds * _NAME_S, lambda: resolve_addresses(host)) or ()
    answers = _connect_to_all(addresses[:_MAX_ADDRESSES], port, end, seconds * _ANSWER_S)
    return EndpointReport(host, port, answers)


def judge(seen: EndpointReport) -> list[Finding]:
    """Return at least one finding about an endpoint."""
    of_relight = [answer.what for answer in seen.answers if answer.what in RELIGHT_PROGRAMS]
    if not seen.answers:
        findings = [_unresolved(seen.host)]
    elif of_relight:
        findings = [_relight_answers(of_relight[0])]
    else:
        whats = dict.fromkeys(answer.what for answer in seen.answers)
        findings = [_failure(what, seen) for what in whats]
    loop = loopback_finding(seen.host, seen.port, [answer.address for answer in seen.answers])
    if loop is not None:
        findings.insert(0, loop)
    return [each._replace(where=format_address(seen.host, seen.port)) for each in findings]


def loopback_finding(host: str, port: int, addresses: list[str]) -> Finding | None:
    """Return a finding if the endpoint's addresses would make every node connect to itself."""
    if not addresses or not all(map(is_loopback, addresses)):
        return None
    named = not is_numeric(host) and host != "localhost"
    return Finding(
        ERROR,
        f"the endpoint is this machine itself ({', '.join(addresses)})",
        format_address(host, port),
        "/etc/hosts maps the name to a loopback address, as Debian does for a machine's own name"
        if named
        else "no other machine can reach this address",
        "if it is the name of another machine, correct /etc/hosts here; nodes on other machines "
        "need an address that they can reach",
    )


def find_listener(port: int, proc: str = "/proc") -> str:
    """Return the process on this machine that listens on a TCP port, if this user is allowed to see
    it.
    """
    sockets = sockets_on_port(f"{proc}/net", port, listening=True)
    for pid in filter(str.isdecimal, os.listdir(proc) if sockets else ()):
        if sockets & open_files(pid, proc):
            words = " ".join(content(f"{proc}/{pid}/cmdline").replace("\0", " ").split())
            name = words or content(f"{proc}/{pid}/comm")
            return f"{printable(name, lines=False)[:60]} (pid {pid})"
    return ""


def identify_answer(data: bytes, *, closed: bool) -> str:
    """Identify the program that replied to a hello with these bytes, as a `RELIGHT_PROGRAMS` word
    or a description.
    """
    decoder = wire.Decoder()
    with suppress(Malformed):
        for message in decoder.feed(data):
            sender = message.get("sender")
            return sender if sender in (COORDINATOR, DOCTOR) else RELIGHT
    if data.startswith(b"relight "):
        return RELIGHT
    if not data:
        if closed:
            return "it closes the connection without responding, as torch's own store does"
        return "it accepts connections and sends nothing"
    for start, name in ((b"HTTP/", "a web server"), (b"SSH-", "an SSH server")):
        if data.startswith(start):
            return f"it is {name}"
    if data[0] in (0x15, 0x16):
        return "it uses TLS, but not relight's protocol"
    return f"it responds with {data[:24]!r}"


def _connect_to_all(
    addresses: tuple[str, ...], port: int, end: float, answer_s: float
) -> tuple[EndpointAnswer, ...]:
    """Connect to all addresses concurrently, and return their responses."""
    found: dict[str, EndpointAnswer] = {}

    def attempt(address: str) -> None:
        found[address] = _attempt(address, port, end, answer_s)

    threads = [threading.Thread(target=attempt, args=[each], daemon=True) for each in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_left_s(end + _SPARE_S))
    return tuple(found.get(each) or EndpointAnswer(each, SILENT, False) for each in addresses)


def _attempt(address: str, port: int, end: float, answer_s: float) -> EndpointAnswer:
    """Connect to one address, send a hello if the connection is accepted, and read the response."""
    family, target = sock_address(address, port)
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
        trace = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:  # a machine without IPv6
        return EndpointAnswer(address, f"{NO_ROUTE}: {error.strerror}")
    with sock, trace:
        trace.setblocking(False)
        with suppress(OSError):
            trace.connect(sock_address(address, _TRACE_PORT)[1])
            trace.send(b"relight doctor")
        is_alive = True
        try:
            sock.settimeout(_left_s(end - answer_s))
            sock.connect(target)
        except ConnectionRefusedError:
            what = REFUSED
        except TimeoutError:
            what, is_alive = SILENT, False
        except OSError as error:
            what, is_alive = f"{NO_ROUTE}: {error.strerror}", False
        else:
            what = _answer(sock, min(end, time.monotonic() + answer_s))
        try:
            trace.recv(1)
        except OSError as error:
            is_alive = is_alive or isinstance(error, ConnectionRefusedError)
    ours = is_ours(address)
    return EndpointAnswer(address, what, is_alive, ours, find_listener(port) if ours else "")


def _answer(sock: socket.socket, end: float) -> str:
    """Send a hello and identify the program from the response that arrives before the deadline."""
    hello = {"type": "hello", "sender": DOCTOR, "nonce": os.urandom(NONCE_BYTES).hex(),
             "token": False}  # fmt: skip
    heard, is_closed, what = b"", False, ""
    try:
        sock.sendall(wire.GREETING + wire.encode(hello))
        while what not in (COORDINATOR, DOCTOR) and not is_closed and time.monotonic() < end:
            sock.settimeout(_left_s(end))
            more = sock.recv(4096)
            heard += more
            is_closed = not more or len(heard) >= wire.MAX_HELLO
            what = identify_answer(heard, closed=not more)
    except TimeoutError:
        pass
    except OSError:
        is_closed = True
    return what if what in (COORDINATOR, DOCTOR) else identify_answer(heard, closed=is_closed)


def _left_s(end: float) -> float:
    return max(0.001, end - time.monotonic())


def _unresolved(host: str) -> Finding:
    return Finding(
        ERROR,
        f"the name {host} does not resolve here",
        why="it is neither in DNS nor in /etc/hosts, or no name server responds",
        remedy="correct the name, add it to DNS or /etc/hosts, or use an IP address in "
        "--rdzv-endpoint",
    )


def _relight_answers(program: str) -> Finding:
    if program == DOCTOR:
        return Finding(OK, "another `relight doctor` is listening there")
    if program == COORDINATOR:
        return Finding(
            OK,
            "a relight coordinator is listening there",
            why="this node can reach the endpoint",
            remedy="if this node can't join, compare its --rdzv-id, --nnodes, RELIGHT_TOKEN and "
            "tls_ settings with those of the other nodes",
        )
    return Finding(
        WARNING,
        "relight is listening there, but it requires TLS or a token, or has a different version",
        why="this node can reach the endpoint",
        remedy="use the same version of relight, RELIGHT_TOKEN and tls_ settings on all nodes",
    )


def _failure(what: str, seen: EndpointReport) -> Finding:
    """Return the finding about the addresses that gave this answer."""
    same, port = [answer for answer in seen.answers if answer.what == what], seen.port
    addresses = ", ".join(answer.address for answer in same)
    if what == REFUSED and all(answer.ours for answer in same):
        return Finding(OK, f"the endpoint is on this machine ({addresses}), and its port is free")
    if what == REFUSED:
        return Finding(
            ERROR,
            "the connection is refused",
            why=f"{addresses} is up, but nothing listens on port {port}, or a firewall rejects the "
            "connection",
            remedy="start relight on that host, and check that host and port are correct",
        )
    if what == SILENT:
        alive = any(answer.alive for answer in same)
        return Finding(
            ERROR,
            "no response",
            why=f"{addresses} is up: a firewall drops packets to port {port}"
            if alive
            else f"nothing was received from {addresses}: a firewall drops the packets, the "
            "machine is down, or the address is wrong",
            remedy=f"open TCP port {port} on that host; if it does not respond to ping either, "
            "check the machine and the routes",
        )
    if what.startswith(NO_ROUTE):
        return Finding(
            ERROR,
            f"there is {what}",
            why=f"{addresses} can't be reached from this machine",
            remedy="check the interfaces and routes (ip addr; ip route get ADDRESS)",
        )
    holder = next((answer.holder for answer in same if answer.holder), "")
    end = f"stop {holder}, or use" if holder else "stop that program, or use"
    return Finding(
        ERROR,
        f"port {port} is in use by a program that is not a relight coordinator",
        why=f"{what}; {holder}" if holder else what,
        remedy=f"{end} another port in --rdzv-endpoint on all nodes",
    )
