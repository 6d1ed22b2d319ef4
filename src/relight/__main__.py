"""`python -m relight`, and the console script `relight`."""

from relight.cli.signals import exit_on_signals
from relight.typed import NoReturn


def entry() -> NoReturn:
    """Run this process's command line."""
    exit_on_signals()
    from relight.cli import main

    main.entry()


if __name__ == "__main__":
    entry()
