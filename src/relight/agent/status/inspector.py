"""Makes a running job visible to relight's commands and to other programs. `JobInspector` is
created once the job has been running for a second, or when the job ends if there is something to
show.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from relight.agent.agent_config import AgentConfig
from relight.agent.status.job_socket import JobSocket
from relight.agent.status.numbers import Numbers
from relight.agent.status.view import ServedJob, View
from relight.base.text import format_duration
from relight.base.values import EVENT_HANDLERS
from relight.core.group.messages import NodeAnswered, Question
from relight.core.status.cold_cause import ColdCause
from relight.core.status.goodput import Account, Ledger, format_account, is_worth_telling
from relight.events.event_types import LoggedEvent, StoreReached
from relight.host import job_origin
from relight.host.loop import Loop
from relight.output.journal import Journal

if TYPE_CHECKING:
    from relight.agent.event_process import EventProcess
    from relight.agent.group import LocalLink
    from relight.agent.link import RemoteLink
    from relight.agent.status.page_process import PageProcess
    from relight.agent.status.status_file import StatusFile

_TOLD_S = 3.0
"""If a cold restart takes the workers longer than this, the agent reports that to the user and
suggests a remedy.
"""


class JobInspector:
    """Makes one agent's state visible to relight's commands and to other programs.

    Args:
        loop: the agent's loop.
        job: the configuration of the agent.
        journal: the agent's events, and its messages to the user.
        began: when the agent started, in seconds since 1970.
        look: returns the agent's view of the job.
        link: the link to the coordinator.
    """

    def __init__(
        self,
        loop: Loop,
        job: AgentConfig,
        journal: Journal,
        began: float,
        look: Callable[[], View],
        link: "LocalLink | RemoteLink",
    ) -> None:
        self._loop, self._job, self._journal, self._look = loop, job, journal, look
        self._link = link
        self._socket: JobSocket | None = None
        self._numbers: Numbers | None = None
        self._file: StatusFile | None = None
        self._page: PageProcess | None = None
        self._events: EventProcess | None = None
        spec, log = job.spec, journal.events
        self._ledger = Ledger(log.began, knows_checkpoints=bool(spec.checkpoints))
        self._cold = ColdCause()
        for recorded in log.after(0):
            self._ledger.step(recorded.event, recorded.t, recorded.time)
            self._cold.step(recorded.event)
        journal.listeners.append(self._on_event)
        name = spec.event_log_handler
        if name not in EVENT_HANDLERS:
            loop.run_guarded(lambda: self._open_events(name), f"--event-log-handler={name}")
        is_part = "RELIGHT_JOB_ID" in job.command.env.variables  # and it belongs to a known job
        if not is_part or spec.status is not None:
            loop.run_guarded(lambda: self._open_socket(began), "showing the job")
        if is_part and job.run_directory:
            loop.run_guarded(lambda: self._open_file(began), "saving the job's status")

    def close(self, exit_code: int, reason: str) -> None:
        """Publish how the job ended."""
        what = "showing the job's end"
        if self._numbers is not None:
            self._loop.run_guarded(self._close_numbers, what)
        if (shown := self._socket) is not None:
            self._loop.run_guarded(lambda: shown.close(exit_code, reason), what)
        if (file := self._file) is not None:
            self._loop.run_guarded(lambda: file.close(exit_code, reason), what)
        self._loop.run_guarded(self._report_account, what)
        if self._events is not None:
            self._loop.run_guarded(self._events.close, what)
        if self._page is not None:
            self._loop.run_guarded(self._page.close, what)

    def received(self, message: Question | NodeAnswered) -> None:
        """Process a message that belongs to one node's query to all nodes."""
        if self._socket is not None:
            self._socket.received(message)

    def _view(self) -> View:
        return self._look()._replace(account=self._account())

    def _account(self) -> Account:
        workers = self._look().workers
        span = workers.span() if workers is not None else None
        return self._ledger.account(self._loop.now(), span[0] if span is not None else None)

    def _on_event(self, recorded: LoggedEvent) -> None:
        event = recorded.event
        self._ledger.step(event, recorded.t, recorded.time)
        self._cold.step(event)
        if isinstance(event, StoreReached) and event.workers >= event.world_size:
            self._report_cold_restart()

    def _report_account(self) -> None:
        """If the job was restarted, print how its time was spent. Only one node prints this, for
        all nodes.
        """
        account, workers = self._account(), self._look().workers
        is_first = workers is not None and workers.formed.place.group_rank == 0
        if account.generations > 1 and is_first and is_worth_telling(account):
            self._journal.say("\n  ".join(format_account(account)))

    def _report_cold_restart(self) -> None:
        """Report how long a restart took if workers may have had to import their modules again.
        Also report how long a cold start took if it could have been a warm one.
        """
        cost, spec = self._ledger.cold_restart(), self._job.spec
        start_s = self._ledger.cold_start_s() if self._cold.is_surprise else None
        cause = self._cold.text()
        if start_s is not None and start_s >= _TOLD_S:
            self._journal.say(
                f"the workers took {format_duration(start_s)} to reach init_process_group: {cause}"
            )
        if (
            self._job.worker_program is not None
            and cause
            and cost is not None
            and cost[1] >= _TOLD_S
        ):
            took, until_met = (format_duration(seconds) for seconds in cost)
            self._journal.say(
                f"the restart took {took}, {until_met} of it spent importing before "
                f"init_process_group: {cause}"
            )
        is_off = self._job.worker_program is None
        can_preload = is_off and not (spec.no_python or spec.run_path or spec.numa_binding)
        if cost is not None and can_preload and cost[1] >= _TOLD_S:
            took, until_met = (format_duration(seconds) for seconds in cost)
            self._journal.say(
                f"the restart took {took}, {until_met} of it between worker start and "
                "init_process_group; --preload=auto saves the imports"
            )

    def _close_numbers(self) -> None:
        assert self._numbers is not None
        missing = self._numbers.close()
        if missing and self._has_rank_0():
            self._journal.say(f"--watch-metric: no line printed by the workers contained {missing}")

    def _open_socket(self, began: float) -> None:
        numbers = self._open_numbers(began)
        try:
            self._socket = JobSocket(self._loop, self._job, began, self._view, self._link, numbers)
            self._numbers = numbers
        except OSError as error:
            numbers.close()
            if self._journal.verbose or self._job.spec.status is not None:
                self._journal.say(
                    f"this job won't show up in relight status: {error.strerror or error}"
                )
            return
        if why := self._socket.why_elsewhere:
            self._journal.say(f"{why}; the socket for this job is in {self._socket.directory}")
        if (where := self._job.spec.status) is not None:
            from relight.agent.status.page_process import PageProcess

            env = self._job.command.env
            self._page = PageProcess(self._loop, env, self._socket.job.id, where, self._has_rank_0)

    def _open_file(self, began: float) -> None:
        from relight.agent.status.status_file import StatusFile

        if self._numbers is None:
            self._numbers = self._open_numbers(began)
        job = ServedJob(self._loop, self._job, began, self._view, self._numbers)
        self._file = StatusFile(job)

    def _open_numbers(self, began: float) -> Numbers:
        patterns = self._job.spec.watch_metric
        return Numbers(self._loop, began, lambda: self._look().workers, patterns)

    def _has_rank_0(self) -> bool:
        workers = self._look().workers
        return workers is not None and workers.formed.place.group_rank == 0

    def _open_events(self, name: str) -> None:
        from relight.agent.event_process import EventProcess

        try:
            origin = job_origin.from_environment(self._job.command.env.variables)._asdict()
            self._events = EventProcess(self._loop, name, self._journal, origin)
        except OSError as error:
            self._journal.say(
                f"--event-log-handler={name}: can't start its process: {error.strerror}"
            )
