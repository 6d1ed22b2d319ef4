"""`relight completion jobs`: prints job names and ids for shell completion.

The shell runs this command while the user is waiting. Therefore the command never queries agents or
schedulers, never reads records, imports little, and ignores errors. Because bash expands the
output, names that contain characters not allowed in ids are omitted.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

from relight.base.errors import EXIT_OK
from relight.job import records
from relight.job.lookup import run_job_names
from relight.processes.running_jobs import is_id


def main(_: list[str]) -> int:
    """Print the jobs started with `relight run` on this machine and the jobs submitted from it."""
    found = set[str]()
    for jobs in (run_job_names, _submitted):
        with suppress(Exception):
            found |= set(filter(is_id, jobs()))
    print("\n".join(sorted(found)))
    return EXIT_OK


def _submitted() -> Iterator[str]:
    with os.scandir(records.root()) as entries:
        for entry in entries:
            if os.path.lexists(os.path.join(entry.path, records.FILE)):
                yield entry.name
