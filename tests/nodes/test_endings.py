"""Nodes that finish successfully at different times don't disturb the others."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import RELIGHT, clean_environment, long
from etcd_server import free_ports
from netlab import Lab

from nodes.jobs import AgentOn, Job, OneMachine, c10d

pytestmark = pytest.mark.slow
CONF = "--rdzv-conf=exit_barrier_timeout=0.5,join_timeout=8,last_call_timeout=1"


def end_one_by_one(job: Job, agents: list[AgentOn]) -> None:
    """Let ranks end, the last one first, with pauses that are longer than any lease."""
    for rank in reversed(range(len(agents))):
        job.tell(f"finish.{rank}")
        end = time.monotonic() + (3.5 if rank else 0)
        while time.monotonic() < end:
            texts = [agent.text for agent in agents]
            assert not any("workers are frozen" in text for text in texts), job.report()
            assert not any("generation 1" in text for text in texts), job.report()
            time.sleep(0.1)
    assert [agent.wait() for agent in agents] == [0] * len(agents), job.report()


def test_finished_nodes_are_not_considered_lost(tmp_path: Path) -> None:
    with OneMachine() as here:
        meet = ("--rdzv-backend=file", f"--rdzv-endpoint={tmp_path / 'meet'}", "--rdzv-id=j")
        job = Job(here, tmp_path, *meet, "--nnodes=3", CONF)
        agents = [job.start(f"node{number}") for number in (1, 2, 3)]
        job.until_runs(agents, 3)
        end_one_by_one(job, agents)


@pytest.mark.needs_hosts
def test_finished_endpoint_host_keeps_voting(lab: Lab, tmp_path: Path) -> None:
    """An endpoint host whose workers are done keeps voting for the others' coordinator."""
    job = Job(lab, tmp_path, *c10d("node1,node2,node3", "3", CONF))
    agents = [job.start(f"node{number}") for number in (1, 2, 3)]
    job.until_runs(agents, 3)
    end_one_by_one(job, agents)


@pytest.mark.parametrize("number", [long(signal.SIGTERM), signal.SIGKILL])
def test_job_succeeds_after_losing_a_finished_coordinator(tmp_path: Path, number: int) -> None:
    """The next coordinator learns from the running nodes which nodes have succeeded."""
    with OneMachine() as here:
        meet = ("--rdzv-backend=file", f"--rdzv-endpoint={tmp_path / 'meet'}", "--rdzv-id=j")
        job = Job(here, tmp_path, *meet, "--nnodes=3", "--rdzv-conf=join_timeout=8")
        coordinator = job.start("node1", "-v")
        job.until_says(coordinator, "this node coordinates the group now")
        others = [job.start("node2"), job.start("node3")]
        job.until_runs(job.agents, 3)
        job.tell(f"finish.{coordinator.workers[0].rank}")
        job.until_says(coordinator, "local rank 0 exited with code 0")
        time.sleep(0.5)  # nothing shows when the others have learned of it
        job.kill(coordinator, number)
        job.until(lambda: any("coordinates the group now" in agent.text for agent in others))
        assert job.stop()[1:] == [0, 0], job.report()
        for agent in others:
            assert "generation 1" not in agent.text


def test_restarted_coordinator_does_not_wait_for_node_that_finished(
    tmp_path: Path,
) -> None:
    """A `relight coordinator` keeps nothing on disk, but learns of done nodes from the others."""

    def coordinate() -> "subprocess.Popen[bytes]":
        return here.start([*RELIGHT, "coordinator", f"--bind=127.0.0.1:{port}"],
                          env=clean_environment(), stderr=subprocess.DEVNULL)  # fmt: skip

    (port,) = free_ports(1)
    with OneMachine() as here:
        conf = "--rdzv-conf=exit_barrier_timeout=0.5,join_timeout=8,is_host=0"
        job = Job(here, tmp_path, *c10d(f"127.0.0.1:{port}", "3", conf))
        first = coordinate()
        agents = [job.start(f"node{number}") for number in (1, 2, 3)]
        job.until_runs(agents, 3)
        job.tell(f"finish.{agents[0].workers[0].rank}")
        assert agents[0].wait() == 0
        first.kill()
        coordinate()
        job.until_says(agents[1], "lost the coordinator")
        time.sleep(2)  # longer than a lease, and than a new coordinator's wait for missing nodes
        assert job.stop() == [0, 0, 0], job.report()
        for agent in agents:
            assert "generation 1" not in agent.text


SAVES_OR_FAILS = """
import os, sys, time
from relight.worker import should_checkpoint
should_checkpoint()
os.write(1, b"up\\n")
while not should_checkpoint():
    time.sleep(0.002)
if sys.argv[1] == "fails":
    sys.exit(7)
time.sleep(8)  # longer than any lease
os.write(1, b"has saved\\n")
"""


@pytest.mark.needs_hosts
def test_preempted_coordinator_stays_until_other_nodes_have_checkpointed(
    lab: Lab, tmp_path: Path
) -> None:
    """Without it, the workers on the other node would be frozen and could not save."""
    job = Job(lab, tmp_path, *c10d("node1", "2"))
    (tmp_path / "saves.py").write_text(SAVES_OR_FAILS)
    agents = [
        job.start("node1", script=("saves.py", "fails")),
        job.start("node2", script=("saves.py", "saves")),
    ]
    for agent in agents:
        job.until_says(agent, "up")
    job.kill(agents[0], signal.SIGTERM)
    job.until_says(agents[0], "to save a checkpoint")
    job.kill(agents[1], signal.SIGTERM)
    assert [agent.wait() for agent in agents] == [7, 75]
    assert "has saved" in agents[1].text
    assert "frozen" not in agents[1].text
    assert "rank 0 exited with code 7" in agents[0].text
