"""Passes events to a handler from another package (--event-log-handler=NAME) in a separate process.

A handler (`events/handlers.py`) may be slow, block, or raise exceptions. It runs in a fork of the
agent (`processes/helper.py`). The agent never waits for the handler while the job is running, and
waits for at most 2 s at the end.
"""

import json
import os
import signal
import socket
from collections.abc import Mapping

from relight.base import plugins
from relight.base.text import LineBuffer
from relight.events import handlers
from relight.events.event_types import LoggedEvent, format_line
from relight.host.descriptors import receive
from relight.host.loop import Loop
from relight.output.journal import Journal
from relight.processes.helper import Helper

_MAX_WAITING = 1 << 20
"""Maximum number of bytes queued for the handler. Further events are dropped."""
_END_S = 2.0
"""How long the handler may take to process the last events."""


class EventProcess:
    """The event handler's process.

    Args:
        loop: the agent's loop.
        name: the handler's name.
        journal: the agent's journal. Events that it already has in memory are passed on
            immediately, and later ones when they occur.
        origin: the origin of the job (host/job_origin), added to each event as `agent`.

    Raises:
        OSError: if no process can be started.
    """

    def __init__(self, loop: Loop, name: str, journal: Journal, origin: Mapping[str, str]) -> None:
        self._loop, self._name, self._journal = loop, name, journal
        self._waiting = bytearray()
        self._dropped = 0
        self._heard = LineBuffer()
        self._is_done = False  # whether the process reported a normal exit
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = Helper(
                (), {}, 2, 2, stdin=theirs.fileno(), call=lambda: _live(name, origin)
            )
        self._process.watch(loop, lambda: None)  # the socket's end of file shows its exit
        self._socket.setblocking(False)
        self.has_ended = False
        loop.on_readable(self._socket, self._receive)
        for recorded in journal.events.after(0):
            self._add(recorded)
        journal.listeners.append(self._add)

    def close(self) -> None:
        """Let the handler process the last events, and then stop it."""
        if self._add in self._journal.listeners:
            self._journal.listeners.remove(self._add)
        until = self._loop.now() + _END_S
        self._loop.run_until(lambda: self.has_ended or not self._waiting, _END_S)
        if not self.has_ended:
            self._socket.shutdown(socket.SHUT_WR)
            self._loop.run_until(lambda: self.has_ended, max(0.0, until - self._loop.now()))
        late = not self.has_ended
        self._end()
        if late or self._dropped:
            self._report("it took too long and has not received all events")

    def _add(self, recorded: LoggedEvent) -> None:
        if self.has_ended:
            return
        line = format_line(recorded).encode() + b"\n"
        if len(self._waiting) + len(line) > _MAX_WAITING:
            self._dropped += 1
            return
        self._waiting += line
        self._send()

    def _send(self) -> None:
        try:
            sent = self._socket.send(self._waiting)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the exit is detected by the next read
        del self._waiting[:sent]
        self._loop.on_writable(self._socket, self._send if self._waiting else None)

    def _receive(self) -> None:
        """Handle an exception or exit report from the handler's process."""
        data = receive(self._socket, 4096)
        if data is None:
            return
        for line in self._heard.feed(data):
            if line:
                self._report(line.decode(errors="replace"))
            else:
                self._is_done = True
        if not data:
            if not self._is_done:
                self._report("it has exited and receives no more events")
            self._end()

    def _end(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self._loop.forget(self._socket)
        self._socket.close()
        self._process.close()

    def _report(self, what: str) -> None:
        self._journal.say(f"--event-log-handler={self._name}: {what}")


def _live(name: str, origin: Mapping[str, str]) -> None:
    """Run as the handler's process until the agent closes its end of the socket. The socket is this
    process's stdin. stdout is reserved for the workers' output, so stdout and stderr both refer to
    the agent's stderr.
    """
    agent = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    _serve(name, agent, origin)


def _serve(name: str, agent: socket.socket, origin: Mapping[str, str]) -> None:
    """Pass events to the handler. Report problems to the agent, one per line, followed by an empty
    line.
    """
    told = False
    try:
        handle = handlers.load(name)
    except BaseException as error:
        agent.sendall(f"it can't be loaded: {_shown(error)}\n\n".encode())
        return
    with agent.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            try:
                handle({**json.loads(line), "agent": origin})
            except BaseException as error:
                if not told:
                    told = True
                    what = f"it raised {_shown(error)}; further errors are not shown"
                    agent.sendall(what.encode() + b"\n")
    agent.sendall(b"\n")


def _shown(error: BaseException) -> str:
    return plugins.one_line(error)[:300]
