"""`relight completion jobs`: prints the names and ids of jobs, for the shells to complete.

A shell calls it while its user waits, so it never asks agents or schedulers, never reads records,
imports little, and ignores errors. bash expands the output, so names with characters that ids
lack are left out.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

from relight.base.errors import EXIT_OK
from relight.job import records
from relight.job.lookup import names_of_run
from relight.processes.running_jobs import is_id


def main(_: list[str]) -> int:
    """Print the jobs of `relight run` on this machine and those submitted from here."""
    found = set[str]()
    for jobs in (names_of_run, _submitted):
        with suppress(Exception):
            found |= set(filter(is_id, jobs()))
    print("\n".join(sorted(found)))
    return EXIT_OK


def _submitted() -> Iterator[str]:
    with os.scandir(records.root()) as entries:
        for entry in entries:
            if os.path.lexists(os.path.join(entry.path, records.FILE)):
                yield entry.name
