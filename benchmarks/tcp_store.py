"""Operations per second of torch's TCPStore client, with relight's server and with torch's.

    python -m benchmarks.tcp_store [--clients 1 16 128] [--seconds 1] [--rounds 5]

Every client is a separate process, so that they don't compete for an interpreter lock. Each repeats
`set`, `get` and `add` on its own keys. Both servers are always running, and are measured
alternately. If clients and server share few processors, the clients are the bottleneck. The table
therefore also contains the server's CPU time per operation, which limits its throughput.
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
OPERATIONS = 3  # per iteration of a client: set, get, add


class Sample(NamedTuple):
    """One measurement of a server."""

    rate: float
    """Operations per second, summed over all clients."""
    busy_s: float
    """The server's CPU time per operation."""


class Row(NamedTuple):
    """The medians for a number of clients: operations per second, and server seconds per
    operation.
    """

    clients: int
    relight: float
    torch: float
    relight_busy_s: float
    torch_busy_s: float


def main() -> None:
    """Run the benchmark, and print the table."""
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
        seconds: the duration of a sample.
        rounds: the number of samples of each server. The median is reported.
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
    """A server in a separate process; for each line that it receives, it responds with its CPU
    time.
    """

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tcp_store", "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self.port = int(self._line())

    def busy_s(self) -> float:
        """Return the CPU time that the server has used so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return float(self._line())

    def close(self) -> None:
        """End the server process."""
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
    """Client processes that are connected to all servers, and run operations on request."""

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
        """Let all clients use one of the servers, and return how many operations they completed."""
        for line in self._lines:
            line.send(struct.pack("=Bd", server, seconds))
        return sum(struct.unpack("=Q", line.recv(8))[0] for line in self._lines)

    def close(self) -> None:
        """End the client processes."""
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
