"""`relight events`: prints a job's event log."""

import json
import os
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from typing import Any

from relight.base import fields
from relight.base.errors import EXIT_OK, MachineError, UsageError
from relight.base.fields import Malformed
from relight.base.text import did_you_mean, pluralize
from relight.base.values import parse_count
from relight.cli.jobs.common import HANDLE, JSON, Page, read_arguments, say, switch
from relight.cli.jobs.logs import parse_time
from relight.core.group.group_replay import replay
from relight.events import event_lines, event_types
from relight.events.event_lines import Line, Selection
from relight.events.event_types import SCHEMA, Formed
from relight.flags.spec import Flag
from relight.job import handles
from relight.job.handles import Handle
from relight.runner import event_log
from relight.runner.runner import Runner

_EXIT_DIFFERS = 1

PAGE = Page(
    "events [flags] JOB|FILE",
    (
        "Prints the history of a job, one event per line: generations, worker starts and exits,",
        "restarts and their reasons. --json prints the lines of the event log.",
        "JOB is a handle, an id or a name; for relight run on this machine also the pid of its",
        "agent. FILE is events.jsonl or its run directory.",
        "--schema documents the events and their fields.",
    ),
    (
        Flag("name", str, "", "NAME,…", "only these events, such as WorkerExited"),
        switch("all", "also print internal events: StateChanged, and those from --record-group"),
        Flag("since", parse_time, None, "T", "only events since then: 10m, or a time"),
        Flag("rank", parse_count, None, "N", "only events for this worker"),
        Flag("stimulus", str, "", "ID", "only what the input with this id caused, on all nodes, "
             "including internal events"),
        switch("follow", "keep printing new events until the job ends", short="f"),
        switch("replay",
               "replay the recorded group steps (relight run --record-group) and compare"),
        switch("schema", "print a description of the events and their fields"),
        JSON,
    ),
    (
        f"relight events -f {HANDLE}",
        "relight events train --name Restarting,WorkerExited",
        "relight events --json train | jq -r .event",
        "relight events --replay logs/job_ab12",
    ),
    f"exit code: {_EXIT_DIFFERS} with --replay, if the effects differ from the recorded ones",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Run `relight events`.

    Raises:
        RelightError: if the job or its event log does not exist.
    """
    parsed = read_arguments(argv, PAGE, 0, 1, "one job or file")
    values = parsed.values
    if values["schema"]:
        print((files("relight.events") / "events.md").read_text(), end="")
        return EXIT_OK
    if not parsed.command:
        raise UsageError("relight events needs one job or file", hint=f"relight {PAGE.usage}")
    filters = ("name", "all", "since", "rank", "stimulus", "follow", "json")
    chosen = [f"--{name}" for name in filters if values[name]]
    if values["replay"] and chosen:
        raise UsageError(f"--replay replays the whole log and can't be combined with {chosen[0]}")
    names = _names(values["name"])
    target = parsed.command[0]
    job = None if _is_file(target) else _find_job(target)
    found = _read(job or target, follow=values["follow"])
    if values["replay"]:
        return _replay(line for _, line in found)
    since = values["since"].timestamp() if values["since"] else None
    selections: dict[str, Selection] = {}
    stimulus = values["stimulus"]
    shows_all = names or stimulus or values["all"] or values["json"]
    hidden = frozenset() if shows_all else event_lines.INTERNAL
    nodes = None if job is None or job.scheduler == handles.RUN else _Nodes()
    if not values["follow"]:
        lines = sorted(found, key=lambda each: each[1].time)
        if nodes is not None:
            nodes.look_ahead(lines)
        found = iter(lines)
    has_lines, is_empty = False, True
    for log, line in found:
        has_lines = True
        if nodes is not None:
            nodes.take(log, line)
        selection = selections.setdefault(log, Selection(names, since, values["rank"], stimulus))
        if selection.wants(line) and line.name not in hidden:
            is_empty = False
            print(_shown(log, line, nodes, as_json=values["json"]), flush=values["follow"])
    if is_empty and job is not None and not chosen:
        why = " because this node has not run any workers" if job.scheduler == handles.RUN else ""
        say(f"{job} hasn't recorded any events yet{why}")
    elif not has_lines:
        say("no events")
    return EXIT_OK


class _Nodes:
    """Maps each log of a submitted job to a node, identified by its host and its number in the
    latest generation read so far. Until the log contains the host and the number, only the run
    directory identifies the node.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int]] = {}

    def look_ahead(self, lines: list[tuple[str, Line]]) -> None:
        """Find the first generation for each node."""
        for log, line in reversed(lines):
            self.take(log, line)

    def take(self, log: str, line: Line) -> None:
        """Process a line from a log."""
        if line.name == Formed.__name__ and isinstance(
            event := event_lines.parse_event(line), Formed
        ):
            self._found[log] = event.host, event.group_rank

    def keys(self, log: str) -> dict[str, Any]:
        """Return the log, and its node's host and number, as keys for a JSON line."""
        host, node = self._found.get(log, ("", -1))
        return {"log": _directory(log), "host": host, "node": node}

    def name(self, log: str) -> str:
        """Return the host and number of a node as display text."""
        host, node = self._found.get(log, ("", -1))
        if node < 0:
            return _directory(log)
        return f"{fields.printable(host, lines=False)} node {node}".strip()


