"""Asks py-spy (https://github.com/benfred/py-spy), where it is installed: it knows more versions of
Python. It stops the process for a moment, so only people ask it, never an agent.
"""

import json
import shutil
import subprocess

from relight.core.stacks import Frame
from relight.typed import Any

_LIMIT_S = 10.0


def dump(pid: int) -> dict[int, tuple[Frame, ...]] | None:
    """Return the frames of each thread of a process, innermost first, by its native id; None if
    py-spy is not installed, or can't either.
    """
    program = shutil.which("py-spy")
    if program is None:
        return None
    try:
        result = subprocess.run(
            [program, "dump", "--json", "--pid", str(pid)],
            capture_output=True, timeout=_LIMIT_S, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return {int(each["os_thread_id"]): _frames(each) for each in json.loads(result.stdout)}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None


def _frames(thread: dict[str, Any]) -> tuple[Frame, ...]:
    return tuple(
        Frame(str(each["filename"]), int(each["line"]), str(each["name"]))
        for each in thread["frames"]
    )
