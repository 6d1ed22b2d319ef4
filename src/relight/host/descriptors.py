"""Raises the open-file limit for an agent, and restores it for its workers. Reads from sockets."""

import socket

_soft: int | None = None


def raise_limit() -> None:
    """Allow this process to open as many files as the system permits (setrlimit(2),
    RLIMIT_NOFILE).
    """
    global _soft
    import resource

    from relight.host import system

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = system.max_open_files(hard)
    if soft != wanted and _soft is None:
        _soft = soft
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def restore_limit() -> None:
    """Restore a worker's limit to its value without `raise_limit`."""
    if _soft is not None:
        import resource

        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, worker_limits(limits))


def worker_limits(limits: tuple[int, int]) -> tuple[int, int]:
    """Return the workers' soft and hard limits, given those of this process."""
    _, hard = limits  # the hard limit may have been lowered since
    if _soft is None:
        return limits
    return (_soft if hard < 0 else min(_soft, hard)), hard  # RLIM_INFINITY is -1


def receive(sock: socket.socket, size: int, flags: int = 0) -> bytes | None:
    """Return the data that has arrived at a socket, or None if there is none yet. The result is
    empty if the connection has ended.
    """
    try:
        return sock.recv(size, flags)
    except BlockingIOError:
        return None
    except OSError:
        return b""
