"""A job on several Lab hosts: start agents, wait for their output, end it.

The workers need no torch. Each creates its own file, prints a line, and then counts in that file,
so that a test can see whether it is running. Workers exit once a file named `stop` exists.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from conftest import LIMIT_S, RELIGHT, clean_environment
from netlab import Lab

RUNNING_S = 1.0
WORKER = """
import os, sys, time
names = ("RANK WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE ROLE_RANK "
    "ROLE_WORLD_SIZE TORCHELASTIC_RESTART_COUNT MASTER_ADDR MASTER_PORT").split()
variables = {k: os.environ[k] for k in names}
name = f"count.{os.uname().nodename}.{os.getpid()}"
count, file = 0, os.open(name, os.O_WRONLY | os.O_CREAT)
os.pwrite(file, b"0", 0)  # before the line: a worker that has begun is counted
os.write(1, ("worker " + " ".join(f"{k}={v}" for k, v in variables.items()) + "\\n").encode())
end = time.monotonic() + float(os.environ.get("WORKER_S", 900))
while time.monotonic() < end and not os.path.exists("stop"):
    count += 1
    os.pwrite(file, str(count).encode(), 0)  # at no moment is the file empty, or half written
    if os.path.exists(f"fail.{variables['RANK']}"):
        os.unlink(f"fail.{variables['RANK']}")
        raise ValueError(f"rank {variables['RANK']} was told to fail")
    if os.path.exists(f"finish.{variables['RANK']}"):
        break
    time.sleep(0.05)
"""


class Started:
    """A worker's environment when it started."""

    def __init__(self, line: str) -> None:
        pairs = dict(re.findall(r"(\w+)=(\S+)", line))
        self.rank, self.world = int(pairs["RANK"]), int(pairs["WORLD_SIZE"])
        self.group_rank, self.nodes = int(pairs["GROUP_RANK"]), int(pairs["GROUP_WORLD_SIZE"])
        self.restart = int(pairs["TORCHELASTIC_RESTART_COUNT"])
        self.master = f"{pairs['MASTER_ADDR']}:{pairs['MASTER_PORT']}"
        self.pairs = pairs


def of_text(text: str) -> list[Started]:
    """Return the workers that have started, according to the complete lines in some text."""
    return [Started(line) for line in text.split("\n")[:-1] if line.startswith("worker ")]


class AgentOn:
    """An agent on a host, and its output file."""

    def __init__(self, host: str, path: Path, process: "subprocess.Popen[bytes]") -> None:
        self.host, self.path, self.process = host, path, process

    @property
    def text(self) -> str:
        return self.path.read_text(errors="replace")

    @property
    def workers(self) -> list[Started]:
        return of_text(self.text)

    @property
    def coordinates(self) -> bool:
        """Whether this node coordinates the group. On a busy machine, several nodes may do so in
        turn before the group forms.
        """
        now, no_longer = "this node coordinates the group now", "this node no longer coordinates"
        return self.text.rfind(now) > self.text.rfind(no_longer)

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)


class OneMachine:
    """A Lab whose hosts are all this machine, for tests that need no separate network."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def __getitem__(self, name: str) -> "OneMachine":
        return self

    def start(self, command: list[str], **options: object) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )
        self.processes.append(process)
        return process

    def __enter__(self) -> "OneMachine":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


class Job:
    """One job, in a directory that all hosts can access."""

    def __init__(self, lab: Lab | OneMachine, directory: Path, *flags: str) -> None:
        self.lab, self.directory, self.flags = lab, directory, flags
        self.agents: list[AgentOn] = []
        (directory / "train.py").write_text(WORKER)

    def start(
        self,
        host: str,
        *more: str,
        script: tuple[str, ...] = ("train.py",),
        under: tuple[str, ...] = (),
        **variables: str,
    ) -> AgentOn:
        """Start an agent as a child of the command `under`, or of this process."""
        path = self.directory / f"agent{len(self.agents)}.{host}.txt"
        with path.open("wb") as file:
            process = self.lab[host].start(
                [*under, *RELIGHT, "run", *self.flags, *more, *script],
                cwd=self.directory,
                env=clean_environment(
                    **{"OMP_NUM_THREADS": "1", "TMPDIR": str(self.directory), **variables}
                ),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.agents.append(AgentOn(host, path, process))
        return self.agents[-1]

    def until(self, condition: Callable[[], object], what: str = "") -> float:
        """Wait for a condition; return how long that took."""
        begin = time.monotonic()
        while not condition():
            if time.monotonic() - begin > LIMIT_S:
                raise AssertionError(f"not in {LIMIT_S:.0f} s: {what}\n{self.report()}")
            time.sleep(0.05)
        return time.monotonic() - begin

    def until_says(self, agent: AgentOn, pattern: str) -> float:
        return self.until(
            lambda: re.search(pattern, agent.text), f"{pattern!r} from {agent.path.name}"
        )

    def until_runs(self, agents: list[AgentOn], nodes: int, generation: int = 0) -> float:
        """Wait until all workers of these agents run in a generation with this many nodes."""
        begin = re.compile(rf"generation {generation}: \d+ workers? on {nodes} nodes?")

        def run(agent: AgentOn) -> bool:
            match = begin.search(agent.text)
            if match is None:
                return False
            workers = of_text(agent.text[match.end() :])
            return bool(workers) and len(workers) == int(workers[0].pairs["LOCAL_WORLD_SIZE"])

        return self.until(
            lambda: all(map(run, agents)), f"generation {generation} on {nodes} nodes"
        )

    def counts(self) -> dict[str, int]:
        """Return how far each worker has counted, by its file."""
        result = {}
        for path in self.directory.glob("count.*"):
            text = path.read_text()
            if text:
                result[path.name] = int(text)
        return result

    def running(self, host: str) -> bool:
        """Return whether a worker on a host keeps counting, perhaps slowly on a busy machine."""
        before = {k: v for k, v in self.counts().items() if f".{host}." in k}
        end = time.monotonic() + RUNNING_S
        while time.monotonic() < end:
            time.sleep(0.05)
            after = self.counts()
            if any(after.get(name, 0) > count for name, count in before.items()):
                return True
        return False

    def until_counts(self, host: str) -> None:
        """Wait until a worker on a host continues to count. A busy machine may delay this."""
        self.until(lambda: self.running(host), f"a worker that runs on {host}")

    def tell(self, name: str) -> None:
        (self.directory / name).touch()

    def stop(self) -> list[int]:
        """Let the workers end; return the agents' exit codes."""
        self.tell("stop")
        return [agent.wait() for agent in self.agents]

    def kill(self, agent: AgentOn, number: int = signal.SIGKILL) -> None:
        os.kill(agent.process.pid, number)

    def report(self) -> str:
        return "\n".join(f"--- {agent.path.name}\n{agent.text[-3000:]}" for agent in self.agents)


def c10d(endpoint: str, nodes: str, *more: str) -> tuple[str, ...]:
    return ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=test",
            f"--nnodes={nodes}", *more)  # fmt: skip


PYTHON = sys.executable
