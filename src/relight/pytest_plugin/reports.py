"""Merges the ranks' reports into a single test report."""

import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest._code.code import TerminalRepr
from _pytest._io import TerminalWriter

from relight.pytest_plugin.marker import Wanted
from relight.pytest_plugin.rank_reports import RankReports, read

_STRICT = "[XPASS(strict)]"
_PHASES = ("setup", "call", "teardown")
_MAX_LINES = 60
_VERDICT = re.compile("relight: (?:probably |perhaps )?ranks? ")
"""Matches the beginning of the launcher's failure report."""
_BLAMED = re.compile(rf"{_VERDICT.pattern}(\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*):? ")
"""Matches the ranks that are named at the beginning of the launcher's failure report."""
_UNTRUE = ("  it printed nothing to stderr",)
"""Notes from the launcher that don't apply here, because pytest captures the output."""
_ERROR = re.compile(r"^E\s+(\S.*)", re.MULTILINE)
_LOST = re.compile("connection (closed|reset)|remote process exited|broken pipe", re.IGNORECASE)
"""Error messages from gloo and NCCL on ranks that were waiting for a rank that had died."""
_FRAMES = ("/_pytest/", "/pluggy/", "/pytest_plugin/", '"<frozen runpy>"')


class RanksFailedError(Exception):
    """Raised if the test failed on at least one rank. The report contains the details."""


class _Crash(NamedTuple):
    message: str

    def __str__(self) -> str:
        return self.message


class RanksRepr(TerminalRepr):
    """Shows the failures on the ranks, each under a title."""

    def __init__(self, parts: list[tuple[str, Any]]) -> None:
        self.parts = parts
        self.reprcrash = next(filter(None, map(_crash, parts)), None) or _Crash(parts[0][0])
        """Contains the message for pytest's short summary."""

    def toterminal(self, tw: TerminalWriter) -> None:
        """Print the failures."""
        for title, content in self.parts:
            if title:
                tw.sep("-", title)
            if hasattr(content, "toterminal"):
                content.toterminal(tw)
            else:
                tw.line(str(content))


