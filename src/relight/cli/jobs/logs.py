"""`relight logs`: prints a job's output."""

import json
import re
import sys
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from relight.base.errors import EXIT_OK, EXIT_SIGNAL_BASE, RelightError, UsageError
from relight.base.values import one_of, parse_count
from relight.cli.jobs.common import HANDLE, JSON, Follower, Page, read_arguments, say, switch
from relight.flags.spec import Flag
from relight.job import handles
from relight.job.app import AppState
from relight.runner.event_log import ALL
from relight.runner.runner import Runner, compiled

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_time(text: str) -> datetime:
    """Parse a time given either as an age, such as `10m`, or as an ISO 8601 date and time.

    Raises:
        ValueError: if the text is neither.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match:
        ago = float(match[1]) * _UNITS[match[2]]
        try:
            return datetime.now().astimezone() - timedelta(seconds=ago)
        except OverflowError:
            raise ValueError("this is before the year 1") from None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ValueError("expected 30s, 10m, 2h, 1d or a time such as 2026-01-31T12:00") from None


def parse_attempt(text: str) -> str:
    """Parse an attempt, either `all` or a number of restarts. The number is returned without
    leading zeros.

    Raises:
        ValueError: if the text is neither.
    """
    if text == ALL or (text.isascii() and text.isdecimal()):
        return text.lstrip("0") or "0"
    raise ValueError(
        "expected all, or a number: 0 is the first attempt, 1 the one after the first restart"
    )


PAGE = Page(
    "logs [flags] JOB[/ROLE[/REPLICA,…]]",
    (
        "Prints the output of a job's replicas. If there are several, each line begins with the",
        "name of its replica. JOB is a handle, an id or a name.",
    ),
    (
        switch("follow", "keep printing until the job ends", short="f"),
        switch("tail", "the same as --follow; with a number, the same as --lines", short="t"),
        Flag("lines", parse_count, None, "N", "only the last N lines of each replica", short="n"),
        Flag("role", str, "", "NAME", "only this role"),
        Flag("replica", str, "", "N,…", "only these replicas"),
        Flag("rank", parse_count, None, "N", "only this rank (its number in the whole job)"),
        Flag("attempt", parse_attempt, "", "N|all",
             "only output from after N restarts of the worker; all: from all attempts"),
        Flag("grep", str, "", "TEXT", "only lines that contain this text"),
        Flag("regex", str, "", "R", "only lines that match this regular expression"),
        Flag("since", parse_time, None, "T", "only lines since then: 10m, or a time"),
        Flag("until", parse_time, None, "T", "only lines until then"),
        Flag("streams", one_of("stdout", "stderr", "combined"), "combined", "NAME",
             "stdout, stderr or combined"),
        JSON,
    ),
    (
        f"relight logs -f {HANDLE}",
        f"relight logs {HANDLE}/trainer/0,1 --regex 'loss|Error'",
        "relight logs train-x3bk9qwz --streams stderr --since 10m",
        "relight logs train-x3bk9qwz --tail 3",
        "relight logs -f train --rank 5 --grep loss",
        "relight logs train --rank 5 --attempt 0",
    ),
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Run `relight logs`.

    Raises:
        RelightError: if the job or replica does not exist.
    """
    parsed = read_arguments(_with_lines(argv), PAGE, 1, 1, "one job")
    values = parsed.values
    if values["grep"] and values["regex"]:
        raise UsageError("--grep and --regex are mutually exclusive", hint="use --regex for both")
    compiled(values["regex"])
    query = {key: values[key] for key in ("since", "until", "rank", "attempt")}
    query |= {"stream": values["streams"], "last": values["lines"]}
    query["regex"] = values["regex"] or re.escape(values["grep"])
    with Runner() as runner:
        handle = runner.find(parsed.command[0])
        if values["role"]:
            handle = handle._replace(role=values["role"])
        if values["replica"]:
            handle = handle._replace(replicas=_numbers(values["replica"]))
        if values["rank"] is not None and handle.replicas:
            raise UsageError(
                "--rank selects a worker in the whole job and can't be combined with a replica"
            )
        _check_times(runner, handle, query)
        replicas = runner.replicas(handle) if query["rank"] is None else [(handle.role, 0)]
        silent = set(replicas)
        name = partial(handles.shown_replica, handle.scheduler)
        follow = values["follow"] or values["tail"]
        if follow:
            _explain_missing_output(runner, handle, silent, (AppState.SUBMITTED, AppState.PENDING))
        if follow and len(replicas) > 1 and not values["json"]:
            Follower(runner, handle, sys.stdout, **query).join(None)
            return EXIT_OK
        for role, replica in replicas:
            for line in runner.log_lines(handle, role, replica, follow=follow, **query):
                silent.discard((role, replica))
                if values["json"]:
                    who = {"role": role, "replica": replica}
                    who = who if query["rank"] is None else {"rank": query["rank"]}
                    shown = json.dumps({**who, "line": line})
                else:
                    shown = line if len(replicas) == 1 else f"{name(role, replica)} {line}"
                print(shown, flush=follow)
        _explain_missing_output(runner, handle, silent, tuple(AppState))
    return EXIT_OK


def _explain_missing_output(
    runner: Runner,
    handle: handles.Handle,
    silent: set[tuple[str, int]],
    states: tuple[AppState, ...],
) -> None:
    """Explain why replicas are waiting or have ended, in cases where their output can't show the
    reason. This is the case for replicas that have not written anything, and for replicas that were
    killed from outside, for example because their node was lost.

    Args:
        runner: the runner of the job.
        handle: the handle of the job or of one of its parts.
        silent: the replicas that have not printed anything.
        states: only replicas in these states get an explanation.
    """
    try:
        known = {(each.role, each.replica): each for each in runner.status(handle).replicas}
        replicas = runner.replicas(handle)
    except RelightError:
        return  # the user only requested the lines
    for place in replicas:
        each = known.get(place)
        if each is None or not each.error or each.state not in states:
            continue
        killed = each.exitcode is None or each.exitcode > EXIT_SIGNAL_BASE
        if place in silent or (each.state is AppState.FAILED and killed):
            who = handles.shown_replica(handle.scheduler, each.role, each.replica)
            say(f"note: {who} {each.state.name}: {each.error}")


def _with_lines(argv: list[str]) -> list[str]:
    """Replace `--tail 3`, the syntax of tail(1) and Docker, with `--lines=3`."""
    words = []
    left = list(argv)
    while left:
        word = left.pop(0)
        name, equals, number = word.partition("=")
        if name in ("-t", "--tail") and (number if equals else "".join(left[:1])).isdecimal():
            word = f"--lines={number if equals else left.pop(0)}"
        words.append(word)
    return words


def _check_times(runner: Runner, handle: handles.Handle, query: dict[str, Any]) -> None:
    scheduler = runner.scheduler(handle.scheduler)
    timed = [f"--{name}" for name in ("since", "until") if query[name] is not None]
    if timed and not scheduler.capabilities.since:
        raise UsageError(
            f"{timed[0]}: {handle.scheduler} does not record the times of lines",
            hint="use --regex if the lines contain times",
        )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--replica={text}: expected numbers, such as 0,1") from None
