"""Makes a running job visible to relight's commands and to other programs. `JobInspector` is
created once the job has been running for a second, or when the job ends if there is something to
show.
"""

from typing import TYPE_CHECKING

from relight.agent.status.job_socket import JobSocket
from relight.agent.status.numbers import Numbers
from relight.agent.status.view import ServedJob
from relight.base.text import format_duration
from relight.base.values import EVENT_HANDLERS
from relight.core.status.cold_cause import ColdCause
from relight.core.status.goodput import format_account, is_worth_telling
from relight.events.event_types import LoggedEvent, StoreReached
from relight.host import job_origin

if TYPE_CHECKING:
    from relight.agent.event_process import EventProcess
    from relight.agent.status.page_process import PageProcess
    from relight.agent.status.status_file import StatusFile

_TOLD_S = 3.0
"""If a cold restart takes the workers longer than this, the agent reports that to the user and
suggests a remedy.
"""


class JobInspector:
    """Makes one agent's state visible to relight's commands and to other programs.

    Args:
        served: the agent's job.
    """

    def __init__(self, served: ServedJob) -> None:
        self._served = served
        self._loop, self._job, self._journal = served.loop, served.config, served.journal
        self._ledger = served.ledger
        self._socket: JobSocket | None = None
        self._file: StatusFile | None = None
        self._page: PageProcess | None = None
        self._events: EventProcess | None = None
        self._cold = ColdCause()
        for recorded in self._journal.events.after(0):
            self._note(recorded)
        self._journal.listeners.append(self._on_event)
        name, env = self._job.spec.event_log_handler, self._job.command.env
        if name not in EVENT_HANDLERS:
            self._loop.run_guarded(lambda: self._open_events(name), f"--event-log-handler={name}")
        is_part = "RELIGHT_JOB_ID" in env.variables  # and it belongs to a known job
        if not is_part or self._job.spec.status is not None:
            self._loop.run_guarded(self._open_socket, "showing the job")
        if is_part and self._job.run_directory:
            self._loop.run_guarded(self._open_file, "saving the job's status")

    def close(self, exit_code: int, reason: str) -> None:
        """Publish how the job ended."""
        what = "showing the job's end"
        self._served.end = exit_code, reason
        self._loop.run_guarded(self._close_numbers, what)
        if self._socket is not None:
            self._loop.run_guarded(self._socket.close, what)
        if self._file is not None:
            self._loop.run_guarded(self._file.close, what)
        self._loop.run_guarded(self._report_account, what)
        if self._events is not None:
            self._loop.run_guarded(self._events.close, what)
        if self._page is not None:
            self._loop.run_guarded(self._page.close, what)

    def _note(self, recorded: LoggedEvent) -> None:
        self._ledger.step(recorded.event, recorded.t, recorded.time)
        self._cold.step(recorded.event)

    def _on_event(self, recorded: LoggedEvent) -> None:
        self._note(recorded)
        event = recorded.event
        if isinstance(event, StoreReached) and event.workers >= event.world_size:
            self._report_cold_restart()

    def _report_account(self) -> None:
        """If the job was restarted, print how its time was spent. Only one node prints this, for
        all nodes.
        """
        account = self._served.account()
        if account.generations > 1 and self._served.has_rank_0 and is_worth_telling(account):
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
        if cost is None or cost[1] < _TOLD_S:
            return
        took, until_met = (format_duration(seconds) for seconds in cost)
        if self._job.worker_program is not None and cause:
            self._journal.say(
                f"the restart took {took}, {until_met} of it spent importing before "
                f"init_process_group: {cause}"
            )
        cannot_preload = spec.no_python or spec.run_path or spec.numa_binding
        if self._job.worker_program is None and not cannot_preload:
            self._journal.say(
                f"the restart took {took}, {until_met} of it between worker start and "
                "init_process_group; --preload=auto saves the imports"
            )

    def _count(self) -> None:
        """Start to collect the workers' numbers."""
        served, patterns = self._served, self._job.spec.watch_metric
        if served.numbers is None:
            served.numbers = Numbers(self._loop, served.node, served.began, patterns)

    def _close_numbers(self) -> None:
        numbers = self._served.numbers
        missing = numbers.close() if numbers is not None else ""
        if missing and self._served.has_rank_0:
            self._journal.say(f"--watch-metric: no line printed by the workers contained {missing}")

    def _open_socket(self) -> None:
        try:
            self._socket = JobSocket(self._served)
        except OSError as error:
            if self._journal.verbose or self._job.spec.status is not None:
                self._journal.say(
                    f"this job won't show up in relight status: {error.strerror or error}"
                )
            return
        self._count()
        if why := self._socket.why_elsewhere:
            self._journal.say(f"{why}; the socket for this job is in {self._socket.directory}")
        if (where := self._job.spec.status) is not None:
            from relight.agent.status.page_process import PageProcess

            self._page = PageProcess(self._served, where)

    def _open_file(self) -> None:
        from relight.agent.status.status_file import StatusFile

        self._count()
        self._file = StatusFile(self._served)

    def _open_events(self, name: str) -> None:
        from relight.agent.event_process import EventProcess

        try:
            origin = job_origin.from_environment(self._job.command.env.variables)._asdict()
            self._events = EventProcess(self._loop, name, self._journal, origin)
        except OSError as error:
            self._journal.say(
                f"--event-log-handler={name}: can't start its process: {error.strerror}"
            )
