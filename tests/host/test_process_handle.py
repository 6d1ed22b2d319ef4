"""Process handles, with each mechanism that a system may offer."""

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from conftest import LIMIT_S

from relight.host import process_handle
from relight.host.process_handle import ProcessHandle

WAYS = ("functions of Python", "system calls", "start time")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select the mechanism."""
    way: str = request.param
    if way != WAYS[0]:
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(signal, "pidfd_send_signal")
    if way == WAYS[2]:
        monkeypatch.setattr(process_handle, "_pidfd_open", lambda _: -1)
    return way


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def is_readable(handle: ProcessHandle, limit_s: float) -> bool:
    return bool(select.select([handle], [], [], limit_s)[0])


def test_handle_can_wait_for_child_process_to_exit(
    way: str, child: "subprocess.Popen[bytes]"
) -> None:
    """A selector reports the exit, and the child can still be reaped."""
    handle = ProcessHandle(child.pid)
    assert not is_readable(handle, 0) and not handle.has_ended() and not handle.wait(0.01)
    handle.send(signal.SIGTERM)
    assert is_readable(handle, LIMIT_S) and handle.wait() and handle.has_ended()
    assert child.wait(LIMIT_S) == -signal.SIGTERM
    handle.close()


def test_handle_can_wait_for_unrelated_process_to_exit(way: str) -> None:
    """The process isn't a child."""
    program = ["sh", "-c", "sleep 600 & echo $!; read x; kill $!; read x"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        handle = ProcessHandle(int(parent.stdout.readline()))
        assert not is_readable(handle, 0)
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        assert is_readable(handle, LIMIT_S)
        parent.communicate()
    with pytest.raises(ProcessLookupError):
        handle.send(signal.SIGTERM)
    handle.close()


def test_missing_process_has_no_handle(way: str) -> None:
    child = subprocess.Popen(["true"])
    child.wait(LIMIT_S)
    with pytest.raises(ProcessLookupError):
        ProcessHandle(child.pid)


def test_closing_a_process_handle_closes_its_descriptor(
    way: str, child: "subprocess.Popen[bytes]"
) -> None:
    before = os.listdir("/proc/self/fd")
    handle = ProcessHandle(child.pid)
    handle.fileno()
    handle.close()
    deadline = time.monotonic() + LIMIT_S
    while os.listdir("/proc/self/fd") != before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_descriptor_shortage_is_not_mistaken_for_process_exit(
    monkeypatch: pytest.MonkeyPatch, child: "subprocess.Popen[bytes]"
) -> None:
    """Without pidfds, failing to read /proc proves nothing."""
    monkeypatch.setattr(process_handle, "_pidfd_open", lambda _: -1)
    handle = ProcessHandle(child.pid)

    def fail(_: str) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(process_handle, "read_small", fail)
    assert not handle.has_ended()


REUSED = """
import os, signal, subprocess, sys, time
from relight.host import process_handle
if sys.argv[1] != "functions of Python":
    del os.pidfd_open, signal.pidfd_send_signal
if sys.argv[1] == "start time":
    process_handle._pidfd_open = lambda _: -1
first = subprocess.Popen(["sleep", "600"])
handle = process_handle.ProcessHandle(first.pid)
first.kill()
first.wait()
time.sleep(0.02)  # start times are in hundredths of a second
with open("/proc/sys/kernel/ns_last_pid", "w") as file:
    file.write(str(first.pid - 1))
second = subprocess.Popen(["sleep", "600"])
assert second.pid == first.pid and handle.has_ended()
try:
    handle.send(signal.SIGKILL)
except ProcessLookupError:
    print("refused", second.poll())
second.kill()
second.wait()
"""


@pytest.mark.needs_root
@pytest.mark.parametrize("way", WAYS)
def test_reused_pid_is_not_signalled(way: str) -> None:
    """In its own PID namespace, the pid is reused immediately (ns_last_pid, proc(5))."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    done = subprocess.run(
        [*command, sys.executable, "-c", REUSED, way],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.stdout == "refused None\n", done.stderr
