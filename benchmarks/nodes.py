"""Multi-node jobs, compared with torchrun: `python -m benchmarks.nodes [--only loss]`.

All nodes are agents on this machine with one worker each, which prints a line and sleeps. The
launchers alternate. Where torchrun spends most of the time in timeouts of about 30 s, it is sampled
3 times in parallel, with starts a few seconds apart. Results are medians. Benchmarks that need a
network that can be cut use the hosts of `relight sandbox`, and require root. Writes `nodes.json`,
`nodes.md` and `nodes.png` to `benchmarks/results/` (use `--out` for another directory).

torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because otherwise torch 2.13 ends the job
when a node joins.
"""

import contextlib
import os
import random
import re
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import results
from benchmarks.jobs import LAUNCHERS
from benchmarks.results import COLOURS
from relight.sandbox.lab import Lab

WORKER = 'echo "worker $RANK $WORLD_SIZE $$"; exec sleep 600'
PATIENCE_S = 100.0
NEVER_S = 60.0
LAST_CALL = "last_call_timeout=2"
SLOW_SAMPLES = 3
LOSSES = 100
PAIRS = 10
"""How many of the two-node jobs that repeatedly lose a node run at the same time."""
_STAGGER_S = 4.0
_ALONE = threading.Lock()
"""Held by measurements that must not overlap with other samples."""
_WORKER_LINE = re.compile(rb"worker (\d+) (\d+) (\d+)$")


class Worker(NamedTuple):
    """A worker that has started, and when its line arrived."""

    at: float
    rank: int
    world: int
    pid: int


class Node:
    """An agent and its output."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.lines: list[tuple[float, bytes]] = []
        self.workers: list[Worker] = []
        self._rest = b""

    def take(self, data: bytes, now: float) -> None:
        """Process a chunk of its output."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.lines.append((now, line))
            match = _WORKER_LINE.search(line)
            if match is not None:
                self.workers.append(Worker(now, *map(int, match.groups())))

    def kill(self) -> None:
        """Kill the agent and its workers, to simulate the loss of the machine."""
        self.process.kill()
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)


