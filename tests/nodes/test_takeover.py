"""An endpoint that lists several hosts survives the loss of one."""

import signal
from pathlib import Path

import pytest
from conftest import long
from netlab import Lab

from nodes.jobs import AgentOn, Job, c10d

pytestmark = [pytest.mark.slow, pytest.mark.needs_hosts]
ENDPOINT = "node1,node2,node3"


def begin(lab: Lab, tmp_path: Path, nodes: str, *flags: str) -> tuple[Job, list[AgentOn], AgentOn]:
    """Start a job on four hosts; return it, its agents, and the agent that coordinates it."""
    job = Job(lab, tmp_path, *c10d(ENDPOINT, nodes, *flags))
    agents = [job.start(f"node{number}") for number in range(1, 5)]
    job.until_runs(agents, 4)
    (coordinator,) = (agent for agent in agents if agent.coordinates)
    return job, agents, coordinator


@pytest.mark.parametrize("how", [long("kill"), "cut"])
def test_another_host_takes_over_after_coordinator_loss(lab: Lab, tmp_path: Path, how: str) -> None:
    """The survivors continue as one group."""
    job, agents, coordinator = begin(lab, tmp_path, "2:4")
    others = [agent for agent in agents if agent is not coordinator]
    if how == "kill":
        job.kill(coordinator)
    else:
        lab.cut(coordinator.host)
    job.until_runs(others, 3, generation=1)
    assert [agent.workers[-1].rank for agent in others] == [0, 1, 2]
    assert {agent.workers[-1].restart for agent in others} == {0}
    assert sum("this node coordinates the group now" in agent.text for agent in others) == 1
    assert not job.running(coordinator.host)
    if how == "cut":
        lab.mend(coordinator.host)
        job.until_runs(agents, 4, generation=2)
        assert job.stop() == [0, 0, 0, 0]
    else:
        job.tell("stop")
        assert [agent.wait() for agent in others] == [0, 0, 0]


def test_resumed_coordinator_steps_down(lab: Lab, tmp_path: Path) -> None:
    """The coordinator was stopped, replaced, and resumed. There are never two live groups."""
    job, agents, coordinator = begin(lab, tmp_path, "2:4")
    others = [agent for agent in agents if agent is not coordinator]
    job.kill(coordinator, signal.SIGSTOP)
    job.until_runs(others, 3, generation=1)
    assert not job.running(coordinator.host)
    job.kill(coordinator, signal.SIGCONT)
    job.until_runs(agents, 4, generation=2)
    assert job.stop() == [0, 0, 0, 0]


def test_minority_partition_with_former_coordinator_freezes(lab: Lab, tmp_path: Path) -> None:
    """The side with one of three hosts does not run, although the coordinator was there."""
    job, agents, coordinator = begin(lab, tmp_path, "1:4")
    lonely = [coordinator.host, "node4"]
    majority = [agent for agent in agents if agent.host not in lonely]
    lab.partition(lonely, [agent.host for agent in majority])
    job.until_runs(majority, 2, generation=1)
    assert not job.running(coordinator.host)
    assert not job.running("node4")
    lab.heal()
    job.until_runs(agents, 4, generation=2)
    assert job.stop() == [0, 0, 0, 0]


def test_two_of_three_hosts_suffice_to_start(lab: Lab, tmp_path: Path) -> None:
    job = Job(lab, tmp_path, *c10d("node4,node1,node2", "2"))
    agents = [job.start("node1"), job.start("node2")]
    job.until_runs(agents, 2)
    assert job.stop() == [0, 0]


def test_first_of_two_hosts_starts_without_the_second(lab: Lab, tmp_path: Path) -> None:
    """It starts once the leases of a generation that the second host may know have expired."""
    patience = ("--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=0.1",)
    job = Job(lab, tmp_path, *c10d("node1,node2", "1:2", *patience))
    agent = job.start("node1")
    job.until_runs([agent], 1)
    assert "no reply yet from node2, which may know of an earlier coordinator" in agent.text
    assert job.stop() == [0]


def test_second_job_outlives_the_job_that_coordinated_it(lab: Lab, tmp_path: Path) -> None:
    """One job's node coordinates two jobs. Its own job ends immediately, and the other one keeps
    running without a restart.
    """
    jobs, started = [], []
    for name in ("first", "second"):
        place = tmp_path / name
        place.mkdir()
        flags = f"--rdzv-id={name}", "--rdzv-conf=close_timeout=120"
        jobs.append(Job(lab, place, *c10d("node1", "2"), *flags))
        started.append([jobs[-1].start(host) for host in ("node1", "node2")])
        jobs[-1].until_runs(started[-1], 2)
    assert jobs[0].stop() == [0, 0]
    before = jobs[1].counts()
    jobs[1].until(
        lambda: all(jobs[1].counts()[name] > count + 50 for name, count in before.items())
    )
    assert jobs[1].stop() == [0, 0]
    assert all(len(agent.workers) == 1 for agent in started[1])
