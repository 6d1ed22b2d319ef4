"""The documented differences between torchrun and relight, and a comparison that allows no others.

docs/differences.md has one section for each name in `DIFFERENCES` and `SHOWN`.
"""

import re
import socket
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from differential.recording import Recording, flat

Test = TypeVar("Test", bound=Callable[..., object])

NOTHING = "<nothing>"
"""The value of a field that only the other recording has."""


class Difference(NamedTuple):
    """The fields that differ, with patterns for torchrun's and relight's values, and the reason."""

    why: str
    fields: tuple[tuple[str, str, str], ...]


class Mismatch(NamedTuple):
    """A field in which two recordings differ."""

    field: str
    torchrun: str
    relight: str


_OWN_CODE = ("says its own code", "True", "False")
_ENV = r"workers .* environment "
_ATTEMPT = r"attempt_\d+/\d+/error\.json"
_UNDER = r"\{uuid\}_\{random\}|\w+_\{random\}"
_ONLY_TORCHRUN = (
    ("says .*", "True", "False"),
    ("exit_code", "0", "2"),
    ("workers", r"\[.+\]", r"\[\]"),
    ("stdout|stderr", ".*", r"\[(''|)\]"),
    ("left", ".*", r"\[\]"),
)
_ONLY_RELIGHT = (
    ("says .*", "True", "False"),
    ("exit_code", "1|2", "0"),
    ("workers", r"\[\]", r"\[.+\]"),
    ("stdout|stderr", r"\[(''|)\]", ".*"),
    ("files .*", NOTHING, ".*"),
    ("left", ".*", r"\[\]"),
)

