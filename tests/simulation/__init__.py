"""A group in a simulated world: `python -m tests.simulation --help`."""
