"""Many ends of workers -> one root cause and a report that fits on a screen.

Who is the cause? Not always the first to die: a worker whose peer vanishes can be gone before the
peer has finished dying. The ends are put in four classes, and the earliest of the best class is the
cause:

    OWN        ended other than with 0, unasked, and nothing says that another one is to blame
    REPORTED   was already being stopped by the agent, but left an exception of its own
    VICTIM     says itself that a peer vanished (connection reset, a collective that timed out, …)
    STOPPED    ended because the agent stopped it

Ends with the cause's own symptoms (same exception, same place) are collapsed into it. This file is
loaded only after a failure.
"""

import re
import signal
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from relight.core.tracebacks import Report
from relight.errors import exit_code_of_signal, signal_name

_MAX_TRACEBACK = 12
_MAX_CONSEQUENCES = 4


class Class(IntEnum):
    """How likely an end is to be the cause, best first."""

    OWN = 0
    REPORTED = 1
    VICTIM = 2
    STOPPED = 3


class Failure(NamedTuple):
    """How one worker ended, and all that is known about it.

    `exitcode` is negative for a signal; `at` is monotonic; `asked` is the signal that the agent had
    sent before, or 0; `evidence` are findings of the machine, such as an out-of-memory kill;
    `last_lines` is the end of stderr.
    """

    rank: int
    local_rank: int
    host: str
    pid: int
    exitcode: int
    at: float
    asked: int
    report: Report | None
    last_lines: tuple[str, ...]
    evidence: str
    log: str

    @property
    def told(self) -> bool:
        """Whether the report tells why the worker ended, not merely what it printed."""
        return self.report is not None and (bool(self.asked) or self.exitcode == 1)


class Diagnosis(NamedTuple):
    """The root cause, the others that failed in the same way, and what followed."""

    root: Failure
    same: tuple[Failure, ...]
    consequences: tuple[Failure, ...]

    @property
    def exit_code(self) -> int:
        """The root cause's own exit code, as a shell would give it."""
        if self.root.asked and self.root.told:
            return 1  # the exception would have ended it so, had the agent not been quicker
        return shell_exit_code(self.root.exitcode)

    def headline(self) -> str:
        """Return what happened, in one line."""
        root = self.root
        return f"{self._who()} {what_happened(root)} (pid {root.pid} on {root.host})"

    def render(self, *, formed_at: float, ended: str, verdict: str) -> list[str]:
        """Return the report as lines, at most 25 for one failure.

        Args:
            formed_at: when the generation was formed, on the clock of `Failure.at`.
            ended: the time of day, as text.
            verdict: what follows, such as why there is no restart.
        """
        root = self.root
        lines = [f"{self._who()} {what_happened(root)}"]
        if root.report is not None and root.report.where:
            lines.append(f"  at {root.report.where}")
        lines.append(
            f"  on {root.host}, local rank {root.local_rank}, pid {root.pid}, "
            f"after {_duration(root.at - formed_at)}, at {ended}; {verdict}"
        )
        if root.report is not None:
            if not root.told:
                lines += ["", "the last traceback on its stderr:"]
            lines += [*([""] if root.told else []), *_shortened(root.report.lines)]
        elif root.last_lines:
            lines += ["", "the last lines of its stderr:"]
            lines += [f"  {_cut(line, 160)}" for line in root.last_lines]
        rows = _consequences(self.consequences, root.at)
        lines += ["", *rows] if rows else []
        lines += ["", f"log: {root.log}"] if root.log else []
        return lines

    def _who(self) -> str:
        if not self.same:
            return f"rank {self.root.rank}"
        return f"ranks {_ranges([self.root.rank, *(f.rank for f in self.same)])}"


_VICTIM = re.compile(
    r"""ConnectionResetError | ConnectionAbortedError | BrokenPipeError | DistNetworkError
    | Connection\ (?:reset|closed|aborted|refused)\ by\ (?:remote\ )?peer
    | Connection\ closed | Broken\ pipe
    | gloo/transport/ | connectFullMesh
    | ncclRemoteError | ncclSystemError | remote\ process\ exited | NCCL\ communicator\ was\ aborted
    | Watchdog\ caught\ collective\ operation\ timeout
    | collective\ operation\ timeout | Socket\ Timeout | Timed\ out\ waiting\ \d+ms\ for
    | Application\ timeout\ caused\ pair\ closure
    | (?:recv|send)Value\ failed | Failed\ to\ recv,\ got\ 0\ bytes""",
    re.VERBOSE | re.IGNORECASE,
)


