"""Runs a command on a node in a Ray cluster, without leaving any of the command's processes behind.

    Ray's worker process (the actor), or the driver --socket--> this --> the command --> …

The guard is part of the job package, and requires only the standard library. It is started as
`python guard.py DESCRIPTOR`, where the descriptor is a socket:

    to it      one line of JSON: `argv`, `env`, `cwd`, `grace_s`, `output` (the descriptor of the
               reading end of the command's output). Nothing is sent after that. When the socket is
               closed, for whatever reason, the command is stopped
    from it    one line of JSON at the end: `exitcode`, and `error` if the command did not start

To stop the command, the guard sends SIGTERM to the command's process group. After `grace_s`, it
sends SIGKILL to all of the command's descendants. The guard inherits them as a subreaper
(PR_SET_CHILD_SUBREAPER, prctl(2)). The guard is neither a child of Ray's worker nor in the worker's
process group, because Ray kills such processes as soon as the worker exits. If the guard itself is
killed, the kernel also kills the command (PR_SET_PDEATHSIG).
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NOT_FOUND, _NOT_STARTED, _SIGNALLED = 127, 126, 128
"""Exit codes that have the same meaning as in a shell."""
_POLL_S = 0.01
_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_libc = ctypes.CDLL(None)


def main(descriptor: int) -> None:
    """Run the command that was received over the socket, and report how it ended."""
    if os.fork():
        os._exit(0)  # the caller waits only for this process
    os.setsid()
    for number in _OURS:
        signal.signal(number, signal.SIG_IGN)  # a stop is only requested through the socket
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT in its workers
    channel = socket.socket(fileno=descriptor)
    order = _order(channel)
    if order is None:
        return
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken = _wake_on_exits()
    try:
        child = subprocess.Popen(
            order["argv"],
            env=order["env"],
            cwd=order["cwd"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_become_command,
        )
    except OSError as error:
        code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED
        what = error.filename or order["argv"][0]
        _report(channel, code, f"{what}: {error.strerror}")
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # otherwise, the output would stay open after the command has ended
        os.dup2(nowhere, stream)
    code = _watch(child, woken, channel, order["output"], order["grace_s"])
    _kill_descendants()
    _report(channel, code if code >= 0 else _SIGNALLED - code, "")


def _order(channel: socket.socket) -> "dict[str, Any] | None":
    """Return the command to run, or None if the parent has exited."""
    data = b""
    while not data.endswith(b"\n"):
        more = channel.recv(1 << 16)
        if not more:
            return None
        data += more
    found: dict[str, Any] = json.loads(data)
    return found


def _wake_on_exits() -> int:
    """Return a descriptor that becomes readable when a child exits."""
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return woken


def _become_command() -> None:
    for number in _OURS:
        signal.signal(number, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _watch(
    child: "subprocess.Popen[bytes]",
    woken: int,
    channel: socket.socket,
    output: int,
    grace_s: float,
) -> int:
    """Wait for the command to exit, stop it if requested, and return its status."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(channel, select.POLLIN)
    kill_at = 0.0
    while True:
        left = max(0.0, kill_at - time.monotonic()) * 1000 if kill_at else None
        for descriptor, event in poll.poll(left):
            if descriptor == woken:
                os.read(woken, 4096)
                if child.poll() is not None:  # otherwise, one of the command's orphans has exited
                    return child.wait()
            elif descriptor == channel.fileno():
                poll.unregister(channel)
                _signal_group(child.pid, signal.SIGTERM)
                kill_at = time.monotonic() + grace_s
                if event & select.POLLHUP and output >= 0:  # the reader has exited
                    poll.register(output, select.POLLIN)
            elif not os.read(output, 1 << 16):
                poll.unregister(output)
        if kill_at and time.monotonic() >= kill_at:
            _signal_group(child.pid, signal.SIGKILL)
            return child.wait()


def _signal_group(leader: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, number)


def _kill_descendants() -> None:
    """Kill and reap all remaining descendants. When a process is killed, its children become
    children of this process.
    """
    while True:
        for pid in _children():
            with suppress(PermissionError):  # another user's setuid program
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_POLL_S)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # the kernel was built without CONFIG_PROC_CHILDREN
        return [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and _parent(pid) == me]


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0  # the process has exited


def _report(channel: socket.socket, exitcode: int, error: str) -> None:
    with suppress(OSError):  # the parent has exited
        channel.sendall(json.dumps({"exitcode": exitcode, "error": error}).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
