"""`relight completion jobs`: prints job names and ids for shell completion.

The shell runs this command while the user is waiting. Therefore the command never queries agents or
schedulers, never reads records, imports little, and ignores errors. Because bash expands the
output, names that contain characters not allowed in ids are omitted.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from relight.base import env
from relight.base.errors import EXIT_OK
from relight.job import records
from relight.processes.running_jobs import JobDirectory, is_id


def main(_: list[str]) -> int:
    """Print the jobs started with `relight run` on this machine and the jobs submitted from it."""
    found = set[str]()
    for jobs in (_run_jobs, _submitted):
        with suppress(Exception):
            for job in jobs():
                found |= set(filter(is_id, (job, job.rpartition("-")[0])))
    print("\n".join(sorted(found)))
    return EXIT_OK


def _run_jobs() -> Iterable[str]:
    return JobDirectory(env.read().variables).ids()


def _submitted() -> Iterator[str]:
    with os.scandir(records.root()) as entries:
        for entry in entries:
            if os.path.lexists(os.path.join(entry.path, records.FILE)):
                yield entry.name
