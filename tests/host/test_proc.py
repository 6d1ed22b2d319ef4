"""Processes that end while proc(5) is read."""

import builtins
import errno
import os
import subprocess
import sys
from typing import Any

import pytest

from relight.host import linux


def test_process_ending_while_read_has_no_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """read(2) of /proc/PID/task/TID/children fails with ESRCH then, open(2) with ENOENT."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    real = builtins.open

    def opened(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).startswith(f"/proc/{child.pid}/task/"):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), path)
        return real(path, *arguments, **options)

    try:
        monkeypatch.setattr(builtins, "open", opened)
        assert child.pid in linux.tree(os.getpid())
    finally:
        monkeypatch.undo()
        child.communicate(b"\n")
