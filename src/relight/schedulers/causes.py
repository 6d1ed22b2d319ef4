"""Why a replica failed, in one line, from what it has left behind."""

import os

from relight.host import reports

_LIMIT = 300
_TAIL = 8192


def cause(error_file: str, stderr: str) -> str:
    """Return the exception in a replica's error file or, as not every program writes one, the last
    line of its stderr; empty if there is neither.

    Args:
        error_file: what TORCHELASTIC_ERROR_FILE said.
        stderr: the file of the stream.
    """
    report = reports.read(error_file)
    if report is not None:
        text = f"{report.type}: {report.message}" if report.type else report.message
    else:
        text = _last_line(stderr)
    return " ".join(text.split())[:_LIMIT]


def _last_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read(_TAIL).decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line for line in lines if line.strip() and not line.startswith("slurmstepd")]
    return said[-1] if said else ""
