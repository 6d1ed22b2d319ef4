"""A load generator: one process simulates thousands of agents without workers.

Each simulated agent has its own connection, joins, reports ready, sends heartbeats, and responds to
`StopWorkers` like a real agent whose worker was stopped. There is one epoll loop, and there are no
threads. Messages are created and parsed by `relight.core`. Only heartbeat echoes are counted
without being parsed, because they are very numerous, and the generator must not be the
bottleneck.
"""

import errno
import heapq
import json
import os
import select
import socket
import statistics
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from relight.base import fields
from relight.core.failure import Failure
from relight.core.group.group_types import GroupSettings, Hello
from relight.core.group.messages import (
    Confirm,
    FromAgent,
    FromCoordinator,
    GenerationFormed,
    JobEnded,
    Join,
    NodeReady,
    StopWorkers,
)
from relight.core.link import heartbeat_rate, wire
from relight.core.ranks import NO_GENERATION

BEAT_S = heartbeat_rate.USUAL_S
_RETRY_S = 0.2
_DIALS_AT_ONCE = 64
_ECHO = b'{"type":"heartbeat","number":'
_length = struct.Struct(">I")
_DEAD = (errno.ECONNRESET, errno.EPIPE, errno.ECONNREFUSED)


class Traffic(NamedTuple):
    """The messages and bytes in one direction, excluding heartbeats, and the number of
    heartbeats.
    """

    messages: int
    bytes: int
    beats: int

    def minus(self, other: "Traffic") -> "Traffic":
        """Return the traffic since `other` was measured."""
        return Traffic(*(a - b for a, b in zip(self, other, strict=True)))


class Node:
    """One simulated agent."""

    __slots__ = ("buffer", "extra_s", "name", "number", "sent_at", "sock", "token")

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = os.urandom(8).hex()
        self.token = 0  # of its latest heartbeat
        self.sent_at = 0.0
        self.extra_s = 0.0  # as told in the latest echo
        self.buffer = b""
        self.sock: socket.socket | None = None