class Job:
    """The agents of one job, which are killed at the end of the `with` block.

    Args:
        launcher: `relight` or `torchrun`.
        nodes: the value of `--nnodes`.
        conf: the value of `--rdzv-conf`.
        lab: the Lab that contains the hosts; None if they are all this machine itself.
        endpoint: the host that serves the rendezvous endpoint.
    """

    def __init__(
        self, launcher: str, nodes: str, conf: str = "", lab: Lab | None = None, endpoint: str = ""
    ) -> None:
        self.launcher, self.lab = launcher, lab
        self.nodes: list[Node] = []
        self.port = 29400 if lab else free_port()
        self.directory = tempfile.mkdtemp(prefix="relight-bench-")
        self._selector = selectors.DefaultSelector()
        self._conf = conf
        self._flags = [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint or '127.0.0.1'}:{self.port}",
            "--rdzv-id=bench",
            f"--nnodes={nodes}",
            "--max-restarts=3",
        ]
        Path(self.directory, "worker.sh").write_text(WORKER)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill()
        self.read(0)  # process the remaining output of the last workers
        for node in self.nodes:
            node.kill()
            node.process.wait()
            assert node.process.stdout is not None
            node.process.stdout.close()
        self._selector.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, hosts: bool | None = None, on: str = "") -> Node:
        """Start an agent; `hosts` says whether it hosts the endpoint, or None to let it find
        out.
        """
        conf = [self._conf] if self._conf else []
        conf += [] if hosts is None else [f"is_host={int(hosts)}"]
        command = [*LAUNCHERS[self.launcher], *self._flags]
        command += [f"--rdzv-conf={','.join(conf)}"] if conf else []
        hidden = ("PET_", "TORCHELASTIC_", "RELIGHT_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        environment |= {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environment["TMPDIR"] = self.directory
        begin = self.lab[on].start if self.lab else subprocess.Popen
        process: subprocess.Popen[bytes] = begin(
            [*command, "--no-python", "sh", "worker.sh"],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        node = Node(process)
        self.nodes.append(node)
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, node)
        return node

    def until(self, done: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
        """Read the agents' output until a condition holds.

        Raises:
            TimeoutError: if it does not hold in time.
        """
        end = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > end:
                tails = [b"\n".join(line for _, line in node.lines[-8:]) for node in self.nodes]
                said = b"\n---\n".join(tails).decode(errors="replace")
                raise TimeoutError(f"{self.launcher}: not within {limit_s:.0f} s\n{said}")
            self.read(0.1)

    def until_run(
        self, nodes: list[Node], world: int, since: float, limit_s: float = PATIENCE_S
    ) -> float:
        """Wait until each node has a worker, in a group of this size, that has started after
        `since`. Return the time from `since` to the start of the last one.
        """
        began: list[float] = []

        def all_run() -> bool:
            began[:] = [
                node.workers[-1].at
                for node in nodes
                if node.workers and node.workers[-1].world == world and node.workers[-1].at > since
            ]
            return len(began) == len(nodes)

        self.until(all_run, limit_s)
        return max(began) - since

    def begin(self, count: int, world: int = 0) -> list[Node]:
        """Start this many agents, the first of which hosts the endpoint, and wait until all are
        running.
        """
        since = time.monotonic()
        nodes = [self.start(hosts=number == 0) for number in range(count)]
        self.until_run(nodes, world or count, since)
        return nodes

    def read(self, timeout_s: float) -> None:
        """Process the agents' output, waiting for it up to this long."""
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, 1 << 16)
            if data:
                key.data.take(data, time.monotonic())
            else:
                self._selector.unregister(key.fileobj)


def free_port() -> int:
    """Return a port that is currently free."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


# Functions that take samples. Each returns seconds.


def start_s(launcher: str) -> float:
    """Return the seconds from starting two agents with `--nnodes=2` to the last worker's line."""
    with Job(launcher, "2") as job:
        since = time.monotonic()
        return job.until_run([job.start(), job.start()], 2, since)


def start_alone_s(launcher: str) -> float:
    """Start one agent with `--nnodes=1:2`: from the start to the worker's line."""
    with Job(launcher, "1:2") as job:
        since = time.monotonic()
        return job.until_run([job.start()], 1, since)


def restart_s(launcher: str) -> float:
    """Kill a worker with kill -9 on two nodes with `--nnodes=1:4`: from then to both new lines."""
    with Job(launcher, "1:4") as job:
        nodes = job.begin(2)
        since = time.monotonic()
        os.kill(nodes[1].workers[-1].pid, signal.SIGKILL)
        return job.until_run(nodes, 2, since)


def noticed_s(launcher: str) -> float:
    """Like `loss_s`, but a worker on another node fails immediately, as with NCCL or gloo."""
    return loss_s(launcher, noticed=True)


def loss_s(launcher: str, *, noticed: bool = False) -> float:
    """Kill one of three nodes with `--nnodes=2:3`: from then to the new lines of the other two."""
    limit_s = PATIENCE_S if noticed or launcher == "relight" else NEVER_S
    with Job(launcher, "2:3") as job:
        nodes = job.begin(3)
        since = time.monotonic()
        nodes[2].kill()
        if noticed:
            os.kill(nodes[1].workers[-1].pid, signal.SIGKILL)
        try:
            return job.until_run(nodes[:2], 2, since, limit_s)
        except TimeoutError:
            if limit_s == NEVER_S:
                return float("inf")
            raise


def arrival_s(launcher: str, conf: str = "") -> float:
    """Add a third node to two running ones with `--nnodes=1:3`: from its start to all new lines."""
    with Job(launcher, "1:3", conf) as job:
        nodes = job.begin(2)
        with _ALONE:
            since = time.monotonic()
            return job.until_run([*nodes, job.start(hosts=False)], 3, since)


def cut_s(_: str) -> float:
    """Like `loss_s`, but a cable is pulled, so no connection is closed. relight only."""
    with hosts(["node1", "node2", "node3"]) as lab, Job("relight", "2:3", "", lab, "node1") as job:
        since = time.monotonic()
        nodes = [job.start(on=f"node{number}") for number in (1, 2, 3)]
        job.until_run(nodes, 3, since)
        since = time.monotonic()
        lab.cut("node3")
        return job.until_run(nodes[:2], 2, since)


def detections_s() -> list[float]:
    """Pull and reconnect cables at random moments between two heartbeats. Return the times from
    each cut to the line that reports the lost node on the coordinator's node.
    """
    names = [f"{kind}{pair}" for pair in range(PAIRS) for kind in ("host", "lost")]
    with hosts(names) as lab, ThreadPoolExecutor(PAIRS) as pool:
        results = list(pool.map(partial(_detect, lab), range(PAIRS)))
    return [value for result in results for value in result]


def _detect(lab: Lab, pair: int) -> list[float]:
    dice, values = random.Random(pair), []
    with Job("relight", "1:2", "", lab, f"host{pair}") as job:
        since = time.monotonic()
        host = job.start(on=f"host{pair}")
        nodes = [host, job.start(on=f"lost{pair}")]
        for _ in range(LOSSES // PAIRS):
            job.until_run(nodes, 2, since)
            pause = time.monotonic() + 0.5 + dice.random()
            job.until(partial(_is_past, pause))
            since = time.monotonic()
            lab.cut(f"lost{pair}")
            said = partial(_said, host, b"was lost", since)
            job.until(said)
            values.append(said()[0])
            lab.mend(f"lost{pair}")
    return values


def _is_past(when: float) -> bool:
    return time.monotonic() >= when


def _said(node: Node, text: bytes, since: float) -> list[float]:
    """Return when an agent printed some text, in seconds after `since`."""
    return [at - since for at, line in node.lines if at > since and text in line]


@contextlib.contextmanager
def hosts(names: list[str]) -> Iterator[Lab]:
    """Create hosts in network namespaces, which requires root."""
    with Lab(hosts=names) as lab:
        yield lab


# The table of benchmarks.


class Benchmark(NamedTuple):
    """A single benchmark. `slow` is set if torchrun takes half a minute, and `torchrun` is set if
    torchrun is measured at all.
    """

    name: str
    title: str
    sample: Callable[[str], float]
    slow: bool = False
    torchrun: bool = True


BENCHMARKS = (
    Benchmark("start", "launch of a 2-node job to its last worker's line", start_s),
    Benchmark(
        "alone", "launch of 1 node, --nnodes=1:2, to its worker's line", start_alone_s, slow=True
    ),
    Benchmark(
        "restart", "2 nodes, --nnodes=1:4, worker killed to new lines on both", restart_s, True
    ),
    Benchmark("loss", "3 nodes, --nnodes=2:3, one killed to new lines on the others", loss_s, True),
    Benchmark(
        "noticed", "the same, if a worker on another node fails as a result", noticed_s, True
    ),
    Benchmark("cut", "as two rows above, but the network connection is cut", cut_s, torchrun=False),
    Benchmark(
        "arrival", "third node joins 2, --nnodes=1:3, launch to new lines on all", arrival_s, True
    ),
    Benchmark("arrival-2", "the same with last_call_timeout=2", partial(arrival_s, conf=LAST_CALL)),
)

Samples = dict[str, list[float]]


def measure(benchmark: Benchmark, rounds: int) -> Samples:
    """Return samples for both launchers."""
    samples: Samples = {"relight": [], "torchrun": []}
    both = benchmark.torchrun and not benchmark.slow
    if both:
        benchmark.sample("torchrun")  # a warm-up run that fills the machine's cache
    for number in range(rounds):
        for name in sorted(samples, reverse=bool(number % 2)):
            if name == "relight" or both:
                samples[name].append(benchmark.sample(name))
    if benchmark.torchrun and benchmark.slow:
        with ThreadPoolExecutor(SLOW_SAMPLES) as pool:
            values = pool.map(partial(_slow_sample, benchmark), range(SLOW_SAMPLES))
            samples["torchrun"] = list(values)
    return samples


def _slow_sample(benchmark: Benchmark, number: int) -> float:
    time.sleep(number * _STAGGER_S)
    return benchmark.sample("torchrun")


def main() -> None:
    """Run the benchmarks, print the table, and write the results."""
    names = [*(each.name for each in BENCHMARKS), "detection"]
    parser = results.arguments("Measure jobs of several nodes side by side.")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each; default 5")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    found: dict[str, Samples] = {}
    for benchmark in BENCHMARKS:
        if benchmark.name in options.only:
            samples = found[benchmark.name] = measure(benchmark, options.rounds)
            print(f"{benchmark.title}: {samples}", flush=True)
    detections = sorted(detections_s()) if "detection" in options.only else []
    finite = {
        key: {
            name: [v if v < float("inf") else None for v in values] for name, values in each.items()
        }
        for key, each in found.items()
    }
    content = {**finite, "detection": {"relight": [round(value, 3) for value in detections]}}
    text = results.write(options.out, "nodes", content, _as_text(found, detections))
    _plot(found, detections, options.out)
    print(f"\n{text}\nwritten to {options.out}")


def _as_text(found: dict[str, Samples], detections: list[float]) -> list[str]:
    lines = [
        "Agents on one machine, a worker each; medians of so many samples, least and most in "
        f"brackets. {results.machine()}",
        "",
        *results.table(
            " | relight | torchrun | relight is better by",
            (_as_row(each, found[each.name]) for each in BENCHMARKS if each.name in found),
        ),
    ]
    if detections:
        lines += [
            "",
            f"The network connection of a node is cut {len(detections)} times; the coordinator "
            "reports the lost node after "
            f"{statistics.median(detections):.2f} s in the median, "
            f"{detections[int(0.99 * len(detections)) - 1]:.2f} s in 99 of 100 cases, "
            f"{detections[-1]:.2f} s at most.",
        ]
    return lines


def _as_row(benchmark: Benchmark, samples: Samples) -> str:
    ours, theirs = samples.values()
    return f"{benchmark.title} | {_cell(ours)} | {_cell(theirs)} | {results.times(ours, theirs)}"


def _cell(values: list[float]) -> str:
    if not values:
        return "not measured"
    if results.is_never(values):
        return f"not within {NEVER_S:.0f} s ({len(values)})"
    return results.spread(values, unit=" s", count=True)


def _plot(found: dict[str, Samples], detections: list[float], folder: str) -> None:
    figure, (bars, steps) = results.plots((3, 2), (10, 3.6))
    drawn = results.bars(bars, list(found.values()), 0.36, limit=NEVER_S)
    bars.set_yscale("log")
    bars.set_ylabel("seconds")
    bars.set_xticks(range(len(found)), list(found), rotation=20)
    bars.legend(list(drawn.values()), list(drawn), fontsize=8, frameon=False)
    shares = [100 * (number + 1) / len(detections) for number in range(len(detections))]
    steps.step(detections, shares, where="post", color=COLOURS["relight"])
    steps.axvline(1.5, color="black", linewidth=0.8, linestyle=":")
    steps.set_xlim(left=0)
    steps.set_xlabel("seconds from the loss of a node until relight says so", fontsize=8)
    steps.set_ylabel("% of losses", fontsize=8)
    results.save(figure, folder, "nodes")


if __name__ == "__main__":
    main()
