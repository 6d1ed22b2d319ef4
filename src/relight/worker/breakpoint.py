"""Implements `breakpoint()` in a worker. It waits for `relight debug` to connect, and runs pdb in
the worker.

The agent sets PYTHONBREAKPOINT, so this module is imported at the first breakpoint. If a worker's
stdin is a terminal, the debugger runs on that terminal, as under torchrun. Workers can't easily
share a terminal, so only the first worker at a breakpoint uses it.

The worker listens on a Unix socket in the abstract namespace (unix(7)) whose name contains the
worker's pid. Only the worker's own user and root may connect, and only one client at a time. As
long as a socket with that name exists, --hang-timeout is suspended. Messages are lines of JSON:

    to relight debug     print TEXT, ask PROMPT, candidates LIST, runs
    from it              line TEXT, complete [TEXT, LINE, BEGIN, END]
"""

import code
import contextlib
import fcntl
import io
import json
import os
import pdb
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

NAME = "\0relight-breakpoint-"
"""The prefix of the socket's name, followed by the pid."""
_TERMINAL = "\0relight-terminal-"
_OWN = ("bdb", "pdb", __name__)
"""Modules that the debugger does not step into."""
_MAX_SHOWN = 64 * 1024
"""The maximum number of characters of earlier output to show on a terminal that attaches late."""

_own = threading.local()
_one_at_a_time = threading.RLock()
"""The lock that a thread holds while it is at a debugger prompt."""
_remote: "_Remote | None" = None
_has_terminal = False


def wait(*, header: str | None = None, commands: list[str] | None = None) -> None:
    """Block until a user attaches to this process and continues it.

    Args:
        header: as in `pdb.set_trace`.
        commands: as in `pdb.set_trace`, for Python 3.14 and later.
    """
    frame = sys._getframe(1)
    debugger = getattr(_own, "debugger", None)
    if debugger is None:
        debugger = _own.debugger = _debugger()
    if header is not None:
        debugger.message(header)
    if commands is not None:
        debugger.rcLines.extend(commands)
    debugger.place = _frame_location(frame)
    debugger.set_trace(frame)


def _debugger() -> "_Debugger":
    """Return this thread's debugger."""
    global _remote
    if _remote is None and not _takes_terminal():
        _remote = _Remote()
        os.register_at_fork(after_in_child=_forget)
    return _Debugger(_remote)


def _takes_terminal() -> bool:
    """Return whether this process may run the debugger on its stdin, which is a terminal."""
    global _has_terminal
    try:
        number = os.fstat(0).st_rdev if os.isatty(0) else 0
    except OSError:
        number = 0
    if number and not _has_terminal:
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(f"{_TERMINAL}{number}")
            holder.detach()  # keep the socket open until this process exits
            _has_terminal = True
        except OSError:
            holder.close()  # another rank uses the terminal
    return _has_terminal


