"""`python -m relight` is the console script `relight`."""

from relight.cli.main import entry

entry()
