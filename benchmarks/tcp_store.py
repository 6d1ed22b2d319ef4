"""Operations a second of torch's TCPStore client against relight's server and against torch's.

    python -m benchmarks.tcp_store [--clients 1 16 128] [--seconds 1] [--rounds 5]

Every client is a process of its own, so that no interpreter lock stands between them. It repeats
`set`, `get` and `add` on keys of its own. Both servers run all the time and are measured in turns.
Where clients and server share few processors, the clients are the bottleneck. So the table also has
the processor time that the server spends for an operation, which bounds what it can do.
"""

import argparse
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from datetime import timedelta
from typing import NamedTuple

SERVERS = ("relight", "torch")
OPERATIONS = 3  # of a turn of a client: set, get, add


class Sample(NamedTuple):
    """One measurement of one server."""

    rate: float
    """Operations a second, of all clients together."""
    busy_s: float
    """Processor time of the server for an operation."""


class Row(NamedTuple):
    """The medians with one number of clients: operations a second, and server's s an operation."""

    clients: int
    relight: float
    torch: float
    relight_busy_s: float
    torch_busy_s: float


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Measure relight's TCPStore server and torch's.")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements; the median counts")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        {"relight": _serve_relight, "torch": _serve_torch}[options.serve]()
        return
    print("clients  relight/s    torch/s  ratio  µs an operation: relight  torch")
    for row in measure(options.clients, options.seconds, options.rounds):
        print(
            f"{row.clients:>7}{row.relight:>11,.0f}{row.torch:>11,.0f}"
            f"{row.relight / row.torch:>7.2f}"
            f"{row.relight_busy_s * 1e6:>26.1f}{row.torch_busy_s * 1e6:>7.1f}"
        )


def measure(counts: list[int], seconds: float, rounds: int) -> list[Row]:
    """Return a row for each number of clients.

    Args:
        counts: the numbers of clients.
        seconds: how long one sample takes.
        rounds: samples of each server; the median counts.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch.distributed  # noqa: F401  # once, before the clients are forked

    servers = {name: Server(name) for name in SERVERS}
    rows = []
    for count in counts:
        clients = Clients(count, [server.port for server in servers.values()])
        samples: dict[str, list[Sample]] = {name: [] for name in SERVERS}
        for _ in range(rounds):
            for number, (name, server) in enumerate(servers.items()):
                before = server.busy_s()
                operations = clients.work(number, seconds)
                busy_s = (server.busy_s() - before) / operations
                samples[name].append(Sample(operations / seconds, busy_s))
        clients.close()
        rates = [statistics.median(s.rate for s in samples[name]) for name in SERVERS]
        busy = [statistics.median(s.busy_s for s in samples[name]) for name in SERVERS]
        rows.append(Row(count, *rates, *busy))
    for server in servers.values():
        server.close()
    return rows


class Server:
    """A server in a process of its own; it answers a line with its processor time."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tcp_store", "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self.port = int(self._line())

    def busy_s(self) -> float:
        """Return the processor time that it has used so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return float(self._line())

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _serve_relight() -> None:
    from relight.host.loop import Loop
    from relight.net.store_port import StorePort

    loop = Loop()
    store = StorePort(loop, "127.0.0.1", 0, served=True)
    print(store.port, flush=True)
    ended = False

    def answer() -> None:
        nonlocal ended
        ended = not os.read(0, 1)
        print(time.process_time(), flush=True)

    loop.on_readable(0, answer)
    loop.run_until(lambda: ended)
    loop.forget(0)
    store.close()
    loop.close()


def _serve_torch() -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    while sys.stdin.readline():
        print(time.process_time(), flush=True)


class Clients:
    """Processes that are connected to all servers and work when they are told to."""

    def __init__(self, count: int, ports: list[int]) -> None:
        self._pids: list[int] = []
        self._lines: list[socket.socket] = []
        for number in range(count):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if not pid:
                try:
                    for line in (ours, *self._lines):
                        line.close()
                    _be_client(number, ports, theirs)
                finally:
                    os._exit(1)
            theirs.close()
            self._pids.append(pid)
            self._lines.append(ours)
        for line in self._lines:
            assert line.recv(1)

    def work(self, server: int, seconds: float) -> int:
        """Let all work with one of the servers; return how many operations they did."""
        for line in self._lines:
            line.send(struct.pack("=Bd", server, seconds))
        return sum(struct.unpack("=Q", line.recv(8))[0] for line in self._lines)

    def close(self) -> None:
        """End them."""
        for line in self._lines:
            line.close()
        for pid in self._pids:
            os.waitpid(pid, 0)


def _be_client(number: int, ports: list[int], line: socket.socket) -> None:
    from torch.distributed import TCPStore

    patience = timedelta(seconds=60)
    stores = [TCPStore("127.0.0.1", p, wait_for_workers=False, timeout=patience) for p in ports]
    text, count, value = f"text/{number}", f"count/{number}", "x" * 64
    line.send(b"+")
    while order := line.recv(9):
        server, seconds = struct.unpack("=Bd", order)
        store, turns, end = stores[server], 0, time.monotonic() + seconds
        while time.monotonic() < end:
            store.set(text, value)
            store.get(text)
            store.add(count, 1)
            turns += 1
        line.send(struct.pack("=Q", turns * OPERATIONS))


if __name__ == "__main__":
    main()
