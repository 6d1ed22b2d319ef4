"""`relight top`: monitors jobs, either live on a terminal or once as a table."""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

from relight.base import env
from relight.base.errors import EXIT_OK, RelightError, UsageError
from relight.base.values import one_of, parse_interval
from relight.cli.jobs import common
from relight.cli.jobs.common import Page, read_arguments, switch
from relight.flags.spec import Flag
from relight.inspect import top_rows
from relight.inspect.gpus import Gpus, gpu_use
from relight.inspect.top_rows import JobLook, SampleHistory
from relight.job import handles
from relight.job.app import AppState
from relight.job.status import AppStatus
from relight.runner.agent_reports import with_reports
from relight.runner.runner import Runner

PAGE = Page(
    "top [flags] [JOB]",
    (
        "Watches the ranks of a job, or of all your unfinished jobs in relight list: state, step,",
        "steps per second, CPU, memory, last line. JOB is as for relight status. In a pipe or",
        "with TERM=dumb it prints one table, as with --once.",
        "Keys: s stacks, l logs and c cancel act on the job or rank under the cursor; o and r",
        "change and reverse the order, / filters, q quits.",
    ),
    (
        Flag("scheduler", str, "", "NAME", "all your jobs on this scheduler, including those "
             "submitted from other machines", short="s"),
        Flag("sort", one_of(*top_rows.ORDERS), "rank", "COLUMN", ", ".join(top_rows.ORDERS)),
        Flag("filter", str, "", "WORDS", "only rows that contain all of these words"),
        Flag("interval", parse_interval, 2.0, "SECONDS", "refresh interval"),
        switch("once", "print one table and exit"),
    ),
    (
        "relight top",
        "relight top train",
        "relight top -s slurm",
        "relight top --once --sort=rate train | head",
    ),
    "exit code: 0, or 2 if the job does not exist",
)  # fmt: skip
_MAX_ENDED = 20
"""The maximum number of ended jobs that are shown. Only jobs that ended while `top` was running
count.
"""
_BETWEEN_S = 1.0
"""The interval between two samples. Printing a single table takes two samples, because rates are
computed from their difference.
"""
_LIMIT_S = 5.0
"""The maximum time until the second sample. The agents of a submitted job save one every 2 s."""


def main(argv: list[str]) -> int:
    """Run `relight top`.

    Raises:
        RelightError: if the job does not exist, its scheduler does not respond, or a package
            required for the live view is missing.
    """
    parsed = read_arguments(argv, PAGE, 0, 1, "one job")
    values = parsed.values
    if parsed.command and values["scheduler"]:
        raise UsageError("-s can't be combined with a job", hint=f"relight {PAGE.usage}")
    with Runner() as runner:
        jobs_of = WatchedJobs(
            runner, parsed.command[0] if parsed.command else "", values["scheduler"]
        )
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if values["once"] or not terminal or env.read().get("TERM", "dumb") == "dumb":
            return _print_once(jobs_of.look, values["sort"], values["filter"])
        if parsed.command:
            jobs_of.look()  # report a missing job before the view opens
        view = _view().TopView(jobs_of.look, values["sort"], values["filter"], values["interval"])
        view.run()
    return view.return_code or EXIT_OK


def _print_once(look: Callable[[], list[JobLook]], order: str, words: str) -> int:
    looks = SampleHistory()
    found = look()
    looks.rows(found)
    first, end = _seen_at(found), time.monotonic() + _LIMIT_S
    while any(_seen_at(found).get(key) == at for key, at in first.items()):
        time.sleep(_BETWEEN_S)
        found = look()
        if time.monotonic() >= end:
            break
    here = Gpus().look()
    rows = looks.rows(found, partial(gpu_use, here))
    if not found:
        common.say("no jobs")
        return EXIT_OK
    rows = top_rows.ordered(top_rows.matching(rows, words), order)
    print("\n".join(line for job in found for line in top_rows.headline(job)))
    if gpus := top_rows.gpus_line(here):
        print(gpus)
    heads, lines = top_rows.table(rows)
    if lines:
        print()
        print("\n".join(common.table(lines, heads)))
    return EXIT_OK


def _seen_at(jobs: Sequence[JobLook]) -> dict[tuple[str, str, int], float]:
    """Return when the usage of each running replica was sampled."""
    return {
        (job.handle, each.role, each.replica): each.use.seen_at
        for job in jobs
        for each in job.status.replicas
        if each.use is not None and not each.state.is_over
    }


def _view() -> ModuleType:
    try:
        from relight.cli.inspect import top_view
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("textual", "rich"):
            raise
        raise UsageError(
            "the live view of relight top requires the textual package",
            hint="pip install 'textual>=8', in relight's environment, or use relight top --once",
        ) from None
    return top_view


class WatchedJobs:
    """The jobs that `top` is monitoring.

    Args:
        runner: queries the schedulers.
        job: the only job to monitor. If empty, all jobs that have not ended are monitored.
        scheduler: the scheduler whose jobs are monitored. If empty, the jobs that `relight list`
            shows are monitored.

    Raises:
        RelightError: if the job does not exist.
    """

    def __init__(self, runner: Runner, job: str, scheduler: str) -> None:
        self._runner = runner
        self._only = runner.find(job) if job else None
        if self._only is not None and self._only.role:
            raise UsageError(f"{job} is only a part of a job", hint=f"relight top {self._only}")
        self._scheduler = scheduler
        self._seen: dict[str, JobLook] = {}
        self._names: dict[str, str] = {}

    def look(self) -> list[JobLook]:
        """Return the state of the jobs, including those that have ended since the first sample.

        Raises:
            RelightError: if the job does not exist, or the scheduler does not respond.
        """
        found = self._all() if self._only is None else self._one(self._only)
        before, self._seen = (
            self._seen,
            {each: JobLook(each, found[each], self._names.get(each, "")) for each in found},
        )
        ended = [top_rows.gone(before[each]) for each in before if each not in found]
        self._seen |= {each.handle: each for each in ended[-_MAX_ENDED:]}
        return list(self._seen.values())

    def _one(self, handle: handles.Handle) -> dict[str, AppStatus]:
        try:
            return {str(handle): with_reports(handle, self._runner.status(handle))}
        except UsageError:
            if not self._seen:
                raise
            return {}

    def _all(self) -> dict[str, AppStatus]:
        listed = self._runner.list(self._scheduler)
        self._names = {job.handle: job.name for job in listed}
        seen = [each.handle for each in self._seen.values() if not each.status.state.is_over]
        running = [job.handle for job in listed if not job.state.is_over]
        every = dict.fromkeys([*running, *seen])
        return self._statuses([handles.to_handle(handle) for handle in every])

    def _statuses(self, wanted: Sequence[handles.Handle]) -> dict[str, AppStatus]:
        """Return the jobs' statuses by handle, with a single query per scheduler."""
        found = dict[str, AppStatus]()
        for name in dict.fromkeys(handle.scheduler for handle in wanted):
            ids = {each.app_id: each for each in wanted if each.scheduler == name}
            try:
                statuses = self._runner.scheduler(name).status(list(ids))
            except RelightError as error:
                if self._scheduler:
                    raise
                statuses = dict.fromkeys(ids, AppStatus(AppState.UNKNOWN, error.message))
            found |= {
                str(ids[app_id]): with_reports(ids[app_id], status)
                for app_id, status in statuses.items()
            }
        return found