def shell_exit_code(exitcode: int) -> int:
    """Return the exit code of a shell for a process: its own, or 128 + n for signal n."""
    return exit_code_of_signal(-exitcode) if exitcode < 0 else exitcode


def classify(failure: Failure) -> Class:
    """Return the class of one end."""
    report = failure.report
    if report is not None:
        text = f"{report.type}: {report.message}"
    else:
        text = "\n".join(failure.last_lines)
    if failure.asked:
        by_request = failure.exitcode == -failure.asked or failure.exitcode == -signal.SIGKILL
        if report is None or report.type in ("KeyboardInterrupt", "SystemExit"):
            return Class.STOPPED
        if _VICTIM.search(text):
            return Class.STOPPED if by_request else Class.VICTIM
        return Class.REPORTED
    return Class.VICTIM if _VICTIM.search(text) else Class.OWN


def diagnose(failures: Iterable[Failure]) -> Diagnosis:
    """Return the root cause among ends other than 0; there must be at least one."""
    ordered = sorted(failures, key=lambda failure: (classify(failure), failure.at, failure.rank))
    root, *rest = ordered
    symptoms = _symptoms(root)
    same = [f for f in rest if symptoms is not None and _symptoms(f) == symptoms]
    consequences = [f for f in rest if f not in same]
    return Diagnosis(root, tuple(sorted(same)), tuple(consequences))


def what_happened(failure: Failure) -> str:
    """Return what happened to one worker, in half a line."""
    report = failure.report
    if report is not None and failure.told:
        message = report.message.strip().partition("\n")[0]
        return _cut(f"raised {report.type}: {message}" if message else f"raised {report.type}", 160)
    if failure.exitcode < 0:
        text = f"was killed by {signal_name(-failure.exitcode)}"
    else:
        text = f"exited with code {failure.exitcode}"
    return f"{text}: {failure.evidence}" if failure.evidence else text


def _symptoms(failure: Failure) -> tuple[str, str, str] | None:
    """Return what makes two failures the same one, or None where a report is missing."""
    report = failure.report
    if classify(failure) is Class.STOPPED:
        return None
    if report is None:
        return ("", failure.evidence, "") if failure.evidence else None
    # Addresses, ranks and sizes differ between ranks without making another failure of it.
    message = re.sub(r"0x[0-9a-fA-F]+|\d+", "#", report.message)
    return report.type, message, report.where


def _consequences(failures: Sequence[Failure], root_at: float) -> list[str]:
    by_text: dict[str, list[int]] = {}
    for failure in failures:
        if classify(failure) is Class.STOPPED:
            text = f"stopped by the agent ({signal_name(failure.asked)})"
            if failure.exitcode not in (-failure.asked, -signal.SIGKILL):
                text += f", ended with {shell_exit_code(failure.exitcode)}"
        else:
            text = _cut(what_happened(failure), 100)
            later = failure.at - root_at
            if later >= 0.1:
                text += f", {_duration(later)} later"
        by_text.setdefault(text, []).append(failure.rank)
    rows = [
        f"  rank{'s' if len(ranks) > 1 else ''} {_ranges(ranks)}: {text}"
        for text, ranks in by_text.items()
    ]
    if not rows:
        return []
    if len(rows) > _MAX_CONSEQUENCES:
        left_out = len(rows) - _MAX_CONSEQUENCES
        rows = [*rows[:_MAX_CONSEQUENCES], f"  and {left_out} more"]
    return ["what followed:", *rows]


def _shortened(lines: Sequence[str]) -> list[str]:
    if len(lines) <= _MAX_TRACEBACK:
        return [_cut(line, 200) for line in lines]
    head, tail = 3, _MAX_TRACEBACK - 4
    left_out = len(lines) - head - tail
    kept = [*lines[:head], f"  … {left_out} lines left out …", *lines[-tail:]]
    return [_cut(line, 200) for line in kept]


def _ranges(ranks: Iterable[int]) -> str:
    """Return `0-3, 5` for 0, 1, 2, 3, 5."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"
