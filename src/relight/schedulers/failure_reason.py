"""Summarizes in one line why a replica failed, based on its error file and stderr."""

import os
import re
from collections.abc import Sequence

from relight.base.errors import EXIT_SIGNAL_BASE, signal_name
from relight.core.diagnosis.excerpts import cut
from relight.output import error_files

_LIMIT = 1000
_TAIL = 8192
_NO_REASON = re.compile(r"slurmstepd|(?:relight: )?\s*hint: |\s*$")
"""Lines that only contain advice on the preceding error, and lines from Slurm itself."""


def cause(error_file: str, stderr: str, exitcode: int | None) -> str:
    """Return the error from a replica's error file. Not every program writes an error file, so the
    fallback is the last line on stderr. The result is empty if there is neither.

    Args:
        error_file: the path from TORCHELASTIC_ERROR_FILE.
        stderr: the path of the stderr file.
        exitcode: the replica's exit code.
    """
    return in_a_line(error_files.line_in(error_file) or last_words(_lines(stderr), exitcode))


def how_it_ended(exitcode: int) -> str:
    """Return the exit code of a failed process or, if it is negative, the signal's name."""
    return f"exit code {exitcode}" if exitcode > 0 else signal_name(-exitcode)


def in_a_line(text: str) -> str:
    """Shorten text to a single line that fits in a replica's error message."""
    return cut(" ".join(text.split()), _LIMIT)


def last_words(lines: Sequence[str], exitcode: int | None) -> str:
    """Return the last line that may explain the failure. The result is empty for an agent that was
    killed, because a killed agent doesn't print a reason.
    """
    said = [line for line in lines if not _NO_REASON.match(line)]
    killed = exitcode is not None and not 0 <= exitcode <= EXIT_SIGNAL_BASE
    return "" if not said or (killed and said[-1].startswith("relight: ")) else said[-1]


def _lines(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read(_TAIL).decode(errors="replace").splitlines()
    except OSError:
        return []
