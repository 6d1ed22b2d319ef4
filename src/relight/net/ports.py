"""Checks this machine's addresses and ports by binding to them, because name lookups are
unreliable.
"""

import errno
import os
import socket
from contextlib import suppress

from relight.base.errors import MachineError, UsageError

_BACKLOG = 4096
PORT_RANGE = "RELIGHT_PORT_RANGE"
"""The environment variable that lists the ports for the workers' store."""
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"  # applies to IPv6 as well (ip-sysctl.rst)


class PortTakenError(UsageError):
    """The port is in use by another program."""


def is_loopback(address: str) -> bool:
    """Return whether a numeric address is a loopback address."""
    return address.startswith("127.") or address == "::1"


def is_ours(address: str) -> bool:
    """Return whether a numeric address belongs to this machine."""
    try:
        with socket.socket(_family(address), socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # no port is free, so the address itself is valid
    return True


def free_ports() -> str:
    """Describe the kernel's port range for port 0 and for outgoing connections."""
    try:
        with open(_RANGE) as file:
            first, last = file.read().split()
    except (OSError, ValueError):
        return "the ephemeral ports"  # not Linux
    return f"{first} to {last} (net.ipv4.ip_local_port_range)"


def no_free_port(what: str) -> MachineError:
    """Return the error for a bind to port 0 that failed with EADDRINUSE, which means that the
    kernel's port range is exhausted (bind(2)).
    """
    return MachineError(
        f"no free port for {what}: all of {free_ports()} are in use",
        hint="`ss -tan` shows what uses them; sysctl -w "
        "net.ipv4.ip_local_port_range='FIRST LAST' sets the range",
    )


def any_address() -> str:
    """Return the wildcard address (all of this machine's addresses)."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return "0.0.0.0"  # a machine without IPv6
    return "::"


def listen(address: str, port: int) -> socket.socket | None:
    """Return a socket that listens on a numeric address, or on all of this machine's addresses if
    `address` is empty. Return None if the port is taken, or if port 0 is given and no port is free.
    """
    address = address or any_address()
    sock = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((address, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        return None
    return sock


def why_unresolved(host: str) -> str:
    """Return the reason why a host name doesn't resolve, or an empty string if it does."""
    try:
        socket.getaddrinfo(os.fsencode(host.strip("[]")), 0, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return str(error.strerror)
    return ""


def bind(host: str, port: int, *, listen: bool = False, among: range = range(0)) -> socket.socket:
    """Return a socket that is bound for the workers' store.

    Args:
        host: the address or host name.
        port: the port, or 0 for any free port.
        listen: whether the socket listens.
        among: the candidate ports if `port` is 0. The first free port is used. If empty, all ports
            are candidates.

    Raises:
        UsageError: if the port is taken, or the address does not belong to this machine.
        MachineError: if no socket can be opened, or no port is free.
    """
    for number in among if port == 0 else ():
        with suppress(PortTakenError):
            return _bind(host, number, listen=listen, alone=len(among) > 1)
    if among and port == 0:
        raise MachineError(
            f"no free port in {PORT_RANGE}={among[0]}-{among[-1]} for the workers' store",
            hint="each agent on a machine needs its own; `ss -tan` shows what uses them",
        )
    return _bind(host, port, listen=listen)


def _bind(host: str, port: int, *, listen: bool, alone: bool = False) -> socket.socket:
    """Bind a single port. With `alone`, fail if closed connections still occupy the port or if
    another non-listening socket is bound to it.
    """
    host = host.strip("[]")
    hint = "--master-addr and --local-addr must be addresses of this machine"
    try:
        # Pass bytes, because a str would import the codec for international names.
        found = socket.getaddrinfo(os.fsencode(host), port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UsageError(
            f"can't resolve {host}, the address of the workers' store: {error.strerror}", hint=hint
        ) from None
    except OSError as error:
        hint = "check `ulimit -n`" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        raise MachineError(f"can't open a socket: {error.strerror}", hint=hint) from None
    try:
        # When a fixed port is used again, a restart must not wait for old connections in TIME_WAIT.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, listen or not alone)
        bound.bind(address)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # if a worker serves it
        if listen:
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited by connections
            bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE and not port:
            raise no_free_port("the workers' store") from None
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(
                f"port {host}:{port} for the workers' store is in use by another program",
                hint="leave out --master-port to use a free port, or choose a different one",
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"{host} is not an address of this machine", hint=hint) from None
        raise MachineError(f"can't bind {host}:{port}: {error.strerror}") from None
    bound.setblocking(False)
    return bound


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
