"""Warm processes that do not respond: `relight warm` names them."""

import os
import signal

from warm.test_processes import Shell, is_gone, shell, wait

__all__ = ["shell"]  # a fixture


def test_warm_command_reports_suspended_warm_process(shell: Shell) -> None:
    """The message explains how to end the process, which also ends its guard."""
    pid = shell.make()
    os.kill(pid, signal.SIGSTOP)
    for words in (("warm",), ("warm", "stop"), ("warm", "stop", str(pid))):
        said = shell.relight(*words)
        assert f"{pid} is not responding; `kill -9 {pid}` kills it" in said.stderr
        assert said.returncode == 0 and "no warm processes" not in said.stderr
    os.kill(pid, signal.SIGKILL)
    wait(lambda: is_gone(pid))
