"""--health-check=network: a host that others can't reach is excluded before workers start."""

from pathlib import Path

import pytest
from netlab import Lab

from nodes.jobs import Job, c10d
from relight.base.errors import EXIT_MACHINE

pytestmark = [pytest.mark.slow, pytest.mark.needs_hosts]

PORT = 29400
CHECK = ("--health-check=network", "--rdzv-conf=last_call_timeout=0.5")


def test_firewalled_host_is_excluded_and_reported(lab: Lab, tmp_path: Path) -> None:
    """Three of four nodes run as if it had never joined; all report which one is excluded."""
    lab.wall("node3", [PORT])
    job = Job(lab, tmp_path, *c10d(f"node1:{PORT}", "3:4", *CHECK))
    agents = [job.start(f"node{number}") for number in (1, 2, 3, 4)]
    shut_off = agents.pop(2)
    assert shut_off.wait() == EXIT_MACHINE, job.report()
    why = "node1, node2, node4 can't connect to its free ports (no response)"
    assert f"the health check on node3 failed (network: {why}); this node" in shut_off.text
    assert "hint: open all TCP ports between the nodes" in shut_off.text
    assert not shut_off.workers
    job.until_runs(agents, 3)
    for agent in agents:
        assert f"node3 left: its health check failed: network: {why}" in agent.text, agent.text
    assert job.stop()[:2] == [0, 0]


def test_excluded_endpoint_host_keeps_coordinating(lab: Lab, tmp_path: Path) -> None:
    lab.wall("node1", [PORT])
    job = Job(lab, tmp_path, *c10d(f"node1:{PORT}", "2:3", *CHECK))
    agents = [job.start(f"node{number}") for number in (1, 2, 3)]
    job.until_runs(agents[1:], 2)
    job.until_says(agents[0], "the health check on node1 failed")
    assert job.stop() == [EXIT_MACHINE, 0, 0]


def test_unreachable_new_node_does_not_disturb_the_job(lab: Lab, tmp_path: Path) -> None:
    lab.wall("node3", [PORT])
    job = Job(lab, tmp_path, *c10d(f"node1:{PORT}", "2:3", *CHECK))
    agents = [job.start(f"node{number}") for number in (1, 2)]
    job.until_runs(agents, 2)
    newcomer = job.start("node3")
    assert newcomer.wait() == EXIT_MACHINE, job.report()
    assert job.stop()[:2] == [0, 0]
    assert all(agent.text.count("generation ") == 1 for agent in agents), job.report()
