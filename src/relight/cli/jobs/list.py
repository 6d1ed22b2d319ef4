"""`relight list`: lists jobs, newest first."""

from relight.base.errors import EXIT_OK
from relight.base.fields import printable
from relight.base.text import pluralize
from relight.base.values import one_of
from relight.cli.jobs.common import (
    JSON,
    Page,
    print_json,
    read_arguments,
    say,
    shown_time,
    switch,
    table,
)
from relight.flags.spec import Flag
from relight.job.app import AppState
from relight.runner.runner import Runner

_ENDED = 10
"""The maximum number of finished jobs in the list."""
PAGE = Page(
    "list [flags]",
    (
        "Lists the jobs submitted from this machine, newest first: running jobs and the last",
        f"{_ENDED} finished ones.",
        "REASON is the cause of a failure, in one line.",
    ),
    (
        Flag("scheduler", str, "", "NAME", "only jobs on this scheduler, including those "
             "submitted from other machines", short="s"),
        Flag("state", one_of(*AppState.__members__), "", "STATE", "only jobs in this state"),
        switch("all", "list all finished jobs (implied by --state and --json)", short="a"),
        JSON,
    ),
    (
        "relight list",
        "relight list -s slurm --state RUNNING",
        "relight list --json | jq -r '.[0].handle'",
    ),
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Run `relight list`.

    Raises:
        RelightError: if the scheduler is unknown or does not respond.
    """
    parsed = read_arguments(argv, PAGE, 0, 0, "flags")
    wanted = parsed.values["state"]
    with Runner() as runner:
        scheduler = parsed.values["scheduler"] or runner.settings.section("cli:list").get(
            "scheduler", ""
        )
        jobs = [
            job for job in runner.list(scheduler) if not wanted or job.state is AppState[wanted]
        ]
    if parsed.values["json"]:
        print_json([{**job._asdict(), "state": job.state.name} for job in jobs])
        return EXIT_OK
    if not jobs:
        say("no jobs")
        return EXIT_OK
    hidden = 0
    if not (parsed.values["all"] or wanted):
        over = [job for job in jobs if job.state.is_over]
        hidden = len(over[_ENDED:])
        jobs = [job for job in jobs if not job.state.is_over or job in over[:_ENDED]]
    rows = [
        (job.handle, job.name, job.state.name, shown_time(job.submitted), printable(job.message))
        for job in jobs
    ]
    says_why = any(job.message for job in jobs)
    heads = ("JOB", "NAME", "STATE", "SUBMITTED", "REASON" if says_why else "")
    print("\n".join(table(rows, heads)))
    if hidden:
        say(f"{pluralize(hidden, 'older job')} hidden; relight list --all shows them")
    return EXIT_OK
