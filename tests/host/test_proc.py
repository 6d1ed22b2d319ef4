"""Processes that exit while proc(5) is being read."""

import builtins
import errno
import os
import subprocess
import sys
from typing import Any

import pytest

from relight.host import linux


def test_no_children_are_found_if_process_exits_during_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In that case read(2) on /proc/PID/task/TID/children fails with ESRCH, and open(2) with
    ENOENT.
    """
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
