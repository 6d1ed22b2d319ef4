"""Shared parts of the job commands: parsing flags, printing, and following a job to its end."""

import json
import queue
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, NamedTuple

from relight.base.env import Environment
from relight.base.errors import EXIT_OK, MachineError, RelightError, UsageError
from relight.base.fields import plain
from relight.core.status.charts import numbers_in
from relight.core.status.snapshot import RankUse
from relight.flags.arguments import ParsedFlags, parse
from relight.flags.spec import FLAG_BY_NAME, Flag
from relight.flags.usage import flag_lines
from relight.host.descriptors import raise_limit
from relight.job.handles import Handle, shown_replica
from relight.runner.runner import Runner
from relight.schedulers.api import AppStatus


def switch(name: str, help: str, *, short: str = "") -> Flag:
    """Return a flag without a value."""
    return Flag(name, None, False, "", help, short)


HELP = FLAG_BY_NAME["help"]
JSON = switch("json", "print JSON")
HANDLE = "SCHEDULER://SESSION/JOB"
EXIT_TIMEOUT = 124
"""The exit code that timeout(1) uses."""
_JOIN_S = 10.0
_MAX_LINES = 10_000
"""The maximum number of lines waiting to be printed."""
_GATHER_S = 0.05
"""Lines that arrive within this time are printed together."""


class Page(NamedTuple):
    """A command's help: its usage line, description, own flags, examples and exit codes."""

    usage: str
    about: tuple[str, ...]
    own_flags: tuple[Flag, ...]
    examples: tuple[str, ...]
    footer: str = ""

    @property
    def flags(self) -> tuple[Flag, ...]:
        """All flags that the command accepts."""
        return (*self.own_flags, HELP)

    def text(self) -> str:
        """Return the help text."""
        lines = [f"usage: relight {self.usage}", "", *self.about, "", *flag_lines(self.flags)]
        lines += ["", "examples:", *(f"  {example}" for example in self.examples)]
        if self.footer:
            lines += ["", self.footer]
        return "\n".join(lines)


def read_arguments(argv: list[str], page: Page, least: int, most: int, what: str) -> ParsedFlags:
    """Parse a command's flags and arguments, in any order. No variable sets a flag. If help was
    requested, print it and exit.

    Raises:
        UsageError: if a flag is invalid, or the number of arguments is wrong.
    """
    words, given, rest = list[str](), set[str](), list(argv)
    values = {flag.field: flag.default for flag in page.flags}
    while True:
        parsed = parse(rest, Environment({}), page.flags)
        given |= parsed.given
        values |= {f.field: parsed.values[f.field] for f in page.flags if f.name in parsed.given}
        if not parsed.command:
            break
        word, *rest = parsed.command
        words.append(word)
    if values["help"]:
        print(page.text(), flush=True)
        raise SystemExit(EXIT_OK)
    name = page.usage.split()[0]
    if len(words) < least:
        raise UsageError(f"relight {name} needs {what}", hint=f"relight {page.usage}")
    if len(words) > most:
        extra = f"takes {what} only" if most else "takes flags only"
        raise UsageError(f"relight {name} {extra}, not {words[most]}", hint=f"relight {page.usage}")
    return ParsedFlags(values, given, tuple(words))


