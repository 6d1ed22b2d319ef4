"""Warm processes that do not answer: `relight warm` names them, and `warm stop` ends them."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S

from relight.host import user_sockets
from warm.test_processes import Shell, is_gone, pids_of, shell, wait

__all__ = ["shell"]  # a fixture

TRACER = """
import ctypes, sys, time
if ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), None, None):  # PTRACE_ATTACH
    sys.exit("it can't be traced")
print("holds", flush=True)
time.sleep(1000)
"""
LISTENER = """
import os, socket, sys, time
os.chdir(os.path.dirname(sys.argv[1]))
s = socket.socket(socket.AF_UNIX)
s.bind(os.path.basename(sys.argv[1]))
s.listen()
print("listens", flush=True)
time.sleep(1000)
"""


@contextlib.contextmanager
def running(code: str, *words: object) -> Iterator[int]:
    """Run a Python program that says when it is ready."""
    command = [sys.executable, "-c", code, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def socket_of(shell: Shell) -> Path:
    (path,) = (path for path in (shell.runtime / "relight").iterdir() if path.is_socket())
    return path


def test_suspended_warm_process_is_named_and_stoppable(shell: Shell) -> None:
    """Also if as many have asked it as the system lets wait."""
    pid = shell.make()
    os.kill(pid, signal.SIGSTOP)
    waiting = []
    while (connection := user_sockets.connect(str(socket_of(shell)), LIMIT_S)) is not None:
        waiting.append(connection)
    listed = shell.relight("warm")
    assert f"{pid} is stopped; end it with `relight warm stop {pid}`" in listed.stderr
    assert "no warm processes" not in listed.stderr
    for each in waiting:
        each.close()
    stopped = shell.relight("warm", "stop")
    assert stopped.returncode == 0 and f"{pid} " in stopped.stderr
    assert "no warm processes" not in stopped.stderr
    wait(lambda: is_gone(pid))


def test_unresponsive_warm_process_is_killed(shell: Shell) -> None:
    """A debugger holds it, so SIGCONT is of no use."""
    pid = shell.make()
    with running(TRACER, pid):
        stopped = shell.relight("warm", "stop", str(pid))
        assert f"{pid} did not answer; killed" in stopped.stderr
    wait(lambda: is_gone(pid))


def test_unresponsive_warm_process_is_not_killed_during_job(shell: Shell) -> None:
    """The job would end with it."""
    pid = shell.make()
    shell.script.write_text("import time\nprint('pids', flush=True)\ntime.sleep(1000)\n")
    job = shell.begin(str(shell.script))
    pids_of(job, 1)
    with running(TRACER, pid):
        stopped = shell.relight("warm", "stop")
        assert f"the job of agent {job.pid} uses it" in stopped.stderr
        assert not is_gone(pid) and job.poll() is None
    job.terminate()
    job.wait(LIMIT_S)
    assert job.stdout is not None
    job.stdout.close()


def test_foreign_listener_is_named_but_not_killed(shell: Shell) -> None:
    shell.make()
    path = socket_of(shell)
    with running(LISTENER, path.with_name(path.name.partition(".")[0] + ".other")) as other:
        for words in (("warm",), ("warm", "stop")):
            said = shell.relight(*words).stderr
            assert f"{other} listens on" in said and "is not a warm process" in said
        assert not is_gone(other)


@pytest.mark.needs_freezer
def test_warm_process_surviving_sigkill_is_an_error(shell: Shell) -> None:
    pid = shell.make()
    folder = Path(f"/sys/fs/cgroup/freezer/relight-warm-{pid}")
    folder.mkdir()
    try:
        (folder / "tasks").write_text(str(pid))
        (folder / "freezer.state").write_text("FROZEN")
        stopped = shell.relight("warm", "stop")
        assert stopped.returncode == 4
        assert f"warm process {pid} does not answer" in stopped.stderr
    finally:
        (folder / "freezer.state").write_text("THAWED")
        wait(lambda: is_gone(pid))
        wait(lambda: not (folder / "tasks").read_text())
        folder.rmdir()