DIFFERENCES = {
    "master-addr": Difference(
        "a machine's full host name need not resolve",
        ((_ENV + "MASTER_ADDR", re.escape(socket.getfqdn()), r"127\.0\.0\.1"),),
    ),
    "breakpoint": Difference(
        "a rank without a terminal can be debugged",
        (
            (_ENV + "PYTHONBREAKPOINT", NOTHING, r"relight(\.worker\.|_)breakpoint\.wait"),
            (_ENV + "PYTHONPATH", ".*", r".*/relight/worker/path"),
        ),
    ),
    "survivors": Difference(
        "a script may let the ranks that have not failed keep their process",
        ((_ENV + "RELIGHT_RECOVERY", NOTHING, "5|15"),),
    ),
    "output-through-agent": Difference(
        "lines of different ranks never mix, and the end of stderr is at hand for the report",
        (
            (r"workers .* fd [12]", r"the launcher's \d( and \d)?", "a pipe of its own"),
            (
                r"workers .* fd [12]",
                r"the launcher's \d( and \d)?, a terminal",
                "a device of its own, a terminal",
            ),
        ),
    ),
    "filtered-stderr": Difference(
        "hidden, but still needed for tracebacks in the report",
        ((r"workers .* fd 2", "a null of its own", "a pipe of its own"),),
    ),
    "parent-death-signal": Difference(
        "no worker outlives its agent, whatever kills it",
        ((r"workers .* parent death signal", "[02]", "9"),),
    ),
    "faulthandler": Difference(
        "a crash shows its position in Python",
        (
            (r"workers .* orig_argv", r".*'-u', .*", r".*'-uXfaulthandler', .*"),
            (r"workers .* status SigCgt", r"[0-9a-f]+002", r"[0-9a-f]+4ea"),
        ),
    ),
    "temporary-directory": Difference(
        "no files remain that the user did not request",
        (
            (
                _ENV + "TORCHELASTIC_ERROR_FILE",
                rf"\{{work\}}/tmp/torchelastic_\{{random\}}/({_UNDER})/{_ATTEMPT}",
                r"\{work\}/tmp/relight_\{random\}/attempt_\d+/\d+\.error\.json",
            ),
            ("left", r"\[('torchelastic_\{random\}[^']*'(, )?)+\]", r"\[\]"),
        ),
    ),
    "kept-logs": Difference(
        "the jobs of a user are found in one place",
        (
            (
                _ENV + "TORCHELASTIC_ERROR_FILE",
                rf"\{{work\}}/tmp/torchelastic_\{{random\}}/({_UNDER})/{_ATTEMPT}",
                rf"\{{work\}}/tmp/relight-\d+/({_UNDER})/{_ATTEMPT}",
            ),
            ("left", r"\[('torchelastic_\{random\}[^']*'(, )?)+\]", r"\[('relight[^']*'(, )?)+\]"),
        ),
    ),
    "absolute-error-file": Difference(
        "a script that changes its directory still finds it",
        (
            (
                _ENV + "TORCHELASTIC_ERROR_FILE",
                rf"logs/({_UNDER})/{_ATTEMPT}",
                rf"\{{work\}}/logs/({_UNDER})/{_ATTEMPT}",
            ),
        ),
    ),
    "event-log": Difference(
        "a record of what happened, and when",
        (
            (r"files .*/events\.jsonl mode", NOTHING, "0o100[06].*"),
            (r"files .*/events\.jsonl content", NOTHING, r"\{events\}"),
        ),
    ),
    "run-id": Difference(
        "the user named the job",
        ((_ENV + "TORCHELASTIC_RUN_ID", r"\{uuid\}", "job7|-1"),),
    ),
    "random-run-id": Difference(
        "one form of random ids",
        ((_ENV + "TORCHELASTIC_RUN_ID", r"\d{20,}", r"\{uuid\}"),),
    ),
    "master-port-0": Difference(
        "workers can meet there",
        ((_ENV + "MASTER_PORT", "0", r"\{any port\}"),),
    ),
    "quoted-conf": Difference(
        "a list of arguments in Python often has them, as torch's own tests do", _ONLY_RELIGHT
    ),
    "signal-names": Difference(
        "one normalized form",
        ((_ENV + "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1, SIGTERM", "SIGUSR1,SIGTERM"),),
    ),
    "ambiguous-beginning": Difference("both spellings are the same flag", _ONLY_RELIGHT),
    "switch-variable-words": Difference("common spellings", _ONLY_RELIGHT),
    "switch-variable-strict": Difference("other numbers are mistakes", _ONLY_TORCHRUN),
    "choice-variable-strict": Difference("a variable is checked like its flag", _ONLY_TORCHRUN),
    "empty-python-exec": Difference("empty means unset", _ONLY_RELIGHT),
    "ranks-above-9": Difference("nodes with more than ten workers are usual", _ONLY_RELIGHT),
    "dollars": Difference(
        "only `${local_rank}` is a documented macro of torchrun",
        (
            (
                r"workers .* (orig_)?argv",
                r"(.*'probe\.py', )'\$', '(\d)', '\2', 'a\$b', (.*)",
                r".*'probe\.py', '\$\$', '\d', '\$local_rank', 'a\$\$b', '\$\{other\}', '\$', "
                r"'--device=cuda:(\d)/\1', '\$\{local_rank\}'\]",
            ),
        ),
    ),
    "run-path-process": Difference(
        "a worker starts without importing torch and owns its session, as in the other modes",
        (
            (
                r"workers .* orig_argv",
                ".*spawn_main.*",
                r".*'-uXfaulthandler', '-c', '.*runpy.*', .*",
            ),
            (r"workers .* other fds", r"\[\d.*\]", r"\[\]"),
            (r"workers .* (session|group) leader", "False", "True"),
            (r"workers .* torch is imported", "True", "False"),
            (r"workers .* status SigCgt", "[0-9a-f]+4ea", "0+4ea"),
        ),
    ),
    "run-path-unbuffered": Difference(
        "no output is lost when a worker is killed, as in the other modes",
        ((r"workers .* unbuffered", "False", "True"),),
    ),
    "run-path-beside": Difference(
        "a script finds the modules next to it",
        ((r"workers .* sys\.path\[0\]", r"\{work\}", r"\{work\}/folder"),),
    ),
    "run-path-error-file": Difference(
        "the report and the launcher's own error file take the traceback from stderr",
        (
            (r"files logs/.*/error\.json .*", ".*", NOTHING),
            ("left", ".*", r"\[\]"),
        ),
    ),
    "nohup": Difference(
        "a job under nohup outlives its terminal, workers included",
        ((r"workers .* status SigIgn", ".*0", ".*1"),),
    ),
    "closed-stdin": Difference(
        "the first file that a worker opens must not become its stdin",
        ((r"workers .* fd 0", "closed", "a null of its own"),),
    ),
    "ignored-sigchld": Difference(
        "a process that ignores it can't read the exit status of its children",
        ((r"workers .* status SigIgn", ".*11000", ".*01000"),),
    ),
    "tee-carriage-return": Difference(
        "a progress bar stays on one line of a terminal",
        (
            (
                "stdout",
                r"\['\[default0\]:probe out 0.0', '\[default0\]:1%', '\[default0\]:2%', .*",
                r"\['\[default0\]:probe out 0.0', '\[default0\]:1%\\r\[default0\]:2%\\r', .*",
            ),
        ),
    ),
    "tee-bytes": Difference(
        "relight does not change the workers' output",
        (("stdout", r".*'\[default0\]:(ï¿½){2}', .*", r".*'\[default0\]:éÿ', .*"),),
    ),
    "exit-code": Difference(
        "the program that started the job can act on it",
        (("exit_code", "1", "[3-7]"),),
    ),
    "exit-code-of-signal": Difference(
        "as in every shell",
        (("exit_code", "1", "137|163"),),
    ),
    "exit-code-of-launcher": Difference(
        "as in every shell; a scheduler must not mistake it for a failed job",
        (("exit_code", "1", "130|138|143"),),
    ),
    "late-worker": Difference(
        "a late worker is a failure like any other: reported, restarted, its peers stopped",
        (("exit_code", "-9", "137"), ("left", r"\[.*, 'watchdog_timer_\{random\}'\]", r"\[\]")),
    ),
    "fresh-store": Difference(
        "restarted workers must not find addresses of dead ones",
        ((_ENV + "MASTER_PORT", r"\{any port\}", r"\{another port\}"),),
    ),
    "error-file-always": Difference(
        "the calling program can read the reason, without a decorator in the script",
        (("files outer.json .*", NOTHING, ".*"),),
    ),
}

