"""Resolves host names in the background, without blocking an event loop, and formats addresses."""

import socket
from collections.abc import Callable
from typing import Any

from relight.host import background
from relight.host.loop import Loop


def resolve(
    loop: Loop, host: str, port: int, done: Callable[[list[tuple[str, int]], str], None]
) -> None:
    """Resolve a host name without blocking, then call `done` with its addresses or an error
    message.

    The lookup has no timeout of its own, but the caller may stop waiting for it.
    """

    def look_up() -> list[tuple[str, int]]:
        found = socket.getaddrinfo(_quick(host), port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys((str(entry[4][0]), port) for entry in found))

    def finish(found: list[tuple[str, int]] | Exception) -> None:
        match found:
            case list():
                done(found, "")
            case OSError():
                done([], f"{host} does not resolve: {found.strerror or found}")
            case ValueError() | OverflowError():
                done([], f"{host!r} is not a host name")
            case _:
                done([], f"can't look up {host}: {found}")

    if is_numeric(host):
        addresses = look_up()
        loop.call_after(0, lambda: finish(addresses))
    else:
        background.call(loop, look_up, finish)


def outward_address() -> str:
    """Return the source address that this machine uses for packets to other networks, or an empty
    string.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("198.51.100.1", 9))  # RFC 5737: unused; UDP connect sends nothing
        except OSError:
            return ""
        return own_address(sock)


def is_numeric(host: str) -> bool:
    """Return whether an address is numeric and can skip the DNS lookup."""
    try:
        sock_address(host, 0)
    except ValueError:
        return False
    return True


def sock_address(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """Return the family of a numeric address, and the address as a tuple for a socket of that
    family.

    Raises:
        ValueError: if the address is not numeric.
    """
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    try:
        found = socket.getaddrinfo(_quick(host), port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, ValueError, OverflowError):
        raise ValueError(f"{format_address(host, port)} is not a numeric address") from None
    return found[0][0], found[0][4]


def peer_address(sock: socket.socket) -> str:
    """Return the remote address as text, or an empty string if the socket is not connected yet."""
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return ""
    return format_address(host, port)


def own_address(sock: socket.socket) -> str:
    """Return the local address as text, or an empty string if the socket is not connected yet."""
    try:
        return without_prefix(sock.getsockname()[0])
    except OSError:
        return ""


def format_address(host: str, port: int) -> str:
    """Return a human-readable address, such as `10.0.0.3:29400` or `[::1]:29400`."""
    host = without_prefix(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def without_prefix(host: str) -> str:
    """Return an address without the `::ffff:` prefix that IPv4 addresses have on a dual-stack
    socket.
    """
    return host.removeprefix("::ffff:") if "." in host else host


def _quick(host: str) -> str | bytes:
    """Return a host name for getaddrinfo, as bytes if possible, because a str would load the IDNA
    codec.
    """
    return host.encode() if host.isascii() else host