def _directory(log: str) -> str:
    return os.path.basename(os.path.dirname(log))


def _shown(log: str, line: Line, nodes: _Nodes | None, *, as_json: bool) -> str:
    if as_json:
        return line.text if nodes is None else json.dumps(nodes.keys(log) | json.loads(line.text))
    node = "" if nodes is None else f"{nodes.name(log)}  "
    return f"{_time(line.time)} {node}{event_lines.shown(line)}"


def _is_file(target: str) -> bool:
    return target.endswith(".jsonl") or (os.path.sep in target and os.path.exists(target))


def _find_job(target: str) -> Handle | None:
    """Return a job, or None if only a directory has that name."""
    try:
        with Runner() as runner:
            return runner.find(target)
    except UsageError:
        if os.path.isdir(target):
            return None
        raise


def _names(text: str) -> frozenset[str]:
    names = frozenset(name for name in text.split(",") if name)
    known = [kind.__name__ for kind in event_types.Event.__args__ if kind is not event_types.Tick]
    for name in sorted(names - set(known)):
        every = f"the events are {', '.join(known)}"
        raise UsageError(f"--name={name}: no such event", hint=did_you_mean(name, known, every))
    return names


def _read(source: Handle | str, *, follow: bool) -> Iterator[tuple[str, Line]]:
    """Yield the lines from a job's event logs or from a file, each with the name of the log that it
    is from.
    """
    if isinstance(source, str):
        event_log.check_file(source)
        yield from _lines(event_log.file_lines(source, follow=follow))
        return
    with Runner() as runner:
        yield from _lines(event_log.lines(runner, source, follow=follow))


def _lines(texts: Iterator[tuple[str, str]]) -> Iterator[tuple[str, Line]]:
    newer = False
    for log, text in texts:
        line = event_lines.read(text)
        if line is None:
            continue
        if line.version > SCHEMA and not newer:
            newer = True
            say(
                f"the log has version {line.version}, but this version of relight supports {SCHEMA}"
            )
        yield log, line


def _replay(lines: Iterator[Line]) -> int:
    steps = different = 0
    try:
        for step in replay(lines):
            steps += 1
            print(f"{step.number:4} {step.at:+10.3f} s  {step.input}")
            print(f"     {step.state.name}: {step.explanation}")
            for effect in step.effects:
                print(f"       -> {effect}")
            if step.recorded is not None:
                different += 1
                print("       the recorded effects differ:")
                for effect in step.recorded or ("nothing",):
                    print(f"       != {effect}")
    except Malformed as error:
        raise MachineError(
            f"can't replay the log: {error}", hint="use the version of relight that wrote it"
        ) from None
    if not steps:
        raise UsageError(
            "the log has no group steps; it is from a node that never coordinated, or the job was "
            "not recorded",
            hint="relight run --record-group --log-dir=DIR …",
        )
    if different:
        print(
            f"{pluralize(different, 'step')} of {steps} had effects that differ from the "
            "recorded ones"
        )
        return _EXIT_DIFFERS
    print(f"{pluralize(steps, 'step')}, all with the recorded effects")
    return EXIT_OK


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).strftime("%H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return "?"
