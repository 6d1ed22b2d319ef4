"""`python -m relight`, and the console script `relight`."""

from relight.cli.leaving import leave_at_once
from relight.typed import NoReturn


def entry() -> NoReturn:
    """Run this process's command line."""
    leave_at_once()
    from relight.cli import main

    main.entry()


if __name__ == "__main__":
    entry()
