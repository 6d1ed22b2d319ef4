"""Nodes that end well, far apart: those that go on are not harmed by those that have gone."""

import time
from pathlib import Path

import pytest
from netlab import Lab

from nodes.jobs import AgentOn, Job, OneMachine, c10d

pytestmark = pytest.mark.slow
CONF = "--rdzv-conf=exit_barrier_timeout=0.5,join_timeout=8,last_call_timeout=1"


def end_one_by_one(job: Job, agents: list[AgentOn]) -> None:
    """Let ranks end, the last one first, with a pause that is longer than any lease."""
    for rank in reversed(range(len(agents))):
        job.tell(f"finish.{rank}")
        end = time.monotonic() + (3.5 if rank else 0)
        while time.monotonic() < end:
            texts = [agent.text for agent in agents]
            assert not any("workers are frozen" in text for text in texts), job.report()
            assert not any("generation 1" in text for text in texts), job.report()
            time.sleep(0.1)
    assert [agent.wait() for agent in agents] == [0] * len(agents), job.report()


def test_the_coordinator_does_not_take_nodes_that_are_done_for_lost(tmp_path: Path) -> None:
    with OneMachine() as here:
        meet = ("--rdzv-backend=file", f"--rdzv-endpoint={tmp_path / 'meet'}", "--rdzv-id=j")
        job = Job(here, tmp_path, *meet, "--nnodes=3", CONF)
        agents = [job.start(f"node{number}") for number in (1, 2, 3)]
        job.until_runs(agents, 3)
        end_one_by_one(job, agents)


def test_a_host_of_the_endpoint_that_is_done_goes_on_voting(lab: Lab, tmp_path: Path) -> None:
    """A host of the endpoint whose workers are done goes on voting for the others' coordinator."""
    job = Job(lab, tmp_path, *c10d("node1,node2,node3", "3", CONF))
    agents = [job.start(f"node{number}") for number in (1, 2, 3)]
    job.until_runs(agents, 3)
    end_one_by_one(job, agents)
