"""Raises the limit of open files for an agent, and restores it for its workers."""

_soft: int | None = None


def raise_limit() -> None:
    """Let this process open as many files as the system allows (setrlimit(2), RLIMIT_NOFILE)."""
    global _soft
    import resource

    from relight.host import system

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = system.most_open_files(hard)
    if soft != wanted and _soft is None:
        _soft = soft
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def restore_limit() -> None:
    """Give a worker the limit that it would have had without `raise_limit`."""
    if _soft is not None:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # it may have been lowered since
        unlimited = hard == resource.RLIM_INFINITY
        soft = _soft if unlimited else min(_soft, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