@contextlib.contextmanager
def _at_terminal() -> Iterator[None]:
    """Make the terminal this process's stdout instead of the agent's pipe, because readline only
    supports editing on a terminal. The socket shows other processes that this process is at a
    breakpoint, and that a terminal is attached.
    """
    with socket.socket(socket.AF_UNIX) as shown:
        shown.bind(f"{NAME}{os.getpid()}")
        is_writable = fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        if not is_writable or os.isatty(1):
            yield
            return
        sys.stdout.flush()
        before = os.dup(1)
        os.dup2(0, 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(before, 1)
            os.close(before)


def _forget() -> None:
    """Make sure that a child process shares neither the attached terminal nor the debugger."""
    global _remote, _own, _one_at_a_time
    if _remote is not None:
        _remote.disconnect()
    _remote, _own, _one_at_a_time = None, threading.local(), threading.RLock()


class _Debugger(pdb.Pdb):
    """A pdb debugger whose terminal is either `relight debug` or this process's own terminal.

    Args:
        remote: the connection to `relight debug`, or None for this process's own terminal.
    """

    def __init__(self, remote: "_Remote | None") -> None:
        stream: Any = remote
        super().__init__(stdin=stream, stdout=stream, skip=_OWN, nosigint=remote is not None)
        self._remote = remote
        self._asks = False
        self.prompt = "(Pdb) "
        self.place = ""
        """The location at which `breakpoint()` was called, until the first command has been
        read.
        """

    def cmdloop(self, intro: Any | None = None) -> None:
        """Read and execute commands until the process continues."""
        if self._asks:  # pdb's own `commands` command reads more commands
            super().cmdloop(intro)
            return
        remote = self._remote
        with _one_at_a_time, remote.serving(self) if remote is not None else _at_terminal():
            self._asks = True
            try:
                super().cmdloop(intro)
            finally:
                self._asks = False

    def current_place(self) -> str:
        """Return this thread's current location, such as `train.py:41 in step`."""
        return self.place or _frame_location(self.curframe)

    def do_interact(self, arg: str) -> None:
        """Start an interactive interpreter on the same terminal, as pdb does."""
        remote, frame = self._remote, self.curframe
        if remote is None or frame is None:
            super().do_interact(arg)
            return

        def ask(prompt: str) -> str:
            remote.write(prompt)
            line = remote.readline()
            return line.rstrip("\n")

        names = {**frame.f_globals, **frame.f_locals}
        remote.write("*interactive*: exit() ends it\n")
        redirected = contextlib.redirect_stdout(remote), contextlib.redirect_stderr(remote)
        with redirected[0], redirected[1], contextlib.suppress(SystemExit):
            code.interact("", readfunc=ask, local=names, exitmsg="")

    def candidates(self, text: str, line: str, begin: int, end: int) -> list[str]:
        """Return the completions that `cmd.Cmd.complete` finds for a word."""
        stripped = line.lstrip()
        shift = len(line) - len(stripped)
        begin, end = begin - shift, end - shift
        complete: Any = self.completenames
        if begin > 0:
            command = self.parseline(stripped)[0]
            complete = getattr(self, f"complete_{command}", self.completedefault)
        try:
            return list(complete(text, stripped, begin, end))
        except Exception:
            return []  # readline also shows no completions if a completer fails


class _Remote(io.TextIOBase):
    """A file object that serves as pdb's stdin and stdout. It is connected to `relight debug` once
    a user attaches.
    """

    def __init__(self) -> None:
        self._connection: socket.socket | None = None
        self._received = b""
        self._tail = ""  # the incomplete last line, which becomes the prompt for the next input
        self._shown = ""  # output since this process stopped
        self._debugger: _Debugger | None = None

    @contextlib.contextmanager
    def serving(self, debugger: _Debugger) -> Iterator[None]:
        """Respond to requests on behalf of this debugger. Afterwards, notify the other end that the
        process is running.
        """
        self._debugger = debugger
        try:
            yield
        finally:
            self._print(self._tail)
            self._send({"runs": True})
            self._tail = self._shown = ""

    def disconnect(self) -> None:
        """Close the connection. The next prompt waits for a new connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._received = None, b""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Print complete lines on the other end's terminal."""
        whole, newline, self._tail = (self._tail + text).rpartition("\n")
        self._print(whole + newline)
        return len(text)

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """Use the incomplete last line as a prompt, and return the input. If a terminal disconnects
        without sending any input, prompt on the next terminal that attaches.
        """
        del size
        while True:
            if self._connection is None:
                self._wait()
            self._send({"ask": self._tail})
            while (message := self._receive()) is not None:
                if "line" in message:
                    self._tail = ""
                    if self._debugger is not None:
                        self._debugger.place = ""
                    return str(message["line"]) + "\n"
                if "complete" in message and self._debugger is not None:
                    found = self._debugger.candidates(*message["complete"])
                    self._send({"candidates": found})
            self.disconnect()

    def _wait(self) -> None:
        """Wait until a terminal attaches."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{NAME}{os.getpid()}")
        listener.listen(1)
        place = self._debugger.current_place() if self._debugger is not None else ""
        say(f"is at a breakpoint in {place}; attach with relight debug {os.getpid()}")
        try:
            while self._connection is None:
                connection, _ = listener.accept()
                if _is_allowed(connection):
                    self._connection = connection
                else:
                    connection.close()
        finally:
            listener.close()
        self._send({"print": self._shown})

    def _print(self, text: str) -> None:
        if text:
            self._shown = (self._shown + text)[-_MAX_SHOWN:]
            self._send({"print": text})

    def _send(self, message: dict[str, Any]) -> None:
        if self._connection is None:
            return
        try:
            data = json.dumps(message).encode() + b"\n"
            self._connection.sendall(data, socket.MSG_NOSIGNAL)
        except OSError:
            self.disconnect()

    def _receive(self) -> dict[str, Any] | None:
        """Return the next message, or None if the other end has disconnected."""
        while b"\n" not in self._received:
            try:
                data = self._connection.recv(65536) if self._connection is not None else b""
            except OSError:
                data = b""
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def _frame_location(frame: FrameType | None) -> str:
    if frame is None:
        return "a thread without Python code"
    path, function = frame.f_code.co_filename, frame.f_code.co_name
    near = os.path.relpath(path)
    shown = path if near.startswith("..") else near
    return f"{shown}:{frame.f_lineno}" + ("" if function == "<module>" else f" in {function}")


def say(text: str) -> None:
    """Print a line about this rank to stderr, even if the script has replaced `sys.stderr`."""
    rank = os.environ.get("RANK", "?")
    os.write(2, f"relight: rank {rank} {text}\n".encode(errors="replace"))


def _is_allowed(connection: socket.socket) -> bool:
    """Return whether the other end belongs to this process's user or to root."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return user in (0, os.geteuid())
