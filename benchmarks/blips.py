"""How network blips affect healthy jobs: `python -m benchmarks.blips [--rounds 2] [--copies 2]`.

Each job has three nodes, which are `Lab` hosts with one worker each. The worker either just counts,
or repeatedly reduces a tensor with gloo. The endpoint is one host, three hosts, or an etcd on a
fourth host. All these jobs and one torchrun job run side by side in one network, and each blip
affects every job. A second network, where UDP is dropped, gets the same blips at the same time.

Blips occur about every 10 s. Each kind hits every node in turn, including coordinators:

    cut     the host's cable is pulled: both ways, or only for receiving (in) or sending (out)
    killed  the connections of its agents are reset at both ends (`ss -K`)
    reject  for 0.6 s, a firewall resets everything that its agents' peers send to it

A blip is harmless if no worker restarts or freezes and no job ends. The tables show how many jobs
out of how many were affected, by endpoint and worker, and list jobs whose coordinator was hit
separately. The columns are `restarted`, `frozen`, `gloo` (gloo failed in a worker) and `ended`. For
an affected job, the output of its agents during the blip is printed; `--keep` names a directory for
all output. A round takes a quarter of an hour. Needs root, ip, ss, iptables, etcd and torch.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks import results
from benchmarks.jobs import LAUNCHERS
from relight.sandbox.lab import Lab

NODES, REGISTER = ("node1", "node2", "node3"), "node4"
LENGTHS_S = (0.5, 1.0, 3.0, 5.0, 8.0)
WAYS = ("both", "in", "out")
PAUSE_S = 5.0
"""The wait after a blip. TCP retransmits the lost data 4.6 s after the end of an 8 s cut."""
REJECT_S = 0.6
PATIENCE_S, START_S = 60.0, 240.0
WORKERS = {
    "counts": """
import os, time
pid, count = os.getpid(), 0
while True:
    count += 1
    with open(f"{os.uname().nodename}.{pid}.count", "w") as file:
        file.write(str(count))
    time.sleep(0.2)
""",
    "gloo": """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
pid, count, one = os.getpid(), 0, torch.ones(1000)
while True:
    try:
        dist.all_reduce(one.fill_(1.0))
    except Exception as error:
        print("gloo has failed:", error, flush=True)
        raise
    count += 1
    with open(f"{os.uname().nodename}.{pid}.count", "w") as file:
        file.write(str(count))
    time.sleep(0.2)
""",
}


class Kind(NamedTuple):
    """A kind of job. `where` is its row in the table: the launcher, or the rendezvous endpoint."""

    where: str
    worker: str
    launcher: str = "relight"


KINDS = (
    Kind("one host", "counts"),
    Kind("three hosts", "counts"),
    Kind("etcd", "counts"),
    Kind("one host", "gloo"),
    Kind("three hosts", "gloo"),
    Kind("etcd", "gloo"),
    Kind("torchrun", "gloo", "torchrun"),
)


class Blip(NamedTuple):
    """A network fault on a host."""

    what: str
    way: str = ""
    length_s: float = 0.0

    def __str__(self) -> str:
        return f"cut {self.length_s:g} s, {self.way}" if self.what == "cut" else self.what


BLIPS = (
    *(Blip("cut", way, length_s) for length_s in LENGTHS_S for way in WAYS),
    Blip("killed"),
    Blip("reject"),
)


class Seen(NamedTuple):
    """A job's history so far."""

    restarted: int
    """Workers that have started."""
    frozen: int
    gloo: int


