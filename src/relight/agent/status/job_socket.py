"""The socket through which commands run by the same user on this machine query a job's state.

A client sends one line. An empty line requests the snapshot of this node. Any other line is a
`Question` from core/status/snapshot in JSON, wrapped in a `ClusterQuery` to query all
nodes. The agent sends the response and closes the connection. A client that follows the events
receives each event as it happens, and its connection is closed when the job ends. The agent never
waits for a client.

The socket is created once the job has been running for a second.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from relight.agent.status import answers
from relight.agent.status.fan_out import OpenQuestions
from relight.agent.status.view import ServedJob
from relight.core.group.messages import Answer, NodeAnswered, Question
from relight.events.event_types import LoggedEvent
from relight.host import files, user_sockets
from relight.host.descriptors import receive
from relight.host.loop import Loop
from relight.host.user_sockets import JOBS, OF_JOB
from relight.processes.running_jobs import JobDirectory

_MAX_QUESTION = 4096
_MAX_CLIENTS = 16
_BUFFER = 1 << 20
"""Requested size of the kernel's send buffer in bytes. Most responses fit into it."""
_MAX_UNSENT = 1 << 20
"""Maximum number of bytes queued for a client that follows the events."""
_LIMIT_S = 5.0
"""Time limit for a client, unless it follows the events."""


class JobSocket:
    """Serves one agent's snapshot.

    Args:
        job: the agent's job.

    Raises:
        OSError: if the directory or the socket can't be created.
    """

    def __init__(self, job: ServedJob) -> None:
        self._job, self._loop = job, job.loop
        self._clients: set[_Connection] = set()
        self._open = OpenQuestions(job.loop, job.node)
        directory = user_sockets.directory(job.config.command.env.variables, JOBS)
        self.directory = os.path.dirname(directory)
        self.why_elsewhere = files.why_elsewhere(self.directory)
        """Why the socket isn't in the usual directory, or an empty string if it is."""
        self._path = os.path.join(directory, job.id + OF_JOB)
        self._listener = user_sockets.listen(self._path)
        self._loop.on_readable(self._listener, self._accept)
        job.node.on_question = self._on_question

    def close(self) -> None:
        """Remove the socket, and save the job's last snapshot."""
        variables = self._job.config.command.env.variables
        with suppress(OSError):  # the disk may be full, which doesn't affect the job itself
            # This comes first, for clients that find no socket.
            JobDirectory(variables).keep(answers.snapshot(self._job))
        self._loop.forget(self._listener)
        self._listener.close()
        for client in list(self._clients):
            client.close()
        with suppress(OSError):  # it has already been removed
            os.unlink(self._path)

    def answer(self, question: bytes, reply: Callable[[bytes, bool], None]) -> None:
        """Answer a client's request line by calling `reply`, either immediately or later. The
        arguments of `reply` are the response and whether the client follows the events.
        """
        of_all = answers.for_all_nodes(question)
        if of_all is not None:
            self._open.ask(of_all, lambda answer: reply(answer, False))
            return
        if self._publish not in (listeners := self._job.journal.listeners):
            listeners.append(self._publish)
        answers.answer(self._job, question, reply)

    def forget(self, client: "_Connection") -> None:
        """Drop a client that has been served."""
        self._clients.discard(client)

    def _on_question(self, message: Question | NodeAnswered) -> None:
        """Answer another node's query, or process a reply from another node."""
        if isinstance(message, Question):
            self._loop.run_guarded(lambda: self._answer_node(message), "a question of another node")
        else:
            self._open.on_answer(message)

    def _publish(self, recorded: LoggedEvent) -> None:
        following = [client for client in self._clients if client.follows]
        if following:
            line = answers.event_line(recorded)
            for client in following:
                client.add(line)

    def _answer_node(self, question: Question) -> None:
        def reply(text: str) -> None:
            self._job.node.link.send(Answer(question.number, text))

        answers.answer_node(self._job, question.question, reply)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        own = user_sockets.peer(connection).user in (os.getuid(), 0)
        if own and len(self._clients) < _MAX_CLIENTS:
            self._clients.add(_Connection(self._loop, self, connection))
        else:
            connection.close()


class _Connection:
    """A client's connection. The client sends one line and receives the response.

    Attributes:
        follows: whether the client receives each new event.
    """

    def __init__(self, loop: Loop, server: JobSocket, connection: socket.socket) -> None:
        self.follows = False
        self._loop, self._server, self._socket = loop, server, connection
        self._question, self._answer = bytearray(), b""
        self._closed = False
        self._limit = loop.call_after(_LIMIT_S, self.close)
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        loop.on_readable(connection, self._receive)

    def close(self) -> None:
        self._closed = True
        self._limit.cancel()
        self._loop.forget(self._socket)
        self._socket.close()
        self._server.forget(self)

    def add(self, line: bytes) -> None:
        """Send another line. A client that doesn't read its events is disconnected."""
        if len(self._answer) > _MAX_UNSENT:
            self.close()
        else:
            self._answer += line
            self._send()

    def _receive(self) -> None:
        data = receive(self._socket, _MAX_QUESTION)
        if data is None:
            return
        self._question += data
        if not data or len(self._question) > _MAX_QUESTION:
            self.close()
        elif b"\n" in data and not self.follows:
            self._loop.on_readable(self._socket, None)
            question = bytes(self._question).partition(b"\n")[0]
            ask = partial(self._server.answer, question, self._reply)
            if not self._loop.run_guarded(ask, "a question about the job"):
                self.close()

    def _reply(self, answer: bytes, follows: bool) -> None:
        if self._closed:
            return
        self._answer, self.follows = answer, follows
        if follows:
            self._limit.cancel()
            self._loop.on_readable(self._socket, self._receive)  # to notice a disconnect
        self._send()

    def _send(self) -> None:
        try:
            sent = self._socket.send(self._answer)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        self._answer = self._answer[sent:]
        if self._answer or self.follows:
            self._loop.on_writable(self._socket, self._send if self._answer else None)
        else:
            self.close()
