"""What a job shows of itself. It is made once the job has run for a second, or at its end if there
is something left to show.
"""

from collections.abc import Callable

from relight.host.journal import Journal
from relight.host.loop import Loop
from relight.node_job import NodeJob
from relight.sight.job_socket import JobSocket, View
from relight.values import EVENT_HANDLERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relight.host.event_process import EventProcess


class Sight:
    """What one agent shows.

    Args:
        loop: the agent's loop.
        job: what it runs.
        journal: its events, and its messages to the user.
        began: when it began, in seconds since 1970.
        look: returns the agent's view of the job.
    """

    def __init__(
        self, loop: Loop, job: NodeJob, journal: Journal, began: float, look: Callable[[], View]
    ) -> None:
        self._loop, self._journal = loop, journal
        self._socket: JobSocket | None = None
        self._events: EventProcess | None = None
        name = job.command.spec.event_log_handler
        if name not in EVENT_HANDLERS:
            loop.attempt(lambda: self._open_events(name), f"--event-log-handler={name}")
        if "RELIGHT_JOB_ID" not in job.command.env.variables:  # else it is part of a job
            loop.attempt(lambda: self._open_socket(job, began, look), "showing the job")

    def close(self, exit_code: int, reason: str) -> None:
        """Show the end of the job."""
        what = "showing the job's end"
        if (shown := self._socket) is not None:
            self._loop.attempt(lambda: shown.close(exit_code, reason), what)
        if self._events is not None:
            self._loop.attempt(self._events.close, what)

    def _open_socket(self, job: NodeJob, began: float, look: Callable[[], View]) -> None:
        try:
            self._socket = JobSocket(self._loop, job, began, look)
        except OSError as error:
            if self._journal.verbose:
                self._journal.say(f"relight status can't show this job: {error}")

    def _open_events(self, name: str) -> None:
        from relight.host.event_process import EventProcess

        try:
            self._events = EventProcess(self._loop, name, self._journal.events, self._journal.say)
        except OSError as error:
            self._journal.say(f"--event-log-handler={name}: no process for it: {error.strerror}")
