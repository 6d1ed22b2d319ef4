"""Names and addresses: the only place where a name is looked up."""

import _thread
import os
import socket
from collections.abc import Callable
from typing import Any

from relight.host.loop import Loop


def resolve(
    loop: Loop, host: str, port: int, done: Callable[[list[tuple[str, int]], str], None]
) -> None:
    """Look a name up without blocking, then call `done` with its addresses or an error in words.

    There is no time limit: it is the caller who may stop waiting.
    """
    answer: tuple[list[tuple[str, int]], str] = [], f"{host} can't be looked up"
    readable, writable = os.pipe2(os.O_CLOEXEC)

    def look_up() -> None:
        nonlocal answer
        try:
            found = socket.getaddrinfo(_quick(host), port, type=socket.SOCK_STREAM)
            answer = list(dict.fromkeys((str(e[4][0]), port) for e in found)), ""
        except OSError as error:
            answer = [], f"{host} does not resolve: {error.strerror or error}"
        except (ValueError, OverflowError):
            answer = [], f"{host!r} is no host name"
        finally:
            os.close(writable)

    def finish() -> None:
        loop.forget(readable)
        os.close(readable)
        done(*answer)

    loop.on_readable(readable, finish)
    if is_numeric(host):
        look_up()
        return
    try:
        _thread.start_new_thread(look_up, ())
    except RuntimeError:  # no thread to be had: `answer` says so
        os.close(writable)


def is_numeric(host: str) -> bool:
    """Say whether this is an address, which needs no looking up."""
    try:
        sock_address(host, 0)
    except ValueError:
        return False
    return True


def sock_address(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """Return the family of a numeric address, and what a socket of it connects to.

    Raises:
        ValueError: it is not numeric.
    """
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    try:
        found = socket.getaddrinfo(_quick(host), port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, ValueError, OverflowError):
        raise ValueError(f"{text_of(host, port)} is no numeric address") from None
    return found[0][0], found[0][4]


def peer_of(sock: socket.socket) -> str:
    """Return the address of the other end for people, or nothing if there is none yet."""
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return ""
    return text_of(host, port)


def own_address(sock: socket.socket) -> str:
    """Return the address of this end, or nothing if there is none yet."""
    try:
        return without_prefix(sock.getsockname()[0])
    except OSError:
        return ""


def text_of(host: str, port: int) -> str:
    """Return an address as people write it: `10.0.0.3:29400`, `[::1]:29400`."""
    host = without_prefix(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def without_prefix(host: str) -> str:
    """Return an address without the coat that a socket for both families puts around it."""
    return host.removeprefix("::ffff:") if "." in host else host


def _quick(host: str) -> str | bytes:
    """Return a name for getaddrinfo: a str would load the codec of international domain names."""
    return host.encode() if host.isascii() else host
