"""Kill and stop parts of whole jobs at random moments: `python -m tests.chaos --runs 1000`.

A play is a job with 1 to 4 nodes on this machine, whose workers start all kinds of children.
Agents, the processes between them and their workers, workers, and children receive SIGKILL,
SIGTERM, or SIGSTOP (followed by SIGCONT a while later). Then the workers are asked to end.
Afterwards,

    every agent must end within a bounded time,
    with exit code 0, unless it was killed itself (-9) or asked to end (143),
    no process that it started may be left,
    and nothing may be left in TMPDIR.

The seed determines the play, although the moments vary with the machine: `--seed N` repeats it.
"""

import argparse
import concurrent.futures
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

MEETINGS = ("c10d", "hosts", "file")
END_S = 60.0
UP_S = 20.0
LOST_AFTER_S = 2.0
"""In plays that are not `patient`, a node is not lost if its agent is stopped for less."""
GONE_S = 3.0
"""Normally within a second; the rest is for a machine that is busy with other plays."""
WORKER = """
import os, subprocess, sys, time
mark, stop = sys.argv[1:]
subprocess.Popen(["sleep", mark])
subprocess.Popen(["setsid", "sleep", mark])
subprocess.run(["sh", "-c", f"setsid sh -c 'sleep {mark} &' &"])
end = time.monotonic() + 120  # the test may have been killed
while not os.path.exists(stop) and time.monotonic() < end:
    time.sleep(0.02)
"""


class Deed(NamedTuple):
    """An action, its target, and its time in seconds after the start; a stop lasts `pause_s`."""

    at: float
    node: int
    victim: str
    pick: float
    number: int
    pause_s: float


class Plan(NamedTuple):
    """A seed's plan: the job, and actions timed from its start or from when its workers run."""

    meeting: str
    nodes: int
    patient: bool
    waits: bool
    warm: bool
    workers: int
    delays: tuple[float, ...]
    deeds: tuple[Deed, ...]


def plan(seed: int) -> Plan:
    """Return the plan for a seed."""
    chance = random.Random(seed)
    nodes = chance.choice((1, 1, 2, 3, 4))
    meeting = chance.choice(MEETINGS) if nodes > 1 else ""
    deeds, lost = [], set()
    for _ in range(chance.randint(1, 5)):
        node = chance.randrange(nodes)
        victim = chance.choice(("worker", "agent", "guard", "spawner", "child"))
        number = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM))
        if victim == "agent" and number != signal.SIGSTOP:
            # A job can continue with any one of its nodes, but an endpoint needs two of its three
            # hosts.
            if len(lost | {node}) > (nodes > 2 if meeting == "hosts" else nodes - 1) and nodes > 1:
                continue
            lost.add(node)
        if victim in ("guard", "spawner") and number == signal.SIGTERM:
            number = signal.SIGKILL  # the only signal that is sent to these
        deed = Deed(
            chance.uniform(0.1, 2.5), node, victim, chance.random(), number,
            chance.choice((0.1, 0.5, 1.5, 3.0)),
        )  # fmt: skip
        deeds.append(deed)
        if chance.random() < 0.3:  # also kill another process on the same node at the same moment
            other = chance.choice(("guard", "spawner", "worker"))
            deeds.append(deed._replace(victim=other, number=signal.SIGKILL))
    delays = tuple(chance.uniform(0, 0.5) for _ in range(nodes))
    waits = chance.random() < 0.8
    return Plan(
        meeting,
        nodes,
        chance.random() < 0.5,
        waits,
        chance.random() < 0.25,
        chance.choice((1, 2)),
        delays,
        tuple(sorted(deeds)),
    )


