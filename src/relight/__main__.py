"""`python -m relight`, and the console script `relight`."""

import gc
from typing import NoReturn

from relight.base.exit_signals import exit_on_signals


def entry() -> NoReturn:
    """Run this process's command line."""
    exit_on_signals()
    # Imported objects are rarely freed, so repeated garbage collection would waste 2 ms.
    gc.set_threshold(50_000)
    from relight.cli import main

    main.entry()


if __name__ == "__main__":
    entry()
