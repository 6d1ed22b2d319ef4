"""A bad network may cost time, but never loses a healthy node, and never causes two groups."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import LIMIT_S, long
from netlab import Lab

from nodes.jobs import AgentOn, Job, c10d

pytestmark = [pytest.mark.slow, pytest.mark.needs_hosts]


def begin(
    lab: Lab,
    tmp_path: Path,
    nodes: str,
    hosts: int,
    *,
    endpoint: str = "node1",
    conf: str = "",
    **variables: str,
) -> tuple[Job, list[AgentOn]]:
    settings = ",".join(filter(None, ("last_call_timeout=1", conf)))
    job = Job(lab, tmp_path, *c10d(endpoint, nodes, f"--rdzv-conf={settings}"), "--max-restarts=1")
    agents = [job.start(f"node{number}", **variables) for number in range(1, hosts + 1)]
    job.until_runs(agents, hosts)
    return job, agents


def generations(agent: AgentOn) -> int:
    """Return how many generations there were."""
    return len(re.findall(r"generation \d+: \d+ worker", agent.text))


def endure_bad_network(lab: Lab, tmp_path: Path, seconds: float) -> None:
    """Run a job for a while with packet loss, jitter, and busy cores."""
    job, agents = begin(lab, tmp_path, "3:4", 4, WORKER_S=str(seconds + LIMIT_S))
    lab.set(jitter_ms=200, loss=0.05)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            before = job.counts()
            time.sleep(2)
            after = job.counts()
            assert before.keys() == after.keys(), job.report()
            still = [name for name, count in before.items() if after[name] <= count]
            assert not still, (still, job.report())
    finally:
        for process in busy:
            process.kill()
            process.wait()
    for agent in agents:
        assert generations(agent) == 1, agent.text
        assert "workers are frozen" not in agent.text, agent.text
        assert "lost" not in agent.text, agent.text
    lab.set(jitter_ms=0, loss=0)
    assert job.stop() == [0, 0, 0, 0]


def test_packet_loss_and_jitter_do_not_cause_node_loss(lab: Lab, tmp_path: Path) -> None:
    """No node is lost and no worker stalls with 5 % loss, 200 ms of jitter, and all cores busy."""
    endure_bad_network(lab, tmp_path, 10)


@pytest.mark.long
@pytest.mark.timeout(4200)
def test_hour_of_packet_loss_and_jitter_does_not_cause_node_loss(lab: Lab, tmp_path: Path) -> None:
    endure_bad_network(lab, tmp_path, 3600)


def test_distant_nodes_form_a_group_restart_and_detect_a_lost_node(
    lab: Lab, tmp_path: Path
) -> None:
    """Packets take 150 ms each way; the lost node is one whose agent was killed."""
    lab.set(delay_ms=150)
    job, agents = begin(lab, tmp_path, "2:3", 3)
    job.tell("fail.2")
    job.until_runs(agents, 3, generation=1)
    job.kill(agents[1])
    job.until_runs([agents[0], agents[2]], 2, generation=2)
    assert all("workers are frozen" not in agent.text for agent in agents)
    assert job.stop() == [0, -9, 0]


def test_distant_hosts_with_packet_loss_keep_their_coordinator(lab: Lab, tmp_path: Path) -> None:
    """With 10 % packet loss and 200 ms each way, three endpoint hosts keep their coordinator, and
    their workers run nearly all the time.
    """
    job = Job(lab, tmp_path, *c10d("node1,node2,node3", "3"))
    agents = [job.start(f"node{number}") for number in (1, 2, 3)]
    job.until_runs(agents, 3)
    lab.set(delay_ms=200, loss=0.1)
    time.sleep(1)
    still = 0
    for _ in range(20):
        before = job.counts()
        time.sleep(0.5)
        still += sum(count <= before[name] for name, count in job.counts().items())
    lab.set(delay_ms=0, loss=0)
    assert still <= 6, (still, job.report())
    assert [generations(agent) for agent in agents] == [1, 1, 1]
    assert job.stop() == [0, 0, 0]


def test_node_distant_from_all_endpoint_hosts_can_join(lab: Lab, tmp_path: Path) -> None:
    """Packets take 600 ms, so no connection opens within the first timeout of a second."""
    job = Job(lab, tmp_path, *c10d("node1,node2,node3", "4"))
    lab.set(delay_ms=600, host="node4")
    agents = [job.start(f"node{number}") for number in (1, 2, 3, 4)]
    job.until_runs(agents, 4)
    assert job.stop() == [0, 0, 0, 0]


QUICK = "keep_alive_interval=1,keep_alive_max_attempt=3"
"""A silent node is lost after 3 s, and its workers run for 2 s."""


@pytest.mark.parametrize("seconds", [long(0.5), 3.0, long(8.0)])
@pytest.mark.parametrize(
    "endpoint",
    [pytest.param("node1", marks=pytest.mark.long), "node1,node2,node3"],
    ids=["one", "three"],
)
def test_brief_network_cut_causes_no_restart(
    lab: Lab, tmp_path: Path, endpoint: str, seconds: float
) -> None:
    """First a node is cut off, then the coordinator. Nothing is restarted or frozen.
    TCP alone would stay silent for up to 12.6 s after an 8 s cut.
    """
    job, agents = begin(lab, tmp_path, "2:3", 3, endpoint=endpoint)
    for host in ("node3", "node1"):
        lab.cut(host)
        time.sleep(seconds)
        lab.mend(host)
        for agent in agents:
            job.until_counts(agent.host)
    for agent in agents:
        assert generations(agent) == 1, agent.text
        assert "workers are frozen" not in agent.text, agent.text
    assert job.stop() == [0, 0, 0]


def test_missing_and_resumed_heartbeats_are_reported(lab: Lab, tmp_path: Path) -> None:
    job, agents = begin(lab, tmp_path, "2:3", 3)
    lab.cut("node3")
    for agent in agents[:2]:
        job.until_says(agent, r"no heartbeat from node3 for 1\.\d s; waiting up to 10 s")
    lab.mend("node3")
    for agent in agents[:2]:
        job.until_says(agent, r"heartbeats from node3 resumed after \d\.\d s")
    assert job.stop() == [0, 0, 0]


def test_permanently_isolated_node_freezes_before_others_continue(lab: Lab, tmp_path: Path) -> None:
    job, agents = begin(lab, tmp_path, "2:3", 3, conf=QUICK)
    lab.cut("node3")
    job.until_says(agents[2], "workers are frozen")
    assert generations(agents[0]) == generations(agents[1]) == 1
    job.until_runs(agents[:2], 2, generation=1)
    assert not job.running("node3")
    lab.mend("node3")
    job.until(lambda: in_one_group(job, agents))
    assert {worker.restart for agent in agents for worker in agent.workers} == {0}
    assert job.stop() == [0, 0, 0]


def test_network_cut_at_end_of_job_does_not_change_exit_code_0(lab: Lab, tmp_path: Path) -> None:
    job, agents = begin(lab, tmp_path, "3", 3)
    lab.cut("node3")
    job.tell("stop")
    time.sleep(5)
    lab.mend("node3")
    assert [agent.wait() for agent in agents] == [0, 0, 0]


def in_one_group(job: Job, agents: list[AgentOn]) -> bool:
    """Return whether all agents' workers are running in one generation that includes them all."""
    latest = {re.findall(r"generation (\d+): \d+ workers? on (\d+)", a.text)[-1] for a in agents}
    sizes = {size for _, size in latest}
    return (
        len(latest) == 1
        and sizes == {str(len(agents))}
        and all(job.running(agent.host) for agent in agents)
    )