def say(text: str) -> None:
    """Print a message for the user to stderr. Results go to stdout instead."""
    print(f"relight: {text}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print JSON on one line, or indented if stdout is a terminal."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def table(rows: Iterable[Sequence[str]], heads: Sequence[str]) -> list[str]:
    """Return the lines of a table whose columns are as wide as their contents."""
    return aligned([heads, *rows])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with columns as wide as their contents."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def shown_time(text: str) -> str:
    """Convert an ISO time to this machine's time zone, with a result such as `2026-01-31
    12:00:00+0000`. Any other text is returned unchanged.
    """
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%F %T%z")
    except (ValueError, OverflowError):
        return text


def print_status(handle: Handle, found: AppStatus) -> None:
    """Print a job's status as JSON."""
    print_json(status_object(handle, found))


def status_object(handle: Handle, found: AppStatus) -> dict[str, Any]:
    """Return a status as JSON for `relight status --json` and `submit --json`. Keys may be added
    but are never removed. They include all keys used by TorchX (nightly 2026.10.26).
    """
    roles: dict[str, list[dict[str, Any]]] = {}
    for each in found.replicas:
        roles.setdefault(each.role, []).append(
            {
                "id": each.replica,
                "role": each.role,
                "state": each.state.name,
                "hostname": each.host,
                "topology": each.topology,
                "exitcode": each.exitcode,
                "error": each.error,
                "last_line": each.last_line,
                "use": None if each.use is None else _use_object(each.use),
            }
        )
    return {
        "handle": str(handle),
        "app_id": handle.app_id,
        "scheduler": handle.scheduler,
        "state": found.state.name,
        "exitcode": found.exitcode if found.state.is_over else None,
        "num_restarts": found.restarts,
        "msg": found.message,
        "structured_error_msg": found.error
        or next((each.error for each in found.replicas if each.error), None),
        "roles": [{"role": role, "replicas": replicas} for role, replicas in roles.items()],
        "ui_url": found.url,
        "url": found.url,
        "goodput": plain(found.account) if found.account is not None else None,
        "preload": plain(found.preload) if found.preload is not None else None,
        "progress": plain(found.progress) if found.progress is not None else None,
        "charts": plain(found.charts),
    }


def _use_object(use: RankUse) -> dict[str, Any]:
    """Return a rank's resource usage, with the numbers that the rank reported keyed by name. NaN
    and infinity become None, and so does the usage of a rank that ended before it was sampled.
    """
    values = numbers_in(use.reported).items()
    finite = {name: each if isfinite(each) else None for name, each in values}
    usage = {"cpu_s": use.cpu_s, "memory": use.memory} if use.memory else {}
    unknown = {"cpu_s": None, "memory": None}
    return {**use._asdict(), **unknown, **usage, "reported": finite}


class Follower:
    """Prints the lines of all replicas of a job as they arrive, each prefixed with its replica.

    There is a thread per replica that reads the replica's lines, and one more thread that prints
    all lines available so far.

    Args:
        runner: the runner of the job.
        handle: the handle of the job or of one of its parts.
        where: the file to print to.
        query: keyword arguments for `Runner.log_lines`.
    """

    def __init__(self, runner: Runner, handle: Handle, where: Any, **query: Any) -> None:
        self._runner, self._handle, self._where = runner, handle, where
        self._filters = query
        self._errors: list[RelightError] = []
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_LINES)
        """The lines to print, plus a None for each reader that has finished."""
        self._steps = 0
        self._is_writing = False
        raise_limit()  # each reader holds open files
        replicas = runner.replicas(handle)
        for replica in replicas:
            threading.Thread(target=self._follow, args=replica, daemon=True).start()
        self._printer = threading.Thread(target=self._print, args=[len(replicas)], daemon=True)
        self._printer.start()

    def join(self, limit_s: float | None = _JOIN_S) -> None:
        """Wait for the last lines, until no new line has arrived for `limit_s` seconds. Time spent
        waiting for a slow consumer of the printed lines does not count.

        Raises:
            RelightError: if the lines of a replica can't be read.
        """
        while self._printer.is_alive():
            steps = self._steps
            self._printer.join(limit_s)
            if self._printer.is_alive() and self._steps == steps and not self._is_writing:
                raise MachineError(
                    "the job ended, but its output is still being written; "
                    f"see `relight logs {self._handle}`"
                )
        if self._errors:
            raise self._errors[0]

    def _follow(self, role: str, replica: int) -> None:
        name = shown_replica(self._handle.scheduler, role, replica)
        try:
            for line in self._runner.log_lines(
                self._handle, role, replica, follow=True, **self._filters
            ):
                self._lines.put(f"{name} {line}\n")
        except RelightError as error:
            self._errors.append(error)
        except OSError as error:
            self._errors.append(MachineError(f"can't read the logs of {name}: {error}"))
        finally:
            self._lines.put(None)

    def _print(self, reading: int) -> None:
        while reading:
            lines = [self._lines.get()]
            time.sleep(_GATHER_S)
            lines += [self._lines.get_nowait() for _ in range(self._lines.qsize())]
            reading -= lines.count(None)
            self._is_writing = True
            try:
                self._where.write("".join(filter(None, lines)))
                self._where.flush()
            except (OSError, ValueError):  # the reader has closed the pipe
                return
            self._is_writing = False
            self._steps += 1


def report(handle: Handle, found: AppStatus) -> None:
    """Print a job's outcome."""
    text = f"{handle} {found.state.name}"
    say(f"{text}: {found.message}" if found.message else text)
    if found.state.name == "FAILED" and not found.message:
        for each in found.replicas:
            if each.exitcode or each.error:
                why = each.error or f"exit code {each.exitcode}"
                say(f"{shown_replica(handle.scheduler, each.role, each.replica)}: {why}")
