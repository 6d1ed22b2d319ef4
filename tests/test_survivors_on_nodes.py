"""A rank or a node fails, and ranks on other nodes keep their processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nodes.jobs import Job, OneMachine

pytestmark = pytest.mark.slow
WORKER = """
import os, pathlib, signal, sys, time
from relight.worker import progress, recoverable

here = pathlib.Path.cwd()
kept = None  # the first rank of this process

def put(name, text):
    (here / f".{name}").write_text(text)
    (here / f".{name}").rename(here / name)

def wait_for(*names):
    while not all((here / name).exists() for name in names):
        time.sleep(0.002)

@recoverable
def train(generation):
    global kept
    rank, size = generation.rank, generation.world_size
    kept = rank if kept is None else kept
    port, attempt = os.environ["MASTER_PORT"], f"{size}-{generation.restart}"
    put(f"{attempt}-{rank}", f"{os.getpid()} {port} {os.environ['GROUP_RANK']}")
    generation.restored()
    while not (here / "end").exists():
        if not (here / "no-progress").exists():
            progress(generation.restart + 1)
        if (here / f"die-{rank}").exists():
            (here / f"die-{rank}").unlink()
            put("broken", port)
            os.kill(os.getpid(), signal.SIGKILL)
        if (here / "broken").exists() and (here / "broken").read_text() == port:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
        time.sleep(0.005)

train()
"""
MakeJob = Callable[..., Job]
MEET = ("--rdzv-backend=file", "--rdzv-id=j", "--nproc-per-node=2", "--max-restarts=1")


class Ranks:
    """The records of the ranks in an attempt.

    Args:
        place: The job's directory.
        size: The number of ranks.
        restart: The number of restarts.
    """

    def __init__(self, place: Path, size: int, restart: int) -> None:
        self._paths = [place / f"{size}-{restart}-{rank}" for rank in range(size)]

    @property
    def are_here(self) -> bool:
        return all(path.exists() for path in self._paths)

    def column(self, number: int) -> list[int]:
        return [int(path.read_text().split()[number]) for path in self._paths]

    @property
    def pids(self) -> list[int]:
        return self.column(0)

    @property
    def ports(self) -> set[int]:
        return set(self.column(1))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[MakeJob]:
    """Return a function that creates a job on this machine, and starts its agents."""
    with OneMachine() as here:

        def make(nodes: str, agents: int, *more: str) -> Job:
            meet = (f"--nnodes={nodes}", f"--rdzv-endpoint={tmp_path / 'meet'}")
            made = Job(here, tmp_path, *MEET, *meet, "--rdzv-conf=last_call_timeout=0.3", *more)
            (tmp_path / "train.py").write_text(WORKER)
            for number in range(agents):
                made.start(f"node{number}")
                if not number:  # this one becomes the coordinator
                    made.until((tmp_path / "meet").exists, "a coordinator")
            return made

        yield make


def break_group(place: Path, ranks: Ranks) -> None:
    """Make a group's collectives fail."""
    (place / ".new").write_text(str(min(ranks.ports)))
    (place / ".new").rename(place / "broken")


def stayed(before: Ranks, after: Ranks) -> list[bool]:
    return [pid in before.pids for pid in after.pids]


def test_surviving_ranks_on_both_nodes_keep_their_processes(job: MakeJob, tmp_path: Path) -> None:
    made = job("2", 2)
    before, after = Ranks(tmp_path, 4, 0), Ranks(tmp_path, 4, 1)
    made.until(lambda: before.are_here, "all ranks begin")
    made.tell("die-2")
    made.until(lambda: after.are_here, "all ranks begin again")
    made.tell("end")
    assert [agent.wait() for agent in made.agents] == [0, 0], made.report()
    same = [one == other for one, other in zip(before.pids, after.pids, strict=True)]
    assert same == [True, True, False, True], made.report()
    assert len(after.ports) == 1
    assert after.ports != before.ports
    texts = "".join(agent.text for agent in made.agents)
    assert "rank 2 was replaced in" in texts
    assert "2 ranks kept running; recovered in" in texts
    assert texts.count("restart 1 of 1") == 2


@pytest.mark.long  # test_survivors.py shows it on one node
def test_second_failure_without_progress_restarts_all_ranks(job: MakeJob, tmp_path: Path) -> None:
    made = job("2", 2, "--max-restarts=2")
    made.tell("no-progress")
    first, second, third = (Ranks(tmp_path, 4, restart) for restart in range(3))
    made.until(lambda: first.are_here, "all ranks begin")
    made.tell("die-2")
    made.until(lambda: second.are_here, "all ranks begin again")
    made.tell("die-1")
    made.until(lambda: third.are_here, "all ranks begin a third time")
    made.tell("end")
    assert [agent.wait() for agent in made.agents] == [0, 0], made.report()
    assert stayed(first, second).count(True) == 3
    assert not any(stayed(second, third)), made.report()
    for agent in made.agents:
        assert "all ranks restart: no rank has reported a new step" in agent.text


def test_ranks_keep_their_processes_when_group_shrinks(job: MakeJob, tmp_path: Path) -> None:
    made = job("1:2", 2)
    before, after = Ranks(tmp_path, 4, 0), Ranks(tmp_path, 2, 0)
    made.until(lambda: before.are_here, "all ranks begin")
    for rank in range(2):  # from a generation before the second node joined
        (tmp_path / f"2-0-{rank}").unlink(missing_ok=True)
    made.kill(made.agents[1])
    break_group(tmp_path, before)
    made.until(lambda: after.are_here, "two ranks begin again")
    made.tell("end")
    assert made.agents[0].wait() == 0, made.report()
    assert stayed(before, after) == [True, True], made.report()
    assert "2 ranks kept running; recovered in" in made.agents[0].text


def test_ranks_keep_their_processes_when_node_joins(job: MakeJob, tmp_path: Path) -> None:
    made = job("1:2", 1)
    before, after = Ranks(tmp_path, 2, 0), Ranks(tmp_path, 4, 0)
    made.until(lambda: before.are_here, "two ranks begin")
    made.start("node1")
    break_group(tmp_path, before)
    made.until(lambda: after.are_here, "four ranks begin")
    made.tell("end")
    assert [agent.wait() for agent in made.agents] == [0, 0], made.report()
    assert stayed(before, after) == [True, True, False, False], made.report()


def test_spare_node_replaces_lost_coordinator_node(job: MakeJob, tmp_path: Path) -> None:
    """The lost node had rank 0 and the store; the ranks on the other node keep their processes."""
    made = job("2", 3)
    before, after = Ranks(tmp_path, 4, 0), Ranks(tmp_path, 4, 0)
    made.until(lambda: before.are_here, "all ranks begin")
    pids = before.pids
    lost = next(agent for agent in made.agents if "this is node 0" in agent.text)
    for rank in range(4):
        (tmp_path / f"4-0-{rank}").rename(tmp_path / f"before-{rank}")
    made.kill(lost)
    (tmp_path / "broken").write_text((tmp_path / "before-0").read_text().split()[1])
    made.until(lambda: after.are_here, "all ranks begin again")
    made.tell("end")
    others = [agent for agent in made.agents if agent is not lost]
    assert [agent.wait() for agent in others] == [0, 0], made.report()
    assert after.pids[2:] == pids[2:], made.report()
    assert not {*after.pids[:2]} & {*pids}
