"""Addresses and ports of this machine, as binding tells: names lie, in both directions."""

import socket

_BACKLOG = 4096


def is_loopback(address: str) -> bool:
    """Return whether a numeric address leads to this machine from everywhere."""
    return address.startswith("127.") or address == "::1"


def is_ours(address: str) -> bool:
    """Return whether a numeric address is one of this machine's."""
    try:
        with socket.socket(_family(address), socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True


def any_address() -> str:
    """Return the address that stands for all of this machine's."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return "0.0.0.0"  # a machine without IPv6
    return "::"


def listen(address: str, port: int) -> socket.socket | None:
    """Return a socket that listens at a numeric address, or, if that is empty, at all of this
    machine's; None if the port is taken.
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


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
