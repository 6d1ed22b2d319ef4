"""Writes docs/failure-guide.md, which explains each message at the end of a job and what to do.

    python -m documentation.failures

`documentation/failures.toml` has an entry for every message that states why a job ended. A test
compares it with relight's source (`messages_of_source`). The sample reports are the expected
reports of the tests in tests/faults.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from documentation import messages
from documentation.blocks import ROOT
from relight.base import errors

PAGE = ROOT / "docs" / "failure-guide.md"
_FAULTS = ROOT / "tests" / "faults"


class Cause(NamedTuple):
    """A reason why a job ended: the group it belongs to, a title, parts of the messages as they are
    written in relight's source, their meaning, what to do, and a file in tests/faults with a
    report.
    """

    group: str
    title: str
    says: list[str]
    means: str
    do: str
    example: str = ""


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
CAUSES = tuple(Cause(**each) for each in _TABLES["cause"])
EXIT_CODES: dict[str, str] = _TABLES["exit_codes"]
"""The names of relight's own exit codes in `relight.base.errors`, each with its meaning."""
SOURCES = {
    "agent/coordinator.py": ("JobEnded",),
    "core/diagnosis/blame.py": ("OTHER_ADDRESS", "OTHER_STORE"),
    "core/diagnosis/causes.py": (
        "missing_rank", "lost_connection", "_without_code", "different_sizes", "left_early",
        "elsewhere", "different_collectives", "first_victim", "_printed",
        "_was_handling", "other_address", "other_store", "absent_rank", "collectives_differ",
    ),
    "core/workers/worker_command.py": ("suggest_replacement", "suggest_use_env"),
    "core/diagnosis/failure_text.py": (
        "what_happened", "_after_printing", "_exception", "_hint", "_consequence", "_evidence",
        "_LOADER_EXITED",
    ),
    "core/diagnosis/last_words.py": ("weighed",),
    "core/diagnosis/stack_text.py": ("stuck_loader",),
    "core/link/link_state.py": ("_wait",),
    "core/group/membership.py": ("JobEnded", "_stop_hung"),
    "core/group/reachability.py": ("JobEnded",),
    "core/group/restart_budget.py": ("_REPEATED", "_rule", "restart_refusal", "_used_up"),
    "core/group/group_messages.py": (
        "refusal", "other_lost_after", "too_few", "coming_back", "not_ready",
        "last_call", "on_probation", "dropped",
    ),
    "stacks/exit_evidence.py": (
        "full_disks", "bus_error", "cpu_limit", "missing_interpreter", "closed_output",
        "local_rank", "hard_cpu_limit", "_shm_remedy", "_full",
    ),
    "host/oom_detector.py": (
        "explain_kill", "explain_child_kill", "_counted", "_place_of",
        "_format_limit", "_other", "NOBODY",
    ),
    "agent/shutdown.py": ("as_unfit", "as_preempted"),
    "agent/link.py": ("JobEnded",),
    "agent/postmortem.py": ("_explain_full_disk",),
    "agent/watchdogs.py": ("_on_stuck", "_on_timer_expired"),
}  # fmt: skip
"""The functions, assignments and calls in the source that contain such messages."""


def messages_of_source() -> Iterator[str]:
    """Yield the messages in `SOURCES` that are readable text."""
    for path, names in SOURCES.items():
        for text in messages.texts_of(messages.SOURCE / path, names):
            if messages.is_words(text):
                yield text


def page() -> str:
    """Return the content of the page."""
    lines, group = [_HEAD], ""
    for cause in CAUSES:
        lines += [f"## {cause.group}", ""] if cause.group != group else []
        group = cause.group
        lines += [f"### {cause.title}", ""]
        lines += [f"- `{text.strip(' ;,')}`" for text in cause.says]
        lines += ["", f"**Meaning**: {cause.means}", "", f"**What to do**: {cause.do}", ""]
        if cause.example:
            report = (_FAULTS / cause.example).read_text().rstrip("\n")
            lines += ["```console", report, "```", ""]
    lines += ["## Exit codes of relight itself", "", "| exit code | meaning |", "|---|---|"]
    lines += [f"| {getattr(errors, name)} | {text} |" for name, text in EXIT_CODES.items()]
    return "\n".join([*lines, "", _TAIL])


_HEAD = """\
# Failure guide

<!-- written by python -m documentation.failures -->

When a job fails, the first line that begins with `relight: rank`, `relight: probably rank` or
`relight: error` states the reason. Search this page for the text of that line; `…` replaces a
name or a number. Parts of the reports below that differ between machines are shortened.

A report starts with the cause: what happened, where in the code, and on which node. The traceback,
the knock-on failures (“other ranks”), the exit code, and the reason for not restarting come next.
"""
_TAIL = """\
Any other exit code is [that of the root cause](exit-codes.md). Each error that begins with
`relight: error:` is followed by a hint. The documentation site (`make docs`) has a page with all
error messages.
"""

if __name__ == "__main__":
    PAGE.write_text(page())