class Load:
    """Simulated agents that join one job.

    Args:
        address: the coordinator's address.
        job: the job's id.
        settings: the settings that the coordinator was started with.
        nodes: the number of agents.
        facts: the facts that each agent reports.
    """

    def __init__(
        self,
        address: tuple[str, int],
        job: str,
        settings: GroupSettings,
        nodes: int,
        facts: dict[str, str],
    ) -> None:
        self.nodes = [Node(number) for number in range(nodes)]
        self.formed: dict[int, dict[str, int]] = {}
        """Group ranks, by generation and node."""
        self.last_ready = 0.0
        self.counts: Counter[str] = Counter()
        self.echoes: list[float] = []
        """Seconds between a heartbeat and its echo."""
        self._address = address
        self._hello = fields.to_json(Hello(job=job, settings=settings))
        self._settings = settings
        self._facts = facts
        self._epoll = select.epoll()
        self._by_fd: dict[int, Node] = {}
        self._due: list[tuple[float, int, socket.socket]] = []  # a heap
        self._again: deque[tuple[float, Node]] = deque()
        self._sent = [0, 0, 0]
        self._got = [0, 0, 0]

    @property
    def sent(self) -> Traffic:
        """Return the traffic that the agents have sent so far."""
        return Traffic(*self._sent)

    @property
    def got(self) -> Traffic:
        """Return the traffic that the agents have received so far."""
        return Traffic(*self._got)

    def connect(self) -> None:
        """Connect all agents as simultaneously as one process can; each of them says hello
        immediately.
        """
        now = time.monotonic()
        self._again.extend((now, node) for node in self.nodes)

    def until(self, done: Callable[[], bool], limit_s: float) -> float:
        """Run the agents until a condition holds, and return the time when it does.

        Raises:
            RuntimeError: if it does not hold in time.
        """
        end = time.monotonic() + limit_s
        while not done():
            now = time.monotonic()
            if now > end:
                raise RuntimeError(f"not within {limit_s:.0f} s; {dict(self.counts)}")
            self._turn(now)
        return time.monotonic()

    def during(self, seconds: float) -> None:
        """Run the agents for a while."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, seconds + 60)

    def in_generation(self, number: int) -> bool:
        """Return whether all agents have been asked to start this generation's workers."""
        return len(self.formed.get(number, ())) == len(self.nodes)

    def late_echo_s(self) -> float:
        """Return the 99th percentile of the echo times."""
        return statistics.quantiles(self.echoes, n=100)[98]

    def close(self) -> None:
        """Close all connections."""
        for node in self.nodes:
            if node.sock is not None:
                node.sock.close()
        self._epoll.close()

    def _turn(self, now: float) -> None:
        for _ in range(_DIALS_AT_ONCE):
            if self._again and self._again[0][0] <= now:
                self._dial(self._again.popleft()[1])
        while self._due and self._due[0][0] <= now:
            due, number, sock = heapq.heappop(self._due)
            node = self.nodes[number]
            if node.sock is sock:
                self._beat(node)
                self._beat_again(node, max(due + BEAT_S + node.extra_s, now))
        next_due = min([queue[0][0] for queue in (self._due, self._again) if queue], default=now)
        for fd, event in self._epoll.poll(min(max(0.0, next_due - now), 0.05)):
            if event & select.EPOLLOUT:
                self._say_hello(self._by_fd[fd])
            else:
                self._read(self._by_fd[fd])

    def _dial(self, node: Node) -> None:
        node.sock = sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        node.extra_s = 0.0
        node.buffer = b""
        sock.setblocking(False)
        sock.connect_ex(self._address)
        self._by_fd[sock.fileno()] = node
        self._epoll.register(sock, select.EPOLLOUT)

    def _say_hello(self, node: Node) -> None:
        assert node.sock is not None
        if node.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._lost(node)
            return
        node.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._epoll.modify(node.sock, select.EPOLLIN)
        hello = {**self._hello, "nonce": os.urandom(32).hex(), "token": False}
        self._write(node, wire.GREETING + wire.encode(hello))

    def _read(self, node: Node) -> None:
        assert node.sock is not None
        try:
            data = node.sock.recv(65536)
        except OSError as error:
            if error.errno not in _DEAD:
                raise
            data = b""
        if not data:
            self._lost(node)
            return
        data = node.buffer + data
        place = 0
        if data.startswith(wire.GREETING):
            place = len(wire.GREETING)
            self._got[1] += place
        while len(data) - place >= 4:
            (length,) = _length.unpack_from(data, place)
            if len(data) - place - 4 < length:
                break
            body = data[place + 4 : place + 4 + length]
            place += 4 + length
            if body.startswith(_ECHO):
                self._got[2] += 1
                number, _, extra_s = body[len(_ECHO) : -1].partition(b',"extra_s":')
                node.extra_s = float(extra_s or 0)
                if int(number) == node.token:
                    self.echoes.append(time.monotonic() - node.sent_at)
            else:
                self._got[0] += 1
                self._got[1] += 4 + length
                self._take(node, json.loads(body))
        node.buffer = data[place:]

    def _take(self, node: Node, message: dict[str, Any]) -> None:
        self.counts[message["type"]] += 1
        if message["type"] == "hello":
            self._say(node, self._join(node))
            self._say(node, NodeReady(NO_GENERATION, 1, (), ()))
            self.last_ready = time.monotonic()
            self._beat(node)
            self._beat_again(node, time.monotonic() + BEAT_S)
            return
        match fields.message(FromCoordinator, message):
            case GenerationFormed(generation, place):
                self.formed.setdefault(generation.number, {})[node.name] = place.group_rank
            case StopWorkers(generation=generation):
                rank = self.formed.get(generation.number, {}).get(node.name, 0)
                self._say(node, NodeReady(generation, 1, (self._ended(node, rank),), ()))
                self.last_ready = time.monotonic()
            case JobEnded(reason=reason):
                raise RuntimeError(f"the coordinator ended the job: {reason}")
            case Confirm():
                raise RuntimeError("the coordinator confirmed what nobody announced")
            case _:
                pass

    def _join(self, node: Node) -> Join:
        settings = self._settings
        return Join(
            node=node.name,
            host=f"gpu-{node.number:05}",
            address="127.0.0.1",
            local_world_size=1,
            role="default",
            node_rank=-1,
            min_nodes=settings.min_nodes,
            max_nodes=settings.max_nodes,
            max_restarts=settings.max_restarts,
            facts=self._facts,
            announce=None,
        )

    @staticmethod
    def _ended(node: Node, rank: int) -> Failure:
        """Return an agent's report about a worker that it has stopped (`failures.shared`)."""
        return Failure(
            rank=rank,
            local_rank=0,
            host=f"gpu-{node.number:05}",
            pid=10_000 + node.number,
            exitcode=-15,
            at=-0.012345,
            stop_signal=15,
            report=None,
            last_lines=(),
            evidence="",
            log="",
            when="2026-01-01 12:00:00+0000",
        )

    def _say(self, node: Node, message: FromAgent) -> None:
        self._write(node, wire.encode(fields.to_json(message)))

    def _write(self, node: Node, data: bytes) -> None:
        self._sent[0] += 1
        self._sent[1] += len(data)
        self._send(node, data)

    def _beat(self, node: Node) -> None:
        node.token += 1
        node.sent_at = time.monotonic()
        self._sent[2] += 1
        body = b'{"type":"heartbeat","number":%d}' % node.token
        self._send(node, _length.pack(len(body)) + body)

    def _beat_again(self, node: Node, at: float) -> None:
        assert node.sock is not None
        heapq.heappush(self._due, (at, node.number, node.sock))

    def _send(self, node: Node, data: bytes) -> None:
        assert node.sock is not None
        try:
            if node.sock.send(data) != len(data):
                raise RuntimeError("the coordinator does not read")
        except OSError as error:
            if error.errno not in _DEAD:
                raise
            # Reading will reveal that the connection was closed.

    def _lost(self, node: Node) -> None:
        """Rejoin after the coordinator has closed a connection, as an agent does."""
        assert node.sock is not None
        self.counts["connections lost"] += 1
        self._epoll.unregister(node.sock)
        del self._by_fd[node.sock.fileno()]
        node.sock.close()
        node.sock = None
        self._again.append((time.monotonic() + _RETRY_S, node))
