"""Finds the job that the user refers to, by handle, id, pid or name."""

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from relight.base import env
from relight.base.errors import UsageError
from relight.base.text import did_you_mean, format_names
from relight.job import records
from relight.job.app import AppState
from relight.job.handles import PART, RUN, SESSION, Handle, parse_part, to_handle
from relight.runner import submitted
from relight.runner.submitted import Record
from relight.schedulers.api import Scheduler

if TYPE_CHECKING:
    from relight.processes.running_jobs import JobDirectory

_ID_FORM = r"[^/\s]*[^/\s:]"


class Purpose(Enum):
    """What a job is looked up for. This decides which of several matching jobs is meant."""

    READ = "read"
    """The only unfinished job or, if all jobs are over, the newest."""
    CANCEL = "cancel"
    """The only unfinished job."""
    DELETE = "delete"
    """The only job."""


class _Match(NamedTuple):
    """A job that may be meant. The `group` field is equal for agents of one job."""

    handle: Handle
    state: AppState
    since: float
    group: object


def find_job(
    find: Callable[[str], Scheduler], text: str, purpose: Purpose = Purpose.READ
) -> Handle:
    """Return the job that a handle, an id or a name refers to, or a part of the job if `/ROLE` or
    `/ROLE/REPLICA,…` is appended.

    Without `://`, the text must begin with the id of a job submitted from this machine, the id of a
    `relight run` job on this machine or its agent's pid, or else the name of such a job. The states
    of jobs matter only if several jobs match, or to cancel a job by its name.

    Args:
        find: looks up a scheduler by name.
        text: the user's input.
        purpose: what the job is looked up for.

    Raises:
        UsageError: if the text is not a valid handle, no job or several jobs match, or all matching
            jobs have already ended.
    """
    if "://" in text:
        return to_handle(text)
    jobs = records.every()
    with_slash = [job["name"] for job in jobs if _is_in(job["name"], text)]
    form = re.escape(max(with_slash, key=len)) if with_slash else _ID_FORM
    match = re.fullmatch(f"({form}){PART}", text)
    if match is None:
        return to_handle(text)
    word, role, replicas = match.groups()
    found = parse_part(_find(find, jobs, word, purpose), role, replicas)
    first = text.partition("/")[0]
    others = [job["handle"] for job in jobs if first in (job["id"], job["app_id"], job["name"])]
    if with_slash and others:
        raise UsageError(
            f"{text} is ambiguous, because there is also a job {first}",
            hint=f"choose one: {format_names([str(found), *others])}",
        )
    return found


def _is_in(name: str, text: str) -> bool:
    """Return whether a name with a slash is the text, without the part of the job."""
    return "/" in name and f"{text}/".startswith(f"{name}/")


def _find(
    find: Callable[[str], Scheduler], jobs: list[Record], word: str, purpose: Purpose
) -> Handle:
    directory = run_jobs()
    run_parts = {} if directory is None else {job: job.rpartition("-") for job in directory.ids()}
    with_id = [job for job in jobs if word in (job["id"], job["app_id"])]
    run_with_id = [job for job, (_, _, pid) in run_parts.items() if word in (job, pid)]
    handles = [to_handle(job["handle"]) for job in with_id]
    handles += [Handle(RUN, SESSION, job) for job in run_with_id]
    if len(handles) == 1:
        return handles[0]
    matches = _matches(find, with_id) + _run_matches(find, directory, run_with_id)
    if not matches:
        # A name with spaces can be given as it stands in the id.
        names = [(job, (job["name"], job["id"].rpartition("-")[0])) for job in jobs]
        matches = _matches(find, [job for job, both in names if word in both])
        named = [job for job, (name, _, _) in run_parts.items() if name == word]
        matches += _run_matches(find, directory, named)
    if matches:
        return _choose(word, matches, purpose)
    known = [str(job[key]) for job in jobs for key in ("id", "name")]
    known += [text for job, (name, _, _) in run_parts.items() for text in (job, name)]
    hint = did_you_mean(word, dict.fromkeys(known), "see relight list")
    raise UsageError(f"no such job: {word}", hint=hint)


def _choose(word: str, matches: Sequence[_Match], purpose: Purpose) -> Handle:
    """Choose one of the jobs that match. A job whose state is unknown counts as unfinished if no
    other job is.
    """
    newest = sorted(matches, key=lambda each: each.since, reverse=True)
    alive = [each for each in newest if not each.state.is_over]
    known = [each for each in alive if each.state is not AppState.UNKNOWN]
    left = newest if purpose is Purpose.DELETE else known or alive
    if purpose is Purpose.READ:
        left = list({each.group: each for each in reversed(left)}.values()) or newest[:1]
    if not left:
        last = newest[0]
        raise UsageError(
            f"{word} has already ended: {last.handle} is {last.state.name}", hint="see relight list"
        )
    if len(left) == 1:
        return left[0].handle
    what = "jobs" if purpose is Purpose.DELETE else "unfinished jobs"
    names = format_names([str(each.handle) for each in sorted(left, key=lambda each: -each.since)])
    raise UsageError(f"{word} refers to {len(left)} {what}", hint=f"choose one: {names}")


def _matches(find: Callable[[str], Scheduler], found: list[Record]) -> list[_Match]:
    matches = []
    for record, state in zip(found, submitted.states_now(find, found), strict=True):
        handle = to_handle(record["handle"])
        matches.append(_Match(handle, state, records.instant(record["submitted"]), handle))
    return matches


def run_jobs() -> "JobDirectory | None":
    """Return the `relight run` jobs of this user on this machine, or None if the user doesn't have
    a directory for them.
    """
    from relight.processes.running_jobs import JobDirectory  # not on Windows

    try:
        return JobDirectory(env.read().variables)
    except OSError:
        return None


def _run_matches(
    find: Callable[[str], Scheduler], directory: "JobDirectory | None", found: Sequence[str]
) -> list[_Match]:
    """Return the jobs among `found` whose agents haven't been killed."""
    if directory is None or not found:
        return []
    matches = []
    for job, status in find(RUN).status(found).items():
        handle, snapshot = Handle(RUN, SESSION, job), directory.find(job)
        group: object = handle
        if snapshot is not None and snapshot.nodes > 1:
            group = snapshot.name, snapshot.run_id
        since = 0.0 if snapshot is None else snapshot.started
        matches.append(_Match(handle, status.state, since, group))
    return matches
