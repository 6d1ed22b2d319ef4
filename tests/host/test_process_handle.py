"""References to processes, in each of the ways in which a system may have them."""

import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S

from relight.host import process_handle
from relight.host.process_handle import ProcessHandle

WAYS = ("functions of Python", "system calls", "start time")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How processes are referenced."""
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


def test_end_of_a_child_can_be_waited_for(way: str, child: "subprocess.Popen[bytes]") -> None:
    """A selector sees the end, and the child can still be reaped."""
    handle = ProcessHandle(child.pid)
    assert not is_readable(handle, 0) and not handle.has_ended() and not handle.wait(0.01)
    handle.send(signal.SIGTERM)
    assert is_readable(handle, LIMIT_S) and handle.wait() and handle.has_ended()
    assert child.wait(LIMIT_S) == -signal.SIGTERM
    handle.close()


def test_end_of_another_process_can_be_waited_for(way: str) -> None:
    """The end of a process that is not a child."""
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


def test_process_that_does_not_exist_has_no_handle(way: str) -> None:
    child = subprocess.Popen(["true"])
    child.wait(LIMIT_S)
    with pytest.raises(ProcessLookupError):
        ProcessHandle(child.pid)


def test_closed_handle_keeps_no_descriptor(way: str, child: "subprocess.Popen[bytes]") -> None:
    before = os.listdir("/proc/self/fd")
    handle = ProcessHandle(child.pid)
    handle.fileno()
    handle.close()
    deadline = time.monotonic() + LIMIT_S
    while os.listdir("/proc/self/fd") != before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_process_is_not_over_because_no_descriptor_is_left(
    monkeypatch: pytest.MonkeyPatch, child: "subprocess.Popen[bytes]"
) -> None:
    """Without pidfds, a look at /proc that fails says nothing."""
    monkeypatch.setattr(process_handle, "_pidfd_open", lambda _: -1)
    handle = ProcessHandle(child.pid)

    def fail(_: str) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(process_handle, "read_small", fail)
    assert not handle.has_ended()


@pytest.mark.needs_root
def test_process_that_has_got_the_pid_of_another_is_not_signalled(way: str) -> None:
    """The pid is given to a new process by ns_last_pid (proc_sys_kernel(5))."""
    for _ in range(1000):  # other processes take pids meanwhile
        first = subprocess.Popen(["sleep", "600"])
        handle = ProcessHandle(first.pid)
        first.kill()
        first.wait(LIMIT_S)
        time.sleep(0.02)  # start times are in hundredths of a second
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1))
        second = subprocess.Popen(["sleep", "600"])
        if second.pid == first.pid:
            break
        second.kill()
        second.wait(LIMIT_S)
        handle.close()
    else:
        pytest.skip("no pid could be used again")
    try:
        assert handle.has_ended()
        with pytest.raises(ProcessLookupError):
            handle.send(signal.SIGKILL)
        assert second.poll() is None
    finally:
        handle.close()
        second.kill()
        second.wait(LIMIT_S)
