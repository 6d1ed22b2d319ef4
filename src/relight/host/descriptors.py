"""How many files this process may have open: more for a coordinator, no more for its workers."""

_before: tuple[int, int] | None = None


def raise_limit() -> None:
    """Let this process open as many files as the system allows (setrlimit(2), RLIMIT_NOFILE)."""
    global _before
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and _before is None:
        _before = soft, hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_limit() -> None:
    """Give a worker the limit that it would have had."""
    if _before is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, _before)
