"""Finds `relight run` jobs on this machine through their agents' sockets, and through the records
of finished jobs.

The sockets and the records are in a directory that only its user can enter:
`$XDG_RUNTIME_DIR/relight/jobs`, or `/tmp/relight-UID/jobs` (host/user_sockets). Each agent that has
been running for a second has a socket in that directory, `NAME-PID.sock`. Each of the last 100
finished jobs has a file in it, `NAME-PID.json`. If an agent is killed, its socket remains until a
process that lists jobs removes it.
"""

import contextlib
import json
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from relight.base import fields
from relight.base.package import __version__
from relight.base.values import whole
from relight.core.status import node_stacks
from relight.core.status.node_stacks import NodeStacks
from relight.core.status.snapshot import (
    ENDED,
    ClusterQuery,
    EventsAfter,
    NodeAnswer,
    NodeAnswers,
    NodeSnapshot,
    Output,
    Question,
    Stacks,
    WholeJob,
)
from relight.host import files, user_sockets
from relight.host.user_sockets import JOBS, OF_JOB
from relight.processes import agent_processes

_ENDED, _TOKEN = ".json", ".token"
_MAX_ENDED = 100
_TIMEOUT_S = 3.0
MAX_BYTES = 32 << 20
"""Maximum size of a response in bytes."""
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


class SilentJob(NamedTuple):
    """A job whose agent does not respond."""

    id: str
    name: str
    pid: int


