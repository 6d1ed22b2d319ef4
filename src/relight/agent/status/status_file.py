"""Saves the snapshots of a submitted job's agent in a file. Commands on other machines can't reach
the agent's socket, but often share the directory of the job's logs.
"""

import os
import threading

from relight.agent.status import answers
from relight.agent.status.view import ServedJob
from relight.core.status.snapshot import STATUS_FILE
from relight.host import background, files
from relight.host.loop import Alarm

_EVERY_S = 2.0
_FILES_PER_S = 50
"""Maximum number of files that all agents in a job write per second, on average."""
_LIMIT_S = 2.0
"""How long an agent that exits waits for its last snapshot to be saved."""


class StatusFile:
    """Replaces `status.json` in the agent's run directory, at first every two seconds. A thread
    writes the file, because the directory may be on a file server that doesn't respond.

    Args:
        job: the job.
    """

    def __init__(self, job: ServedJob) -> None:
        self._job = job
        self._path = os.path.join(job.config.run_directory, STATUS_FILE)
        self._lock = threading.Lock()
        self._is_closed = False
        self._next = Alarm(job.loop, self._save)
        self._save()

    def close(self) -> None:
        """Save the job's last snapshot, unless the disk is full or its server doesn't respond."""
        self._is_closed = True
        self._next.set(None)
        text = answers.to_text(answers.snapshot(self._job))

        def write() -> None:
            with self._lock:  # after the snapshot that is being saved
                files.replace(self._path, text)

        results: list[object] = []
        background.call(self._job.loop, write, results.append)
        self._job.loop.run_until(lambda: bool(results), _LIMIT_S)

    def _save(self) -> None:
        self._job.loop.run_guarded(self._start_writing, "saving the job's status")

    def _start_writing(self) -> None:
        snapshot = answers.snapshot(self._job)
        text, every_s = answers.to_text(snapshot), max(_EVERY_S, snapshot.nodes / _FILES_PER_S)

        def write() -> None:
            with self._lock:
                if not self._is_closed:
                    files.replace(self._path, text)

        def done(_: object) -> None:
            if not self._is_closed:
                self._next.set_after(every_s)

        background.call(self._job.loop, write, done)
