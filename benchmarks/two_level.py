"""A prototype of heartbeats in two levels: `python -m benchmarks.two_level [--agents 1000]`.

Aggregators accept the agents' connections, and send the root a batch of the latest heartbeats every
`BATCH_S`. An agent gets an echo only after the root has acknowledged the batch with its heartbeat,
so an aggregator can't extend a lease (docs/decisions/0029-hundred-thousand-agents.md). Nothing
joins a group, and failures aren't handled. Prints the CPU time of the root and of the aggregators,
and how long echoes take.
"""

import argparse
import socket
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context

from benchmarks.load import Load
from benchmarks.scale import process_cpu_s
from relight.base.fields import Message
from relight.core.group.group_types import GroupSettings
from relight.core.link import heartbeat_rate
from relight.host.loop import Loop
from relight.net.connection import Connection, Security, dial
from relight.net.listener import Listener

BATCH_S = 0.25
WARM_UP_S = 5.0
MEASURE_S = 15.0
ALL_AGENTS = 100_000
"""The size of the group, which determines the heartbeat interval."""


class Root:
    """Acknowledges batches, and keeps the time of each agent's last heartbeat."""

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        self._loop = loop
        self._heard: dict[Connection, dict[int, tuple[int, float]]] = {}
        Listener(loop, sock, self, {"sender": "coordinator"}, Security())

    def opened(self, connection: Connection, hello: Message) -> None:
        """Record a new aggregator."""
        del hello
        self._heard[connection] = {}

    def received(self, connection: Connection, message: Message) -> None:
        """Acknowledge a batch."""
        now, heard = self._loop.now(), self._heard[connection]
        for agent, number in zip(message["agents"], message["numbers"], strict=True):
            if number > heard.get(agent, (0, 0.0))[0]:
                heard[agent] = number, now
        connection.send({"type": "acknowledged", "batch": message["batch"]})

    def closed(self, connection: Connection, reason: str) -> None:
        """Ignore the loss of an aggregator."""


class Aggregator:
    """Collects heartbeats, and echoes them once the root has acknowledged them."""

    def __init__(self, root: tuple[str, int], loop: Loop, sock: socket.socket) -> None:
        self._loop = loop
        self._agents: dict[Connection, int] = {}
        self._waiting: dict[Connection, int] = {}
        self._sent: dict[int, dict[Connection, int]] = {}
        self._batches = 0
        self._extra_s = heartbeat_rate.extra_s(ALL_AGENTS, 10.0)
        self._root = dial(loop, root, self, {"sender": "aggregator"}, Security())
        Listener(loop, sock, self, {"sender": "coordinator"}, Security())
        loop.call_after(BATCH_S, self._send_batch)

    def opened(self, connection: Connection, hello: Message) -> None:
        """Number a new agent."""
        del hello
        if connection is not self._root:
            self._agents[connection] = len(self._agents)

    def received(self, connection: Connection, message: Message) -> None:
        """Collect a heartbeat, or echo the heartbeats in an acknowledged batch."""
        if message["type"] == "heartbeat":
            self._waiting[connection] = message["number"]
        elif message["type"] == "acknowledged":
            for agent, number in self._sent.pop(message["batch"]).items():
                agent.send({"type": "heartbeat", "number": number, "extra_s": self._extra_s})

    def closed(self, connection: Connection, reason: str) -> None:
        """Ignore the loss of an agent."""

    def _send_batch(self) -> None:
        self._loop.call_after(BATCH_S, self._send_batch)
        batch, self._waiting = self._waiting, {}
        self._batches += 1
        self._sent[self._batches] = batch
        agents, numbers = [self._agents[each] for each in batch], list(batch.values())
        message = {"batch": self._batches, "agents": agents, "numbers": numbers}
        self._root.send({"type": "batch", **message})


def generate(address: tuple[str, int], agents: int) -> None:
    """Simulate agents, and print how long their echoes took."""
    load = Load(address, "bench", GroupSettings(1, 1, 0), agents, {})
    load.connect()
    load.during(WARM_UP_S)
    load.echoes.clear()
    load.during(MEASURE_S)
    echoes, lost = len(load.echoes) / MEASURE_S, load.counts["connections lost"]
    print(f"{echoes:.0f} echoes/s, 99 % within {load.late_echo_s():.2f} s, {lost} lost", flush=True)


def run(create: Callable[[Loop, socket.socket], object], sock: socket.socket) -> None:
    """Run a server until its process is terminated."""
    loop = Loop()
    server = create(loop, sock)
    loop.run_until(lambda: server is None)


def start(act: Callable[..., None], *arguments: object) -> int:
    """Call a function in a new process, which ends with this one, and return its process ID."""
    process = get_context("fork").Process(target=act, args=arguments, daemon=True)
    process.start()
    assert process.pid is not None
    return process.pid


def main() -> None:
    """Run the prototype, and print its costs."""
    parser = argparse.ArgumentParser(description="Measure heartbeats in two levels.")
    parser.add_argument("--aggregators", type=int, default=2)
    parser.add_argument("--agents", type=int, default=1000, help="connected to each aggregator")
    options = parser.parse_args()
    total = options.aggregators * options.agents
    sock = socket.create_server(("127.0.0.1", 0))
    pids = [start(run, Root, sock)]
    for _ in range(options.aggregators):
        own = socket.create_server(("127.0.0.1", 0), backlog=4096)
        pids.append(start(run, partial(Aggregator, sock.getsockname()), own))
        start(generate, own.getsockname(), options.agents)
    time.sleep(WARM_UP_S)
    before, since = [process_cpu_s(pid) for pid in pids], time.monotonic()
    time.sleep(MEASURE_S)
    wall_s = time.monotonic() - since
    used = [(process_cpu_s(pid) - cpu_s) / wall_s for pid, cpu_s in zip(pids, before, strict=True)]
    print(f"root: {used[0] / total * 1e6:.2f} µs/s per agent")
    print(f"aggregators: {sum(used[1:]) / total * 1e6:.1f} µs/s per agent")
    time.sleep(2)  # until the agents have printed their lines


if __name__ == "__main__":
    main()
