"""Finds why a replica failed, in one line, from its error file and stderr."""

import os
import re
from collections.abc import Sequence

from relight.base.errors import EXIT_SIGNAL_BASE
from relight.core.diagnosis.excerpts import cut
from relight.output import error_files

_LIMIT = 1000
_TAIL = 8192
_NO_REASON = re.compile(r"slurmstepd|(?:relight: )?\s*hint: |\s*$")
"""Lines with advice on the error before them, and Slurm's own lines."""


def cause(error_file: str, stderr: str, exitcode: int | None) -> str:
    """Return the failure in a replica's error file or, as not every program writes one, the last
    line of its stderr; empty if neither exists.

    Args:
        error_file: the path from TORCHELASTIC_ERROR_FILE.
        stderr: the path of the stderr file.
        exitcode: the replica's exit code.
    """
    return in_a_line(error_files.line_in(error_file) or last_words(_lines(stderr), exitcode))


def in_a_line(text: str) -> str:
    """Return a text as one line that is not too long for an error of a replica."""
    return cut(" ".join(text.split()), _LIMIT)


def last_words(lines: Sequence[str], exitcode: int | None) -> str:
    """Return the last line that may be a reason; empty for a killed agent, which wrote none."""
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