class Play:
    """One job, the actions on it, and the errors found."""

    def __init__(self, seed: int) -> None:
        self.seed, self.plan = seed, plan(seed)
        self.mark = f"{10**8 + seed}.{random.randrange(10**6, 10**7)}"
        self.directory = Path(tempfile.mkdtemp(prefix="relight-chaos-"))
        self.scratch = self.directory / "tmp"
        self.scratch.mkdir()
        (self.directory / "worker.py").write_text(WORKER)
        self.agents: list[subprocess.Popen[bytes]] = []
        self.hit: dict[int, set[str]] = {node: set() for node in range(self.plan.nodes)}
        self.stop_signal: set[int] = set()
        self.log: list[str] = []
        self.done = 0
        self.begin = time.monotonic()

    def run(self) -> list[str]:
        """Play the plan and return the errors found."""
        try:
            wrong = self._run()
            if wrong:
                for node in range(self.plan.nodes):
                    text = (self.directory / f"agent{node}").read_text(errors="replace")
                    self.log.append(f"--- node {node}\n{text[-3000:]}")
            return wrong
        finally:
            for pid in [agent.pid for agent in self.agents if agent.poll() is None] + self._left():
                _send(pid, signal.SIGKILL)
            for agent in self.agents:
                agent.wait()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self) -> list[str]:
        self._start()
        for moment, what in sorted(self._moments(), key=lambda each: each[0]):
            time.sleep(max(0.0, self.begin + moment - time.monotonic()))
            what()
        if any(d.victim == "agent" and d.pause_s >= LOST_AFTER_S for d in self.plan.deeds):
            self._wait_until_together()
        (self.directory / "stop").touch()
        self._say("the workers are told to end")
        wrong = self._ends()
        deadline = time.monotonic() + GONE_S
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left and not any({"agent", "guard", "spawner"} <= hit for hit in self.hit.values()):
            wrong.append(f"left behind: {[(pid, _command(pid)) for pid in left]}")
        if wrong:
            return wrong
        if any("agent" in hit and len(hit) > 1 for hit in self.hit.values()):
            # All processes that could have removed their directory were killed, so the next job
            # does.
            command = [sys.executable, "-m", "relight", "run", "--no-python", "true"]
            subprocess.run(command, env=self._environment(), capture_output=True, check=False)
        deadline = time.monotonic() + GONE_S
        while (kept := os.listdir(self.scratch)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [f"in TMPDIR: {kept}"] if kept else []

    def _wait_until_together(self) -> None:
        """Wait until the group has readmitted its lost nodes.

        A node that misses the end of the job would wait for another coordinator until its join
        timeout.
        """
        deadline = time.monotonic() + UP_S
        while time.monotonic() < deadline:
            alive = [node for node, agent in enumerate(self.agents) if agent.poll() is None]
            if len({self._generation(node) for node in alive}) <= 1:
                return
            time.sleep(0.05)

    def _generation(self, node: int) -> str:
        """Return the latest generation that a node has reported."""
        text = (self.directory / f"agent{node}").read_text(errors="replace")
        return (re.findall(r"generation (\d+): ", text) or [""])[-1]

    def _start(self) -> None:
        flags = [f"--nproc-per-node={self.plan.workers}", "--max-restarts=100",
                 "--shutdown-timeout=1", *["--preload=json,csv"] * self.plan.warm]  # fmt: skip
        if self.plan.nodes > 1:
            place = {
                "c10d": f"127.0.0.1:{_port()}",
                "hosts": ",".join(f"127.0.0.1:{_port()}" for _ in range(3)),
                "file": str(self.directory / "register"),
            }[self.plan.meeting]
            conf = "last_call_timeout=0.5"
            if not self.plan.patient:
                conf += f",keep_alive_interval={LOST_AFTER_S / 5}"
            backend = "file" if self.plan.meeting == "file" else "c10d"
            flags += [f"--nnodes=1:{self.plan.nodes}", f"--rdzv-backend={backend}",
                      f"--rdzv-endpoint={place}", "--rdzv-id=chaos",
                      f"--rdzv-conf={conf}"]  # fmt: skip
        program = [str(self.directory / "worker.py"), self.mark, str(self.directory / "stop")]
        for node, delay in enumerate(self.plan.delays):
            time.sleep(delay)
            with (self.directory / f"agent{node}").open("wb") as file:
                agent = subprocess.Popen(
                    [sys.executable, "-m", "relight", "run", *flags, *program],
                    cwd=self.directory, env=self._environment(), stdin=subprocess.DEVNULL,
                    stdout=file, stderr=file, start_new_session=True,
                )  # fmt: skip
            self.agents.append(agent)
            self._say(f"node {node} is pid {agent.pid}")
        deadline = time.monotonic() + UP_S
        while self.plan.waits and time.monotonic() < deadline:
            if all(self._pids(node, "child") for node in range(self.plan.nodes)):
                break
            time.sleep(0.02)
        self.begin = time.monotonic()

    def _environment(self) -> dict[str, str]:
        ours = ("RELIGHT_", "PET_", "TORCHELASTIC_", "SLURM_")
        variables = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        return {**variables, "TMPDIR": str(self.scratch), "OMP_NUM_THREADS": "1"}

    def _moments(self) -> list[tuple[float, Callable[[], None]]]:
        moments: list[tuple[float, Callable[[], None]]] = []
        for deed in self.plan.deeds:
            stopped: list[int] = []
            moments.append((deed.at, partial(self._do, deed, stopped)))
            if deed.number == signal.SIGSTOP:
                moments.append((deed.at + deed.pause_s, partial(self._go_on, stopped)))
        return moments

    def _do(self, deed: Deed, stopped: list[int]) -> None:
        pids = self._pids(deed.node, deed.victim)
        if not pids:
            self._say(f"node {deed.node} has no {deed.victim}")
            return
        pid = pids[int(deed.pick * len(pids))]
        self._say(f"{signal.Signals(deed.number).name} for {deed.victim} {pid} of {deed.node}")
        self.hit[deed.node].add(deed.victim)
        if deed.victim == "agent":
            if self.agents[deed.node].poll() is not None:
                return
            if deed.number == signal.SIGTERM:
                self.stop_signal.add(deed.node)
        _send(pid, deed.number)
        self.done += 1
        stopped.append(pid)

    def _go_on(self, pids: list[int]) -> None:
        for pid in pids:
            self._say(f"SIGCONT for {pid}")
            _send(pid, signal.SIGCONT)

    def _pids(self, node: int, victim: str) -> list[int]:
        agent = self.agents[node].pid
        guards = _children(agent)
        spawners = [pid for guard in guards for pid in _children(guard)]
        workers = [pid for spawner in spawners for pid in _children(spawner)]
        match victim:
            case "agent":
                return [agent]
            case "guard":
                return guards
            case "spawner":
                return spawners
            case "worker":
                return [pid for pid in workers if "worker.py" in _command(pid)]
            case _:
                below = [pid for worker in workers for pid in (worker, *_children(worker))]
                return [pid for pid in below if _command(pid).startswith("sleep ")]

    def _ends(self) -> list[str]:
        wrong, deadline = [], time.monotonic() + END_S
        for node, agent in enumerate(self.agents):
            try:
                code = agent.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                wrong.append(f"node {node} has not ended {END_S:.0f} s after its workers could")
                continue
            self._say(f"node {node} has ended with {code}")
            fine = {0}
            if node in self.stop_signal:
                fine = {0, 143, -signal.SIGTERM}
            if "agent" in self.hit[node]:
                fine |= {-signal.SIGKILL} if self._is_killed(node) else set()
            if code not in fine:
                wrong.append(f"node {node} has ended with {code}, not with one of {sorted(fine)}")
        return wrong

    def _is_killed(self, node: int) -> bool:
        kills = {(d.node, d.victim) for d in self.plan.deeds if d.number == signal.SIGKILL}
        return (node, "agent") in kills

    def _left(self) -> list[int]:
        """Return the running processes of this play, except agents that are still awaited."""
        own = {f"of {agent.pid}" for agent in self.agents}
        found = []
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) not in {agent.pid for agent in self.agents}:
                words = _command(int(name))
                if self.mark in words or any(words.endswith(each) for each in own):
                    found.append(int(name))
        return found

    def _say(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self.begin:7.3f} {text}")


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def play(seed: int) -> tuple[int, str]:
    """Play a seed; return the number of kills and stops, and the errors along with all actions."""
    one = Play(seed)
    wrong = one.run()
    if not wrong:
        return one.done, ""
    return one.done, "\n".join([f"seed {seed}: {'; '.join(wrong)}", str(one.plan), *one.log])


def main() -> int:
    """Play seeds; return 1 if any of them found an error."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--runs", type=int, default=1000, help="how many plays")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first seed")
    parser.add_argument("--seed", type=int, help="play only this one, and print its actions")
    parser.add_argument("--at-once", type=int, default=2 * (os.cpu_count() or 1))
    options = parser.parse_args()
    if options.seed is not None:
        one = Play(options.seed)
        wrong = one.run()
        print(one.plan, *one.log, *wrong, sep="\n")
        return 1 if wrong else 0
    begun, failed, deeds = time.monotonic(), [], 0
    seeds = range(options.start, options.start + options.runs)
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for seed, (done, wrong) in zip(seeds, pool.map(play, seeds), strict=True):
            deeds += done
            if wrong:
                failed.append(seed)
                print(wrong, flush=True)
    seconds = time.monotonic() - begun
    print(f"{len(seeds)} plays, {deeds} kills and stops, {seconds:.0f} s, failed: {failed or 0}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
