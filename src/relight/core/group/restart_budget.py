"""Decides whether and when workers may restart after a failure (`--max-restarts`,
`--restart-policy`, `--restart-on`, `--fail-on`).

    always   restart immediately after a failure while the budget lasts (as in torchrun)
    smart    like "always", but the job ends if the same exception occurs twice at the same line
             without progress in between; each generation without progress makes the next one wait
             longer; progress refills the budget

A budget with a time window (`--max-restarts=3/1h`) counts only the restarts within that window, and
progress refills it under either policy.

`--fail-on` lists exit codes that end the job. With `--restart-on`, the job restarts only after the
listed exit codes. Hangs and lost nodes have no exit code, so these rules do not apply to them.

Progress means a step that the job had not reached before (`relight.worker.progress`), or a new
checkpoint (`--checkpoints`). If neither is known, running for `_STABLE_S` counts as progress, but
does not refill the budget.

Invariants: the number of restarts in the window never exceeds the budget, unless there was progress
in between. A wait is at most `_LONGEST_S`.

A new coordinator knows how many restarts the job has had, but not when they happened. If the budget
can be refilled, the coordinator counts these restarts as if they had just happened. It keeps one
restart in reserve, because losing a coordinator must not end the job.

This module is loaded only after a failure, or after a node was lost if the policy is `smart`.
"""

from collections.abc import Hashable
from typing import NamedTuple

from relight.base.errors import exit_code_text
from relight.base.text import format_duration
from relight.core.group.group_types import GroupSettings

_FIRST_S, _LONGEST_S = 1.0, 60.0
"""The wait before the second restart and the longest wait under `smart`. The first restart is
immediate.
"""
_STABLE_S = 300.0
_PRIME = 999_983
_REPEATED = "same exception on the same line again, with no progress in between"


class Decision(NamedTuple):
    """Whether to restart, and after how many seconds (`delay_s`). The `reason` field contains the
    restart's number and the maximum, or explains why the job does not restart.
    """

    restarts: bool
    reason: str
    delay_s: float = 0.0


class GenerationRun(NamedTuple):
    """The facts about a generation that determine whether the job restarts.

    The `progressed` field indicates whether there was progress (None if unknown). The `symptoms`
    field is a key that equal failures share, if this failure is likely to recur, or None if it may
    have been accidental (`core/diagnosis/failure_text.repeatable`). The `exit_code` field is the
    exit code of the root cause, or 0 without a root cause.
    """

    seconds: float
    progressed: bool | None
    symptoms: Hashable | None = None
    exit_code: int = 0


def with_budget(cause: str, budget: str) -> str:
    """Join a restart's cause and the reason of its `Decision`, such as `restart 1 of 3`."""
    return f"{cause}; {budget}"


def split_budget(text: str, restart: int) -> tuple[str, str]:
    """Undo `with_budget`, given the restart's number. The second part is empty for other texts."""
    cause, _, rest = text.rpartition(f"; restart {restart}")
    return (cause, f"restart {restart}{rest}") if cause and rest[:1] in (" ", ",") else (text, "")


class RestartHistory:
    """One job's restarts so far.

    Args:
        settings: the user's settings.
        restarts: the number of restarts under another coordinator.
        origin: a random string, which makes jobs that failed at the same time wait for different
            lengths of time.
        now: the current time.
    """

    def __init__(self, settings: GroupSettings, restarts: int, origin: str, now: float) -> None:
        self._settings = settings
        self._origin = origin
        if settings.budget_renews:
            restarts = min(restarts, max(settings.max_restarts - 1, 0))
        self._times = [now] * restarts  # the times of the restarts that count
        self._symptoms: Hashable | None = None
        self._streak = 0  # generations in a row that ended without progress
        self._repeats = 0  # failures in a row that were equal to the previous one

    def after_failure(self, run: GenerationRun, restart: int, now: float) -> Decision:
        """Decide whether to restart after a worker failure.

        Args:
            run: the generation that failed.
            restart: the number of restarts so far.
            now: the current time.
        """
        settings = self._settings
        self._take(run)
        if rule := _rule(settings, run.exit_code):
            return Decision(False, rule)
        if run.progressed and settings.budget_renews:
            self._times.clear()
        if settings.restart_window_s:
            self._times = [at for at in self._times if at > now - settings.restart_window_s]
        is_repeated = run.symptoms is not None and run.symptoms == self._symptoms
        self._symptoms = run.symptoms
        self._repeats = self._repeats + 1 if is_repeated else 0
        if is_repeated and settings.smart:
            return Decision(False, _REPEATED)
        if len(self._times) >= settings.max_restarts:
            return Decision(False, self._used_up())
        self._times.append(now)
        delay_s = self._delay_s()
        wait = f" in {format_duration(delay_s, digits=1)}" if delay_s else ""
        return Decision(True, f"{self._which(restart + 1)}{wait}", delay_s)

    def after_lost_node(self, run: GenerationRun) -> float:
        """Return how many seconds to delay the next generation after a node was lost."""
        self._take(run)
        return self._delay_s()

    def _take(self, run: GenerationRun) -> None:
        progressed = run.seconds >= _STABLE_S if run.progressed is None else run.progressed
        self._streak = 0 if progressed else self._streak + 1
        if progressed:
            self._symptoms, self._repeats = None, 0

    def _delay_s(self) -> float:
        if not self._settings.smart or self._streak < 2:
            return 0.0
        whole = min(_FIRST_S * 2.0 ** min(self._streak - 2, 30), _LONGEST_S)
        number = int.from_bytes(f"{self._origin} {self._streak}".encode(), "big")
        chance = number % _PRIME / _PRIME
        return round(whole * (0.5 + chance / 2), 3)

    def _which(self, number: int) -> str:
        settings, used = self._settings, len(self._times)
        if settings.restart_window_s:
            within = format_duration(settings.restart_window_s)
            return f"restart {number}, {used} of {settings.max_restarts} within {within}"
        if settings.smart and used != number:
            return f"restart {number}, {used} of {settings.max_restarts} since the last progress"
        return f"restart {number} of {settings.max_restarts}"

    def _used_up(self) -> str:
        settings = self._settings
        reason = restart_refusal(settings)
        if self._repeats > 1:
            reason += f"; --restart-policy=smart would have saved {self._repeats - 1} of them"
        return reason


def _rule(settings: GroupSettings, exit_code: int) -> str:
    """Return which of the user's rules forbids a restart, or an empty string."""
    if exit_code in settings.fail_on:
        return f"--fail-on lists {exit_code_text(exit_code)}"
    if exit_code and settings.restart_on and exit_code not in settings.restart_on:
        return f"--restart-on does not list {exit_code_text(exit_code)}"
    return ""


def restart_refusal(settings: GroupSettings) -> str:
    """Return the reason for not restarting after all allowed restarts have been used."""
    budget, within = settings.max_restarts, ""
    if budget == 0:
        return "no restarts were allowed (--max-restarts=0)"
    if settings.restart_window_s:
        within = f" within {format_duration(settings.restart_window_s)}"
    elif settings.smart:
        within = " since the last progress"
    if budget == 1:
        return f"the only restart{within} is used up"
    return f"all {budget} restarts{within} are used up"
