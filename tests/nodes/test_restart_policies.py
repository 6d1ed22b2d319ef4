"""--restart-policy=smart and --max-restarts=N/TIME: one budget for the workers on all hosts."""

from pathlib import Path

import pytest
from netlab import Lab

from nodes.jobs import Job, c10d

pytestmark = [pytest.mark.slow, pytest.mark.needs_hosts]


def test_smart_policy_ends_job_on_repeated_failure_of_remote_rank(lab: Lab, tmp_path: Path) -> None:
    """Ranks keep their hosts, and neither of these hosts is the coordinator's."""
    flags = ("--max-restarts=10", "--restart-policy=smart")
    job = Job(lab, tmp_path, *c10d("node1", "3"), *flags)
    agents = [job.start(f"node{number}") for number in (1, 2, 3)]
    job.until_runs(agents, 3)
    job.tell("fail.2")
    job.until_runs(agents, 3, generation=1)
    assert all("restart 1 of 10" in agent.text for agent in agents), job.report()
    job.tell("fail.2")
    assert [agent.wait() for agent in agents] == [1, 1, 1], job.report()
    why = "same exception on the same line again, with no progress in between"
    assert all(f"exit code 1; {why}" in agent.text for agent in agents), job.report()


def test_windowed_restart_budget_spans_hosts_and_outlives_coordinator(
    lab: Lab, tmp_path: Path
) -> None:
    """Two restarts per hour are used up on two hosts. The next coordinator does not know when they
    took place, and still counts them.
    """
    job = Job(lab, tmp_path, *c10d("node1,node2,node3", "2:3"), "--max-restarts=2/1h")
    agents = [job.start(f"node{number}") for number in (1, 2, 3)]
    job.until_runs(agents, 3)
    for generation, rank in ((1, 1), (2, 2)):
        job.tell(f"fail.{rank}")
        job.until_runs(agents, 3, generation)
    (coordinator,) = (agent for agent in agents if agent.coordinates)
    others = [agent for agent in agents if agent is not coordinator]
    lab.crash(coordinator.host)
    job.until_runs(others, 2, generation=3)
    job.tell("fail.0")
    job.until_runs(others, 2, generation=4)
    job.tell("fail.1")
    assert [agent.wait() for agent in others] == [1, 1], job.report()
    why = "all 2 restarts within 1 h are used up"
    assert all(f"exit code 1; {why}" in agent.text for agent in others), job.report()
