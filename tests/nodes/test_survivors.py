"""Ranks keep their processes across hosts when a rank is killed or hangs, or its host is lost.

The process groups use gloo between the hosts, which receives nothing from a rank that is cut off.
"""

import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from netlab import Lab

from nodes.jobs import Job, c10d

pytestmark = [pytest.mark.slow, pytest.mark.needs_hosts, pytest.mark.needs_torch]

WORKER = """
import os, pathlib, threading, time
starting = threading.Event()
def work():  # a slow start is not a hang
    with open(os.devnull, "wb", buffering=0) as file:
        while not starting.wait(0.05):
            file.write(bytes(4096))
threading.Thread(target=work, daemon=True).start()
import torch, torch.distributed as dist
from relight.worker import progress, recoverable

here, host = pathlib.Path.cwd(), os.uname().nodename
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
done = 0

@recoverable
def train(generation):
    global done
    dist.init_process_group("gloo")
    done = generation.share(model, optimizer, step=done)
    starting.set()
    rank, size, first = generation.rank, generation.world_size, done
    over = torch.zeros(1)
    while not over:
        model(torch.full((2, 4), float(done + rank))).sum().backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        progress(done)
        if done == first + 1:
            text = f"{os.getpid()} {host} {os.environ['MASTER_PORT']}"
            name = f"{size}-{generation.restart}-{rank}"
            (here / f".{name}").write_text(text)
            (here / f".{name}").rename(here / name)
        over += (here / "stop").exists()
        dist.all_reduce(over, dist.ReduceOp.MAX)
        time.sleep(0.01)

train()
weights = [each.item().hex() for each in model.weight.flatten()]
(here / f"weights-{os.environ['RANK']}").write_text(f"{done} {weights}")
"""
QUICK = "last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=3"
"""A silent node is lost after 6 s: on a busy machine, a healthy one may be silent for 3 s."""


class Rank(NamedTuple):
    """A process that has trained as a rank."""

    pid: int
    host: str
    port: str


def ranks(job: Job, size: int, restart: int = 0) -> list[Rank]:
    """Wait until all ranks in a generation have done a step; return them."""
    paths = [job.directory / f"{size}-{restart}-{rank}" for rank in range(size)]
    job.until(lambda: all(path.exists() for path in paths), f"a step of {size} ranks")
    found = [path.read_text().split() for path in paths]
    assert len({port for _, _, port in found}) == 1, job.report()
    return [Rank(int(pid), host, port) for pid, host, port in found]


def begin(lab: Lab, place: Path, nodes: str, hosts: int, *flags: str) -> Job:
    """Start a job with an agent on each host."""
    meet = c10d("node1", nodes, f"--rdzv-conf={QUICK}", "--max-restarts=1", "--preload=off", *flags)
    job = Job(lab, place, *meet)
    (place / "train.py").write_text(WORKER)
    for number in range(1, hosts + 1):
        job.start(f"node{number}")
    return job


def end(job: Job, codes: list[int], *gone: Rank) -> None:
    """End a job; check that all its ranks have the same weights and no process is left."""
    job.tell("stop")
    agents = zip(job.agents, codes, strict=True)
    assert [agent.wait() for agent, code in agents if not code] == [0] * codes.count(0), (
        job.report()
    )
    assert len({path.read_text() for path in job.directory.glob("weights-*")}) == 1
    for agent, code in zip(job.agents, codes, strict=True):
        if code and agent.process.poll() is None:
            job.kill(agent, signal.SIGTERM)
        assert (agent.wait() != 0) == bool(code), job.report()
    # A zombie (without an exe) may stay until the machine's init reaps it.
    job.until(
        lambda: not any(Path(f"/proc/{rank.pid}/exe").exists() for rank in gone), "no process"
    )


@pytest.mark.long  # test_only_hung_rank_is_replaced_in_two_node_job shows it on one machine
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_surviving_ranks_keep_their_processes_on_both_hosts(
    lab: Lab, tmp_path: Path, number: int
) -> None:
    """Rank 2 is killed, or hangs."""
    job = begin(lab, tmp_path, "2", 2, "--nproc-per-node=2", "--hang-timeout=4")
    before = ranks(job, 4)
    os.kill(before[2].pid, number)
    after = ranks(job, 4, restart=1)
    pids = [one.pid == other.pid for one, other in zip(before, after, strict=True)]
    assert pids == [True, True, False, True], job.report()
    assert [each.host for each in after] == ["node1", "node1", "node2", "node2"]
    assert after[0].port != before[0].port
    end(job, [0, 0], *before, *after)


@pytest.mark.long  # nodes are lost on one machine in test_survivors_on_nodes.py
@pytest.mark.parametrize("how", ["crash", "kill", "cut"])
def test_surviving_ranks_keep_their_processes_when_host_is_lost(
    lab: Lab, tmp_path: Path, how: str
) -> None:
    """The machine crashes, its agent and workers are killed, or its network is cut permanently."""
    job = begin(lab, tmp_path, "2:3", 3)
    before = ranks(job, 3)
    for path in tmp_path.glob("2-0-*"):  # from a generation before the last host joined
        path.unlink()
    lost = next(agent for agent in job.agents if agent.host == before[2].host)
    if how == "kill":
        job.kill(lost)
    else:
        (lab.crash if how == "crash" else lab.cut)(lost.host)
    after = ranks(job, 2)
    assert [each.pid for each in after] == [each.pid for each in before[:2]], job.report()
    assert after[0].port != before[0].port
    end(job, [int(agent is lost) for agent in job.agents], *before)
    assert "1 rank kept running; recovered in" in job.agents[0].text