DIFFERENCES |= {
    "threads-note": Difference("one line is enough", (("says a banner", "True", "False"),)),
    "launch-deprecation": Difference(
        "the command is kept", (("says a deprecation", "True", "False"),)
    ),
    "failure-report": Difference(
        "the first lines name the rank, the error and the place; knock-on failures follow",
        (("says a box of failures", "True", "False"),),
    ),
    "own-traceback": Difference("frames of the launcher are useless to its user", (_OWN_CODE,)),
    "usage-exit-code": Difference(
        "a script can tell a wrong command line from a failed job", (("exit_code", "1", "2"),)
    ),
    "missing-script": Difference(
        "no worker starts in vain",
        (
            ("exit_code", "1", "2"),
            _OWN_CODE,
            ("says a box of failures", "True", "False"),
            ("left", ".+", r"\[\]"),
        ),
    ),
    "unknown-signal": Difference("a wrong name would leave a signal unhandled", _ONLY_TORCHRUN),
    "standalone-contradiction": Difference("one of the two is a mistake", _ONLY_TORCHRUN),
}

SHOWN: set[str] = set()
"""Documented differences that separate tests show."""


def shows(name: str) -> Callable[[Test], Test]:
    """Mark a test as showing a documented difference that no comparison can show."""
    SHOWN.add(name)
    return lambda test: test


SAYS = {
    "a banner": r".*\*{20,}",
    "a deprecation": r".*FutureWarning.*",
    "a box of failures": r"={20,}",
    "its own code": (
        r' *File ".*/(torch/distributed/(run|launch)|relight/(agent|(cli|core|host)/\w+))\.py".*'
    ),
}
"""A launcher's known lines on stderr, as patterns."""


def mismatches(torchrun: Recording, relight: Recording) -> list[Mismatch]:
    """Return the fields that differ. Only the kinds of the launchers' messages are compared.

    A worker that only one of the launchers started counts as a single mismatch, and not as one for
    each of its values.
    """
    both = torchrun.workers.keys() & relight.workers.keys()
    sides = []
    for recording in (torchrun, relight):
        names = str(sorted(recording.workers))
        fields = flat(recording._replace(workers={w: recording.workers[w] for w in both}))
        del fields["says"]
        kinds = {
            f"says {kind}": any(re.fullmatch(pattern, line) for line in recording.says)
            for kind, pattern in SAYS.items()
        }
        sides.append({**fields, **kinds, "workers": names})
    ours, theirs = sides[1], sides[0]
    return [
        Mismatch(field, str(theirs.get(field, NOTHING)), str(ours.get(field, NOTHING)))
        for field in sorted(ours.keys() | theirs.keys())
        if theirs.get(field, NOTHING) != ours.get(field, NOTHING)
    ]


def sort_out(found: Iterable[Mismatch], allowed: Iterable[str]) -> tuple[list[Mismatch], set[str]]:
    """Return the mismatches that no allowed difference explains, and the names of those seen."""
    unexplained, seen = [], set()
    for mismatch in found:
        names = [name for name in allowed if _explains(DIFFERENCES[name], mismatch)]
        seen.update(names)
        if not names:
            unexplained.append(mismatch)
    return unexplained, seen


def _explains(difference: Difference, mismatch: Mismatch) -> bool:
    return any(
        all(
            re.fullmatch(pattern, text, re.DOTALL)
            for pattern, text in zip(patterns, mismatch, strict=True)
        )
        for patterns in difference.fields
    )


def as_text(value: Any) -> str:
    """Format mismatches as readable lines."""
    return "\n".join(
        f"{m.field}:\n    torchrun: {m.torchrun[:800]}\n    relight:  {m.relight[:800]}"
        for m in value
    )
