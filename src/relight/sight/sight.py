"""What a job shows of itself. It is made once the job has run for a second, or at its end if there
is something left to show.
"""

from collections.abc import Callable

from relight.core.messages import NodeAnswered, Question
from relight.host.journal import Journal
from relight.host.loop import Loop
from relight.node_job import NodeJob
from relight.sight.job_socket import JobSocket, View
from relight.values import EVENT_HANDLERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relight.group import LocalLink
    from relight.host.event_process import EventProcess
    from relight.link import RemoteLink
    from relight.sight.page_process import PageProcess


class Sight:
    """What one agent shows.

    Args:
        loop: the agent's loop.
        job: what it runs.
        journal: its events, and its messages to the user.
        began: when it began, in seconds since 1970.
        look: returns the agent's view of the job.
        link: to the coordinator.
    """

    def __init__(
        self,
        loop: Loop,
        job: NodeJob,
        journal: Journal,
        began: float,
        look: Callable[[], View],
        link: "LocalLink | RemoteLink",
    ) -> None:
        self._loop, self._journal = loop, journal
        self._socket: JobSocket | None = None
        self._events: EventProcess | None = None
        self._page: PageProcess | None = None
        name = job.command.spec.event_log_handler
        if name not in EVENT_HANDLERS:
            loop.attempt(lambda: self._open_events(name), f"--event-log-handler={name}")
        is_part = "RELIGHT_JOB_ID" in job.command.env.variables  # of a job that commands know
        if not is_part or job.command.spec.status is not None:  # a status page asks this node too
            loop.attempt(lambda: self._open_socket(job, began, look, link), "showing the job")

    def close(self, exit_code: int, reason: str) -> None:
        """Show the end of the job."""
        what = "showing the job's end"
        if (shown := self._socket) is not None:
            self._loop.attempt(lambda: shown.close(exit_code, reason), what)
        for process in (self._page, self._events):
            if process is not None:
                self._loop.attempt(process.close, what)

    def received(self, message: Question | NodeAnswered) -> None:
        """Answer a question of another node, or take the answer of one."""
        if self._socket is not None:
            self._socket.received(message)

    def _open_socket(
        self,
        job: NodeJob,
        began: float,
        look: Callable[[], View],
        link: "LocalLink | RemoteLink",
    ) -> None:
        try:
            shown = self._socket = JobSocket(self._loop, job, began, look, link)
        except OSError as error:
            if self._journal.verbose or job.command.spec.status is not None:
                self._journal.say(f"relight status can't show this job: {error}")
            return
        if (where := job.command.spec.status) is not None:
            from relight.sight.page_process import PageProcess

            self._page = PageProcess(
                self._loop, job.command.env, shown.id, where, lambda: _has_rank_0(look())
            )

    def _open_events(self, name: str) -> None:
        from relight.host.event_process import EventProcess

        try:
            self._events = EventProcess(self._loop, name, self._journal.events, self._journal.say)
        except OSError as error:
            self._journal.say(f"--event-log-handler={name}: no process for it: {error.strerror}")


def _has_rank_0(view: View) -> bool:
    """Return whether workers run on this node, and rank 0 is among them."""
    return view.workers is not None and view.workers.formed.place.group_rank == 0