def live_groups(job: Job, agents: list[AgentOn], pause: float) -> set[str]:
    """Return the generations whose workers count during a pause, as reported by each agent."""
    told = {a.host: re.findall(r"generation (\d+): \d+ workers", a.text)[-1:] for a in agents}
    before = job.counts()
    time.sleep(pause)
    after = job.counts()
    again = {a.host: re.findall(r"generation (\d+): \d+ workers", a.text)[-1:] for a in agents}
    running = {name.split(".")[1] for name, n in before.items() if after.get(name, 0) > n}
    return {told[host][0] for host in running if told[host] and told[host] == again[host]}


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param(("node2", "node3"), id="nodes", marks=pytest.mark.long),
        pytest.param(("node1",), id="coordinator"),
    ],
)
def test_flapping_link_never_causes_split_brain(
    lab: Lab, tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    """A link flaps for 16 s, with increasingly long cuts; all nodes are in one group afterwards."""
    job, agents = begin(lab, tmp_path, "2:4", 4, conf=QUICK)
    begun = time.monotonic()
    while (elapsed := time.monotonic() - begun) < 16:
        lab.cut(*hosts)
        assert len(live_groups(job, agents, 0.3 + elapsed / 3)) <= 1, job.report()
        lab.mend(*hosts)
        assert len(live_groups(job, agents, 0.3)) <= 1, job.report()
    job.until(lambda: in_one_group(job, agents))
    for agent in agents:
        assert {worker.restart for worker in agent.workers} == {0}
    assert job.stop() == [0, 0, 0, 0]


def test_nodes_stay_connected_and_losses_are_detected_without_udp(lab: Lab, tmp_path: Path) -> None:
    """If only TCP gets through, all nodes stay connected even at a half-second round trip, and a
    lost node is still noticed.
    """
    for name in ("node1", "node2", "node3", "node4"):
        command = ["ip", "rule", "add", "ipproto", "udp", "prohibit"]
        process = lab[name].start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.communicate(timeout=LIMIT_S)[0]
        if process.returncode:
            pytest.skip(f"the kernel has no routing rules for a protocol: {said!r}")
    job, agents = begin(lab, tmp_path, "2:4", 4, conf=QUICK)
    lab.set(delay_ms=250)
    time.sleep(4)
    for agent in agents:
        job.until_counts(agent.host)
        assert generations(agent) == 1
        assert "lost" not in agent.text, agent.text
    lab.set(delay_ms=0)
    lab.cut("node3")
    others = [agents[0], agents[1], agents[3]]
    job.until_runs(others, 3, generation=1)
    lab.mend("node3")
    job.until_runs(agents, 4, generation=2)
    assert job.stop() == [0, 0, 0, 0]


@pytest.mark.needs_iptables
def test_node_refused_by_firewall_freezes_its_workers(lab: Lab, tmp_path: Path) -> None:
    """Workers freeze 5 s after the first refusal, before the others continue without that node."""
    job, agents = begin(lab, tmp_path, "1:3", 3)
    for table, address in (("iptables", "address"), ("ip6tables", "address6")):
        for protocol, how in (("tcp", ["REJECT", "--reject-with", "tcp-reset"]), ("udp", ["DROP"])):
            rule = [table, "-A", "INPUT", "-p", protocol, "--dport", "29400"]
            source = ["-s", getattr(lab["node2"], address)]
            assert lab["node1"].start([*rule, *source, "-j", *how]).wait(LIMIT_S) == 0
    job.until_says(agents[1], "workers are frozen")
    assert generations(agents[0]) == 1
    job.until_runs([agents[0], agents[2]], 2, generation=1)
    assert not job.running("node2")
    job.until_counts("node1")
    job.tell("stop")
    assert [agents[0].wait(), agents[2].wait()] == [0, 0]