class JobDirectory:
    """The directory with this user's jobs.

    Args:
        variables: the environment.

    Raises:
        OSError: if it can't be created, or if other users can enter it.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.path = user_sockets.directory(variables, JOBS)
        self._unreadable: dict[str, str] = {}
        """The relight versions of agents, by job, whose snapshots this version can't read."""

    def ids(self) -> set[str]:
        """Return the ids of running and finished jobs. The agents are not queried, so some of them
        may have been killed.
        """
        return {*self._names(OF_JOB), *self._names(_ENDED)}

    def running(self) -> list[NodeSnapshot]:
        """Return the snapshots of all agents that respond, newest first."""
        found = filter(None, map(self.ask, self._names(OF_JOB)))
        return sorted(found, key=lambda each: each.started, reverse=True)

    def ended(self) -> list[NodeSnapshot]:
        """Return the last snapshots of finished jobs, newest first."""
        found = filter(None, map(self._read, self._names(_ENDED)))
        return sorted(found, key=lambda each: each.taken, reverse=True)

    def find(self, job: str) -> NodeSnapshot | None:
        """Return the snapshot of a job that is running or has finished."""
        return (self.ask(job) or self._read(job)) if is_id(job) else None

    def is_over(self, job: str) -> bool:
        """Return whether a job has ended and left a record. The job's agent is not queried."""
        return job in self._names(_ENDED) and job not in self._names(OF_JOB)

    def ask(self, job: str) -> NodeSnapshot | None:
        """Query a job's agent. Return its response, or None if it is missing or invalid."""
        answer = self._answer(job, b"\n")
        found = read_snapshot(answer)
        if found is None and answer:
            self._unreadable[job] = _version_in(answer)
        return found

    def silent(self, answered: Collection[str]) -> list[SilentJob]:
        """Return the jobs whose agents are alive but have not responded, because they are stopped
        or slow.
        """
        found = []
        for job in self._names(OF_JOB):
            name, _, number = job.rpartition("-")
            pid = whole(number)
            if job not in answered and pid is not None and agent_processes.lives(pid):
                found.append(SilentJob(job, name, pid))
        return found

    def silent_pid(self, job: str) -> int:
        """Return the pid of a job's agent if the agent is alive but has not responded, or 0
        otherwise.
        """
        return next((each.pid for each in self.silent(()) if each.id == job), 0)

    def explain_silence(self, job: str, pid: int) -> tuple[str, str]:
        """Explain why a job's agent is alive but has not responded, and what to do about it."""
        agent = f"its agent (pid {pid})"
        if job not in self._unreadable:
            why = f"{agent} is not responding: it is suspended, or this machine is very busy"
            return why, f"if it is suspended, resume it with kill -CONT {pid}"
        theirs = self._unreadable[job] or "another version of relight"
        why = f"{agent} runs {theirs}, whose responses relight {__version__} can't read"
        return why, "use the relight command of that version; the job is not affected"

    def answers_or_lives(self, job: str) -> bool:
        """Return whether a job's agent exists, even if it doesn't respond."""
        return self.ask(job) is not None or bool(self.silent_pid(job))

    def find_whole(self, job: str) -> WholeJob | None:
        """Return a job's state on all its nodes, or only on this node if the job has finished or
        has only one node.
        """
        own = self.find(job)
        if own is None or own.nodes == 1 or own.state == ENDED:
            return None if own is None else WholeJob((own,))
        others, silent = list[NodeSnapshot](), list[str]()
        for host, answer in self._query_all_nodes(job, None):
            found = None if answer is None else read_snapshot(answer)
            if found is None:
                silent.append(host)
            elif (found.host, found.id, found.started) != (own.host, own.id, own.started):
                others.append(found)
        return WholeJob((own, *sorted(others, key=_place)), tuple(silent))

    def output(self, job: str, question: Output) -> str:
        """Return a worker's latest output, or an empty string if its agent doesn't respond."""
        return self._answer(job, _line(question)).decode(errors="replace")

    def output_elsewhere(self, job: str, question: Output) -> str:
        """Return a rank's latest output, no matter which node the rank is on."""
        found = self._query_all_nodes(job, question)
        return next((each.answer for each in found if each.answer), "")

    def events(self, job: str, question: EventsAfter) -> Iterator[str]:
        """Return the lines of the events that an agent has in memory, followed by new events if the
        request asks for them. The result is empty if the agent doesn't respond.
        """
        connection = self._connect(job)
        if connection is None:
            return
        with connection, contextlib.suppress(OSError):
            connection.sendall(_line(question))
            if question.follow:
                connection.settimeout(None)
            with connection.makefile("r", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    yield line.rstrip("\n")

    def events_everywhere(self, job: str, number: int) -> list[tuple[str, list[str]]]:
        """Return each node's host and the lines of the events in its agent's memory whose numbers
        are above the given one. The list is empty for a node that doesn't respond.
        """
        found = self._query_all_nodes(job, EventsAfter(number, follow=False))
        return [(each.host, (each.answer or "").splitlines()) for each in found]

    def stacks(self, job: str) -> list[tuple[str, NodeStacks | None]]:
        """Return each node's name and the stacks of its workers, or None instead of the stacks if
        the node doesn't respond. The list is empty if this machine's agent doesn't respond.
        """
        found = [(each.host, each.answer) for each in self._query_all_nodes(job, Stacks())]
        if not found:  # a single-node job, or one without a coordinator
            own = self._answer(job, _line(Stacks())).decode(errors="replace")
            found = [(socket.gethostname(), own)] if own else []
        names = node_stacks.numbered(host for host, _ in found)
        return [
            (name, node_stacks.read(answer)) for name, (_, answer) in zip(names, found, strict=True)
        ]

    def keep(self, snapshot: NodeSnapshot) -> None:
        """Save the last snapshot of a job, and remove the oldest snapshots if there are more than
        100.

        Raises:
            OSError: if it can't be written.
        """
        path = os.path.join(self.path, snapshot.id + _ENDED)
        files.replace(path, json.dumps(fields.to_json(snapshot)))
        paths = [os.path.join(self.path, name + _ENDED) for name in self._names(_ENDED)]
        for old in files.newest_first(paths)[_MAX_ENDED:]:
            with contextlib.suppress(OSError):
                os.unlink(old)

    def make_token(self, job: str, token: str) -> str:
        """Write the token of the status page that this process serves to a file, and return the
        file's path. Also remove the tokens of pages whose processes were killed.

        Raises:
            OSError: if it can't be written.
        """
        for name in self._names(_TOKEN):
            of, _, pid = name.rpartition(".")
            runs = os.path.exists(os.path.join(self.path, of + OF_JOB))
            if not runs and pid.isdecimal() and not agent_processes.lives(int(pid)):
                self.remove_token(os.path.join(self.path, name + _TOKEN))
        path = os.path.join(self.path, f"{job}.{os.getpid()}{_TOKEN}")
        files.replace(path, token)
        return path

    def remove_token(self, path: str) -> None:
        """Remove a file created by `make_token`."""
        with contextlib.suppress(OSError):
            os.unlink(path)

    def forget(self, job: str) -> None:
        """Remove a job's files."""
        for ending in (OF_JOB, _ENDED):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.path, job + ending))

    def _query_all_nodes(self, job: str, question: Question | None) -> tuple[NodeAnswer, ...]:
        """Return the nodes' answers to a question, or their snapshots without a question."""
        text = "" if question is None else _line(question).decode().strip()
        try:
            found = fields.decode(self._answer(job, _line(ClusterQuery(text))))
            answers: NodeAnswers = fields.record(NodeAnswers, found)
        except fields.Malformed:
            return ()
        return answers.nodes

    def _names(self, ending: str) -> list[str]:
        return [
            name.removesuffix(ending) for name in os.listdir(self.path) if name.endswith(ending)
        ]

    def _connect(self, job: str) -> socket.socket | None:
        return user_sockets.connect(os.path.join(self.path, job + OF_JOB), _TIMEOUT_S)

    def _answer(self, job: str, question: bytes) -> bytes:
        connection = self._connect(job)
        if connection is None:
            return b""
        data = bytearray()
        with connection, contextlib.suppress(OSError):
            connection.sendall(question)
            while (more := connection.recv(1 << 20)) and len(data) < MAX_BYTES:
                data += more
            return bytes(data)
        return b""

    def _read(self, job: str) -> NodeSnapshot | None:
        try:
            with files.opened(os.path.join(self.path, job + _ENDED)) as file:
                return read_snapshot(file.read(MAX_BYTES))
        except OSError:
            return None


def is_id(text: str) -> bool:
    """Return whether a string is a valid job id, which becomes part of a path."""
    return bool(text) and set(text) <= _LETTERS and not text.startswith(".")


def _line(question: Question) -> bytes:
    return json.dumps(fields.to_json(question)).encode() + b"\n"


def _place(job: NodeSnapshot) -> tuple[bool, int]:
    """Return a node's sort key, which orders nodes by number, with spares last."""
    return job.node < 0, job.node


def read_snapshot(data: bytes | str) -> NodeSnapshot | None:
    """Parse a snapshot, or return None if it is invalid."""
    try:
        found = fields.record(NodeSnapshot, fields.decode(data))
    except fields.Malformed:
        return None
    return found if isinstance(found, NodeSnapshot) else None


def _version_in(answer: bytes) -> str:
    """Return the relight version in a response of unknown format, or an empty string."""
    try:
        found = fields.decode(answer)
    except fields.Malformed:
        return ""
    version = found.get("version") if isinstance(found, dict) else None
    return f"relight {fields.fit(version, 'name')}" if isinstance(version, str) and version else ""
