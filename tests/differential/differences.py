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
        "a machine's full host name does not always resolve",
        ((_ENV + "MASTER_ADDR", re.escape(socket.getfqdn()), r"127\.0\.0\.1"),),
    ),
    "breakpoint": Difference(
        "a rank can be debugged without a terminal",
        (
            (_ENV + "PYTHONBREAKPOINT", NOTHING, r"relight(\.worker\.|_)breakpoint\.wait"),
            (_ENV + "PYTHONPATH", ".*", r".*/relight/worker/path"),
        ),
    ),
    "survivors": Difference(
        "a script may let the ranks that have not failed keep their processes",
        ((_ENV + "RELIGHT_RECOVERY", NOTHING, "5|15"),),
    ),
    "output-through-agent": Difference(
        "lines from different ranks are never mixed, and the end of stderr is available for the "
        "report",
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
        "the output is not shown, but the report may need a traceback from it",
        ((r"workers .* fd 2", "a null of its own", "a pipe of its own"),),
    ),
    "parent-death-signal": Difference(
        "a worker must never outlive its agent, however the agent is killed",
        ((r"workers .* parent death signal", "[02]", "9"),),
    ),
    "faulthandler": Difference(
        "after a crash, the output shows where in the Python code it happened",
        (
            (r"workers .* orig_argv", r".*'-u', .*", r".*'-uXfaulthandler', .*"),
            (r"workers .* status SigCgt", r"[0-9a-f]+002", r"[0-9a-f]+4ea"),
        ),
    ),
    "temporary-directory": Difference(
        "no files are left behind that the user did not request",
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
        "all jobs of a user can be found in one place",
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
        "a script can still find the file after changing its working directory",
        (
            (
                _ENV + "TORCHELASTIC_ERROR_FILE",
                rf"logs/({_UNDER})/{_ATTEMPT}",
                rf"\{{work\}}/logs/({_UNDER})/{_ATTEMPT}",
            ),
        ),
    ),
    "event-log": Difference(
        "the file records what happened and when",
        (
            (r"files .*/events\.jsonl mode", NOTHING, "0o100[06].*"),
            (r"files .*/events\.jsonl content", NOTHING, r"\{events\}"),
        ),
    ),
    "run-id": Difference(
        "the user chose this name for the job",
        ((_ENV + "TORCHELASTIC_RUN_ID", r"\{uuid\}", "job7|-1"),),
    ),
    "random-run-id": Difference(
        "all random IDs have the same format",
        ((_ENV + "TORCHELASTIC_RUN_ID", r"\d{20,}", r"\{uuid\}"),),
    ),
    "master-port-0": Difference(
        "workers can connect to each other at this port",
        ((_ENV + "MASTER_PORT", "0", r"\{any port\}"),),
    ),
    "quoted-conf": Difference(
        "argument lists in Python code often contain such quotes, including those in torch's "
        "own tests",
        _ONLY_RELIGHT,
    ),
    "signal-names": Difference(
        "workers can rely on a single, normalized format",
        ((_ENV + "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1, SIGTERM", "SIGUSR1,SIGTERM"),),
    ),
    "ambiguous-beginning": Difference("both spellings stand for the same flag", _ONLY_RELIGHT),
    "switch-variable-words": Difference(
        "these are common ways to write such a value", _ONLY_RELIGHT
    ),
    "switch-variable-strict": Difference("any other number is probably a mistake", _ONLY_TORCHRUN),
    "choice-variable-strict": Difference(
        "a variable is validated in the same way as its flag", _ONLY_TORCHRUN
    ),
    "empty-python-exec": Difference(
        "an empty variable is treated as if it were not set", _ONLY_RELIGHT
    ),
    "ranks-above-9": Difference("nodes with more than ten workers are common", _ONLY_RELIGHT),
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
        "a worker starts without importing torch and has a session of its own, as in the other "
        "modes",
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
        "a script can import the modules next to it",
        ((r"workers .* sys\.path\[0\]", r"\{work\}", r"\{work\}/folder"),),
    ),
    "run-path-error-file": Difference(
        "relight takes the traceback from stderr for its report and for the launcher's own "
        "error file",
        (
            (r"files logs/.*/error\.json .*", ".*", NOTHING),
            ("left", ".*", r"\[\]"),
        ),
    ),
    "nohup": Difference(
        "a job started with nohup must outlive its terminal, and so must its workers",
        ((r"workers .* status SigIgn", ".*0", ".*1"),),
    ),
    "closed-stdin": Difference(
        "the first file that a worker opens must not become its stdin",
        ((r"workers .* fd 0", "closed", "a null of its own"),),
    ),
    "ignored-sigchld": Difference(
        "a process that ignores SIGCHLD can't read the exit status of its children",
        ((r"workers .* status SigIgn", ".*11000", ".*01000"),),
    ),
    "tee-carriage-return": Difference(
        "a progress bar stays on one line of the terminal",
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
        "the program that started the job can act on the exit code",
        (("exit_code", "1", "[3-7]"),),
    ),
    "exit-code-of-signal": Difference(
        "every shell reports signals in this way",
        (("exit_code", "1", "137|163"),),
    ),
    "exit-code-of-launcher": Difference(
        "every shell reports signals in this way, and a scheduler must not mistake a stopped "
        "job for a failed one",
        (("exit_code", "1", "130|138|143"),),
    ),
    "late-worker": Difference(
        "a late worker is handled like any other failure: it is reported, its peers are "
        "stopped, and the workers are restarted",
        (("exit_code", "-9", "137"), ("left", r"\[.*, 'watchdog_timer_\{random\}'\]", r"\[\]")),
    ),
    "fresh-store": Difference(
        "restarted workers must not find the addresses of dead workers",
        ((_ENV + "MASTER_PORT", r"\{any port\}", r"\{another port\}"),),
    ),
    "error-file-always": Difference(
        "the calling program can read the reason for the failure even if the script has no "
        "decorator",
        (("files outer.json .*", NOTHING, ".*"),),
    ),
}

DIFFERENCES |= {
    "threads-note": Difference(
        "one line is enough for this information", (("says a banner", "True", "False"),)
    ),
    "launch-deprecation": Difference(
        "the command will not be removed", (("says a deprecation", "True", "False"),)
    ),
    "failure-report": Difference(
        "the first lines name the rank, the error and its location, and failures that were only "
        "consequences come later",
        (("says a box of failures", "True", "False"),),
    ),
    "own-traceback": Difference(
        "stack frames from the launcher do not help its users", (_OWN_CODE,)
    ),
    "usage-exit-code": Difference(
        "a script can tell a wrong command line from a failed job", (("exit_code", "1", "2"),)
    ),
    "missing-script": Difference(
        "workers should not be started if they are bound to fail",
        (
            ("exit_code", "1", "2"),
            _OWN_CODE,
            ("says a box of failures", "True", "False"),
            ("left", ".+", r"\[\]"),
        ),
    ),
    "unknown-signal": Difference(
        "a misspelled name would leave a signal unhandled", _ONLY_TORCHRUN
    ),
    "standalone-contradiction": Difference(
        "if two flags contradict each other, one of them must be a mistake", _ONLY_TORCHRUN
    ),
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