class Job:
    """The agents of one job, in their own directory; all are killed with the Lab."""

    def __init__(self, lab: Lab, kind: Kind, number: int, directory: Path) -> None:
        self.lab, self.kind, self.number, self.directory = lab, kind, number, directory
        self.begun = 0
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        directory.mkdir()
        (directory / "train.py").write_text(WORKERS[kind.worker])

    def __str__(self) -> str:
        return f"{self.kind.where}, {self.kind.worker} {self.number}"

    def start(self) -> None:
        """Start an agent on each node, after killing the agents of an earlier attempt."""
        self.kill()
        for path in self.directory.glob("*.count"):
            path.unlink()
        self.begun += 1
        port = 29400 + self.number
        endpoint = {
            "etcd": f"{self.lab[REGISTER].address}:2379",
            "three hosts": ",".join(f"{node}:{port}" for node in NODES),
        }.get(self.kind.where, f"{NODES[0]}:{port}")
        command = [
            *LAUNCHERS[self.kind.launcher],
            f"--rdzv-backend={'etcd' if self.kind.where == 'etcd' else 'c10d'}",
            f"--rdzv-endpoint={endpoint}",
            f"--rdzv-id=job{self.number}.{self.begun}",
            "--rdzv-conf=last_call_timeout=3",
            "--nnodes=2:3",
            f"--max-restarts={1 if self.kind.launcher == 'torchrun' else 100}",
            "train.py",
        ]
        hidden = ("PET_", "TORCHELASTIC_", "RELIGHT_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        environment |= {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environment["TMPDIR"] = str(self.directory)
        for node in NODES:
            with self.output(node).open("ab") as file:
                self.agents[node] = self.lab[node].start(
                    command, cwd=self.directory, env=environment, stdout=file, stderr=file
                )
            time.sleep(0.3)  # so that the first one coordinates if there is a registry

    def kill(self) -> None:
        """Kill the agents and the workers, because torchrun's workers outlive their agents."""
        for process in self.agents.values():
            process.kill()
            process.wait()
        for path in self.directory.glob("*.count"):
            pid = path.name.split(".")[1]
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cwd").samefile(self.directory):
                    os.kill(int(pid), signal.SIGKILL)

    def output(self, node: str) -> Path:
        """Return the path of the output of an agent and its worker."""
        return self.directory / f"{node}.txt"

    def text(self, node: str) -> str:
        """Return the output of an agent and its worker."""
        return self.output(node).read_text(errors="replace")

    def coordinator(self) -> str:
        """Return the node that was the last to report that it coordinates."""
        said = re.compile("this node (?:coordinates the group now|no longer coordinates)")
        for node in NODES:
            found = said.findall(self.text(node))
            if found and found[-1].endswith("now"):
                return node
        return NODES[0]

    def texts(self) -> dict[str, str]:
        """Return the output of each agent."""
        return {node: self.text(node) for node in NODES}

    def seen(self) -> Seen:
        """Return the job's history so far."""
        texts = self.texts().values()
        return Seen(
            len(list(self.directory.glob("*.count"))),
            sum(text.count("workers are frozen") for text in texts),
            sum(text.count("gloo has failed") for text in texts),
        )

    def counts(self) -> dict[str, int]:
        """Return the progress of the newest worker on each node."""
        newest: dict[str, Path] = {}
        for path in sorted(self.directory.glob("*.count"), key=os.path.getmtime):
            newest[path.name.partition(".")[0]] = path
        return {node: int(path.read_text() or 0) for node, path in newest.items()}

    def gets_on(self, before: dict[str, int]) -> bool:
        """Return whether a worker on each node has made progress or started since then."""
        return len(now := self.counts()) == len(NODES) and all(
            count != before.get(node) for node, count in now.items()
        )

    def has_ended(self) -> bool:
        """Return whether an agent has exited."""
        return any(process.poll() is not None for process in self.agents.values())

    def connections(self, node: str) -> set[tuple[str, str]]:
        """Return the local and remote ports of an agent's connections."""
        lines = run(self.lab, node, "ss", "-tnpH").splitlines()
        ends = [line.split()[3:5] for line in lines if f"pid={self.agents[node].pid}," in line]
        return {(port(mine), port(theirs)) for mine, theirs in ends}


def run(lab: Lab, host: str, *command: str) -> str:
    """Run a program on a host until it exits, and return its output."""
    process = lab[host].start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    output: str = process.communicate()[0]
    lab[host].processes.remove(process)
    return output


def port(address: str) -> str:
    """Return the port from an address printed by `ss`."""
    return address.rpartition(":")[2]


def cut(lab: Lab, victim: str, blip: Blip) -> None:
    """Cut a host off, and reconnect it."""
    if blip.way == "both":
        lab.cut(victim)
    for other in set(lab.hosts) - {victim}:
        if blip.way == "in":
            lab.block(other, victim)
        elif blip.way == "out":
            lab.block(victim, other)
    time.sleep(blip.length_s)
    lab.heal()


def kill_connections(lab: Lab, victim: str, jobs: list[Job]) -> None:
    """Reset the connections of all agents on a host."""
    pairs = {pair for job in jobs for pair in job.connections(victim)}
    chosen = " or ".join(f"( sport = :{mine} and dport = :{theirs} )" for mine, theirs in pairs)
    run(lab, victim, "ss", "-K", chosen)


def reject_connections(lab: Lab, victim: str, jobs: list[Job]) -> None:
    """Briefly reset all packets that reach a host from the peers of its agents."""
    listen = {port(line.split()[3]) for h in lab.hosts for line in listening(lab, h)}
    chosen = {theirs for job in jobs for _, theirs in job.connections(victim)} & listen
    rules = "\n".join(
        f"-{{how}} INPUT -p tcp --sport {each} -j REJECT --reject-with tcp-reset" for each in chosen
    )
    for how in "AD":
        for table in ("iptables", "ip6tables"):
            text = f"*filter\n{rules.format(how=how)}\nCOMMIT"
            run(lab, victim, "sh", "-c", f"echo '{text}' | {table}-restore --noflush")
        time.sleep(REJECT_S)


def listening(lab: Lab, host: str) -> list[str]:
    """Return the `ss` output for a host's listening ports."""
    return run(lab, host, "ss", "-tlnH").splitlines()


class Network:
    """One network, and the jobs that run in it.

    Args:
        udp: whether the network carries UDP.
        copies: the number of jobs of each kind; torchrun always has one.
        directory: where output is written.
        note: called for each job that a blip has hit, with the effects on it.
    """

    def __init__(self, udp: bool, copies: int, directory: Path, note: "Note") -> None:
        self.udp, self.directory, self.note = udp, directory, note
        directory.mkdir(parents=True)
        self.lab = Lab([*NODES, REGISTER])
        kinds = [kind for kind in KINDS for _ in range(copies if kind.launcher == "relight" else 1)]
        self.jobs = [
            Job(self.lab, kind, number, directory / f"job{number}")
            for number, kind in enumerate(kinds)
        ]

    def start(self) -> None:
        """Start all jobs, and wait until they are running."""
        if not self.udp:
            for host in self.lab.hosts:
                for table in ("iptables", "ip6tables"):
                    run(self.lab, host, table, "-A", "INPUT", "-p", "udp", "-j", "DROP")
        urls = ("http://0.0.0.0:2379", f"http://{self.lab[REGISTER].address}:2379")
        etcd = ["etcd", "--data-dir", str(self.directory / "etcd")]
        etcd += ["--listen-client-urls", urls[0], "--advertise-client-urls", urls[1]]
        with (self.directory / "etcd.log").open("wb") as log:
            self.lab[REGISTER].start(etcd, stdout=log, stderr=log)
        for job in self.jobs:
            job.start()
        self.until_all_run(START_S)

    def play(self) -> None:
        """Apply each blip to each node once."""
        for victim in NODES:
            for blip in BLIPS:
                self.hit(victim, blip)

    def hit(self, victim: str, blip: Blip) -> None:
        """Apply a blip to a host, and record how it affects each job."""
        before = [(job.coordinator() == victim, job.seen(), job.texts()) for job in self.jobs]
        if blip.what == "cut":
            cut(self.lab, victim, blip)
        elif blip.what == "killed":
            kill_connections(self.lab, victim, self.jobs)
        else:
            reject_connections(self.lab, victim, self.jobs)
        time.sleep(PAUSE_S)
        stuck = self.until_all_run()
        for job, (coordinates, seen, texts) in zip(self.jobs, before, strict=True):
            now = job.seen()
            costs = [name for name in Seen._fields if getattr(now, name) > getattr(seen, name)]
            costs += ["ended"] if job in stuck else []
            self.note(self.udp, job.kind, coordinates, blip, costs)
            if costs:
                role = ", the coordinator" * coordinates
                print(f"{job}, {self.directory.name}: {blip} of {victim}{role}: {', '.join(costs)}")
                for node in NODES:
                    for line in job.text(node)[len(texts[node]) :].splitlines():
                        if line.startswith(("relight:", "gloo has failed")):
                            print(f"    {node}: {line[:200]}", flush=True)
        for job in stuck:
            job.start()
        if stuck:
            self.until_all_run(START_S)

    def until_all_run(self, patience_s: float = PATIENCE_S) -> list[Job]:
        """Wait until the workers on all nodes make progress; return the jobs where they don't."""
        end = time.monotonic() + patience_s
        before = {job: job.counts() for job in self.jobs}
        waiting = list(self.jobs)
        while waiting and time.monotonic() < end:
            time.sleep(0.5)
            waiting = [job for job in waiting if not job.gets_on(before[job])]
            if all(job.has_ended() for job in waiting):
                break
        return waiting


Note = Callable[[bool, Kind, bool, Blip, list[str]], None]


def table(found: dict[tuple[bool, Kind, bool, Blip], list[list[str]]]) -> Iterator[str]:
    """Yield the lines of the tables."""
    for udp in (True, False):
        for coordinates in (False, True):
            hit = "the coordinator" if coordinates else "another node"
            yield f"\n{hit} is hit; UDP is {'carried' if udp else 'dropped'}\n"
            rows = []
            for blip in BLIPS:
                cells = []
                for kind in KINDS:
                    all_costs = found.get((udp, kind, coordinates, blip), [])
                    bad = Counter(cost for costs in all_costs for cost in costs)
                    what = "".join(f", {name} {count}" for name, count in bad.items())
                    cells.append(f"{sum(map(bool, all_costs))} of {len(all_costs)}{what}")
                rows.append(" | ".join([str(blip), *cells]))
            heads = " | ".join(["blip", *(f"{kind.where}, {kind.worker}" for kind in KINDS)])
            yield from results.table(heads, rows)


def main() -> None:
    """Apply all blips, and print the tables after each round."""
    parser = argparse.ArgumentParser(description="Count what network blips cost healthy jobs.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--copies", type=int, default=2, help="jobs of each kind, but one of torchrun"
    )
    parser.add_argument("--keep", type=Path, help="new directory for what the jobs print")
    options = parser.parse_args()
    found: dict[tuple[bool, Kind, bool, Blip], list[list[str]]] = defaultdict(list)

    def note(udp: bool, kind: Kind, coordinates: bool, blip: Blip, costs: list[str]) -> None:
        found[udp, kind, coordinates, blip].append(costs)

    with contextlib.ExitStack() as stack:
        directory = options.keep
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        networks = [
            Network(udp, options.copies, directory / ("udp" if udp else "no-udp"), note)
            for udp in (True, False)
        ]
        for network in networks:
            stack.enter_context(network.lab)
        pool = stack.enter_context(ThreadPoolExecutor(len(networks)))
        list(pool.map(Network.start, networks))
        for _ in range(options.rounds):
            list(pool.map(Network.play, networks))
            print(results.machine(), *table(found), sep="\n", flush=True)


if __name__ == "__main__":
    main()