class ReportedTest:
    """The outcome that a test had on its ranks.

    Args:
        ranks: the content of each rank's files.
        wanted: the test's mark.
        exit_code: the launcher's exit code.
        output: the launcher's output, including rank output that pytest did not capture.
    """

    def __init__(
        self, ranks: list[RankReports], wanted: Wanted, exit_code: int, output: str
    ) -> None:
        self._ranks = ranks
        self._wanted = wanted
        self._exit_code = exit_code
        self._output = output
        self._failure: RanksRepr | None = None
        self._is_notified = False

    def replay(self, phase: str) -> None:
        """Raise a phase's outcome, unless the phase passed.

        Raises:
            RanksFailedError: if the test failed on a rank.
            Exception: (pytest's) if the test was skipped, or failed as expected, on the ranks.
        """
        self._failure = self._failed(phase) or self._unexplained(phase)
        if self._failure is not None:
            self._is_notified = True
            title = next((title for title, _ in self._failure.parts if title), "a rank failed")
            raise RanksFailedError(title)
        for each in self._ranks:
            if each.end and not _has_ended(each, phase):
                raise pytest.exit.Exception(each.end)
        reports = [report for _, report in self._in_phase(phase)]
        for report in reports:
            if report.skipped and hasattr(report, "wasxfail"):
                raise pytest.xfail.Exception(str(report.wasxfail))
        if reports and all(report.skipped for report in reports):
            raise pytest.skip.Exception(_reason(reports[0]), _use_item_location=True)

    def warn(self, item: pytest.Item) -> None:
        """Report the warnings from the ranks, without duplicates."""
        seen = set()
        for each in self._ranks:
            for known in each.warnings:
                if (key := tuple(known.values())) not in seen:
                    seen.add(key)
                    place = known["filename"], known["lineno"]
                    message = warnings.WarningMessage(known["message"], _category(known), *place)
                    about = {"when": "runtest", "nodeid": item.nodeid, "location": None}
                    item.ihook.pytest_warning_recorded.call_historic(
                        kwargs={"warning_message": message, **about}
                    )

    def complete(self, report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
        """Add the ranks' captured output, durations and failures to a report."""
        if call.excinfo is not None and isinstance(call.excinfo.value, RanksFailedError):
            report.longrepr = self._failure
        elif report.skipped and not hasattr(report, "wasxfail"):
            reasons = [theirs.longrepr for _, theirs in self._in_phase(report.when or "")]
            report.longrepr = next((x for x in reasons if isinstance(x, tuple)), report.longrepr)
        longest = {phase: self._longest(phase) for phase in _PHASES}
        if report.when == "setup":
            others = longest["call"] + longest["teardown"]
            report.duration = max(longest["setup"], report.duration - others)
        else:
            report.duration = longest[report.when or ""]
        for rank, theirs in self._in_phase(report.when or ""):
            for title, text in theirs.sections:
                report.sections.append((f"{title} (rank {rank})", text))

    def _in_phase(self, phase: str) -> Iterator[tuple[int, pytest.TestReport]]:
        """Yield a phase's reports, each with its rank."""
        for each in self._ranks:
            if phase in each.phases:
                yield each.rank, each.phases[phase][1]

    def _longest(self, phase: str) -> float:
        return max((report.duration for _, report in self._in_phase(phase)), default=0.0)

    def _failed(self, phase: str) -> RanksRepr | None:
        """Return the failures in a phase in chronological order, without duplicates."""
        found: dict[str, tuple[list[int], Any]] = {}
        failed = [
            (time, each.rank, report)
            for each in self._ranks
            for time, report in [each.phases.get(phase, (0.0, None))]
            if report is not None and report.failed and not _is_strict(report)
        ]
        for _, rank, report in sorted(failed, key=lambda each: each[:2]):
            shown = _consequence(report) if found else ""
            text = shown or report.longreprtext
            found.setdefault(text, ([], shown or report.longrepr))[0].append(rank)
        size = self._wanted.world_size
        parts = [(f"{_named(sorted(r))} of {size}", content) for r, content in found.values()]
        return RanksRepr(parts) if parts else self._partly_skipped(phase)

    def _partly_skipped(self, phase: str) -> RanksRepr | None:
        """Return an error if only some of the ranks skipped the test."""
        skips = {
            rank: report
            for rank, report in self._in_phase(phase)
            if report.skipped and not hasattr(report, "wasxfail")
        }
        if not skips or len(skips) == len(list(self._in_phase(phase))):
            return None
        reason = _reason(next(iter(skips.values())))
        return RanksRepr([(f"only {_named(list(skips))} skipped the test: {reason}", "")])

    def _unexplained(self, phase: str) -> RanksRepr | None:
        """Explain why ranks did not finish this phase, if the reports don't."""
        missing = [each for each in self._ranks if not _has_ended(each, phase)]
        if self._is_notified or not missing:
            return None
        if collect := {each.collect: each.rank for each in missing if each.collect}:
            return RanksRepr([(f"rank {r} can't collect it", text) for text, r in collect.items()])
        if self._is_later_phase(phase, {each.rank for each in missing}):
            return None
        if any(each.stacks for each in self._ranks):
            names = _named([each.rank for each in missing])
            parts: list[tuple[str, Any]] = [
                (f"{names} had not finished after {self._wanted.timeout_s:g} s", "")
            ]
            parts += [
                (f"stacks of rank {x.rank}", _trim_stacks(x.stacks)) for x in missing if x.stacks
            ]
            return RanksRepr(parts + [part for each in missing for part in each.printed])
        if any(not report.passed for each in self._ranks for _, report in each.phases.values()):
            return None  # that failure stopped this rank
        if any(each.end for each in self._ranks):
            return None  # `replay` ends the run
        return self._ended(missing)

    def _is_later_phase(self, phase: str, missing: set[int]) -> bool:
        """Return whether the ranks at fault finished this phase but not a later phase. In that
        case, the other ranks were merely further behind when they were stopped.
        """
        later = _PHASES[_PHASES.index(phase) + 1 :]
        blamed = self._blamed()
        return blamed.isdisjoint(missing) and any(
            each.rank in blamed and not _has_ended(each, name)
            for each in self._ranks
            for name in later
        )

    def _blamed(self) -> set[int]:
        """Return the ranks that timed out or, if no rank did, the ranks that the launcher named."""
        if late := {each.rank for each in self._ranks if each.stacks}:
            return late
        found = next(filter(None, map(_BLAMED.match, self._output.splitlines())), None)
        parts = [part.partition("-") for part in found[1].split(", ")] if found else []
        return {rank for low, _, high in parts for rank in range(int(low), int(high or low) + 1)}

    def _ended(self, missing: list[RankReports]) -> RanksRepr:
        """Describe how these ranks exited before the end of the test."""
        lines = [line for line in self._output.splitlines() if not line.startswith(_UNTRUE)]
        titles = [line for line in lines if _VERDICT.match(line)]
        if titles:
            title = titles[0].removeprefix("relight: ")
            lines.remove(titles[0])
        else:
            names = _named([each.rank for each in missing])
            title = f"{names} exited with code {self._exit_code} before the end of the test"
        printed = [part for each in missing for part in each.printed]
        return RanksRepr([(title, "\n".join(lines[-_MAX_LINES:])), *printed])


def collect(folder: Path, wanted: Wanted, exit_code: int, output: str) -> ReportedTest:
    """Read the files of all ranks from a directory."""
    ranks = [read(folder, rank) for rank in range(wanted.world_size)]
    return ReportedTest(ranks, wanted, exit_code, output)


def _has_ended(rank: RankReports, phase: str) -> bool:
    """Return whether a rank finished a phase. A test that was skipped or failed during setup has no
    call phase.
    """
    is_set_up = "setup" not in rank.phases or rank.phases["setup"][1].passed
    return phase in rank.phases or (phase == "call" and not is_set_up)


def _crash(part: tuple[str, Any]) -> Any:
    """Return a rank's failure in the form that pytest's short summary needs."""
    content = part[1]
    line = _ERROR.search(content) if isinstance(content, str) else None
    return _Crash(line[1]) if line else getattr(content, "reprcrash", None)


def _reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped."""
    known = report.longrepr
    return str(known[2] if isinstance(known, tuple) else known).removeprefix("Skipped: ")


def _category(known: dict[str, Any]) -> type[Warning]:
    """Return a warning's class, or UserWarning if that class doesn't exist in this process."""
    found = getattr(sys.modules.get(known["module"]), known["category"], UserWarning)
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning


def _trim_stacks(stacks: str) -> str:
    """Return the stacks without the frames of pytest and of this plugin."""
    return "\n".join(line for line in stacks.splitlines() if not any(x in line for x in _FRAMES))


def _consequence(report: pytest.TestReport) -> str:
    """Return the message of a failure if another rank caused it, or an empty string for any other
    failure.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(getattr(crash, "message", ""))
    return f"consequence: {message}" if _LOST.search(message) else ""


def _is_strict(report: pytest.TestReport) -> bool:
    """Return whether the test was reported as failed only because it unexpectedly passed (strict
    xfail). This process evaluates that case itself.
    """
    return isinstance(report.longrepr, str) and report.longrepr.startswith(_STRICT)


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
