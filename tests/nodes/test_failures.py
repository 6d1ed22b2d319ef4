"""How the other nodes react to failures on one node."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from conftest import LIMIT_S, long
from netlab import Lab

from nodes.jobs import AgentOn, Job, c10d
from relight.host import linux

pytestmark = [pytest.mark.slow, pytest.mark.needs_hosts]


def begin(
    lab: Lab, tmp_path: Path, nodes: str, hosts: int, *flags: str
) -> tuple[Job, list[AgentOn]]:
    job = Job(lab, tmp_path, *c10d("node1", nodes, "--rdzv-conf=last_call_timeout=2", *flags))
    agents = [job.start(f"node{number}") for number in range(1, hosts + 1)]
    job.until_runs(agents, hosts)
    return job, agents


def test_worker_failure_restarts_all_nodes_together(lab: Lab, tmp_path: Path) -> None:
    """All nodes restart with the same restart count and report why; ranks stay the same."""
    job, agents = begin(lab, tmp_path, "3", 3, "--max-restarts=1", "--nproc-per-node=2")
    job.tell("fail.3")
    job.until_runs(agents, 3, generation=1)
    for number, agent in enumerate(agents):
        assert "rank 3 raised ValueError: rank 3 was told to fail" in agent.text
        assert [w.restart for w in agent.workers] == [0, 0, 1, 1]
        assert {w.group_rank for w in agent.workers} == {number}
    job.tell("fail.4")
    assert [agent.wait() for agent in agents] == [1, 1, 1]
    for agent in agents:
        report = agent.text[agent.text.rindex("relight: rank 4") :]
        assert re.search(r"on node3: local rank 0, pid \d+", report)
        assert "the only restart is used up" in report
        assert "Traceback" in report


def test_restart_below_maximum_size_does_not_wait_for_more_nodes(lab: Lab, tmp_path: Path) -> None:
    """2 of at most 3 nodes are present. A restart does not wait for the last call, which takes
    longer than the test (torchrun: 30 s).
    """
    flags = f"--rdzv-conf=last_call_timeout={2 * LIMIT_S}", "--max-restarts=1"
    job = Job(lab, tmp_path, *c10d("node1", "2:3", *flags))
    agents = [job.start(f"node{number}") for number in (1, 2, 3)]
    job.until_runs(agents, 3)
    left = agents.pop()
    job.kill(left, signal.SIGTERM)
    job.until_runs(agents, 2, generation=1)
    job.tell(f"fail.{agents[1].workers[-1].rank}")
    job.until_runs(agents, 2, generation=2)
    assert job.stop() == [0, 0, 143]


@pytest.mark.parametrize("how", [long("kill"), "cut", long("freeze")])
def test_survivors_continue_after_node_loss(lab: Lab, tmp_path: Path, how: str) -> None:
    """The survivors continue without using the restart budget, and keep their order."""
    job, agents = begin(lab, tmp_path, "2:4", 4)
    lost, others = agents[2], [agents[0], agents[1], agents[3]]
    if how == "kill":
        job.kill(lost)
    elif how == "cut":
        lab.cut("node3")
    else:
        job.kill(lost, signal.SIGSTOP)
    job.until_runs(others, 3, generation=1)
    assert [agent.workers[-1].rank for agent in others] == [0, 1, 2]
    assert {agent.workers[-1].restart for agent in others} == {0}
    assert "node3 was lost" in others[0].text
    assert not job.running("node3")
    if how == "cut":
        lab.mend("node3")
    elif how == "freeze":
        job.kill(lost, signal.SIGCONT)
    if how != "kill":  # it discovers that it is out of the group, and rejoins
        job.until_runs([lost, *others], 4, generation=2)
        assert lost.workers[-1].rank == 3
        assert job.stop() == [0, 0, 0, 0]
    else:
        assert job.stop() == [0, 0, -9, 0]


def test_node_that_receives_no_packets_stops_its_workers_and_is_excluded(
    lab: Lab, tmp_path: Path
) -> None:
    """If a node can send but not receive, it stops its workers and the others continue."""
    job, agents = begin(lab, tmp_path, "2:3", 3)
    lab.block("node1", "node3")
    job.until_runs(agents[:2], 2, generation=1)
    assert not job.running("node3")
    lab.heal()
    job.until_runs(agents, 3, generation=2)
    assert job.stop() == [0, 0, 0]


def test_survivors_below_minimum_wait_for_replacement(lab: Lab, tmp_path: Path) -> None:
    """The survivors report the missing node, and a replacement takes the lost node's place."""
    job, agents = begin(lab, tmp_path, "3", 3)
    job.kill(agents[1])
    text = r"node2 was lost: .*; 2 of 3 nodes left: node1, node3; waiting for 1 more"
    job.until_says(agents[0], text)
    assert not job.running("node1")
    replacement = job.start("node4")
    together = [agents[0], replacement, agents[2]]
    job.until_runs(together, 3, generation=1)
    assert [agent.workers[-1].rank for agent in together] == [0, 1, 2]
    job.tell("stop")
    assert [agent.wait() for agent in together] == [0, 0, 0]


def test_job_with_too_few_nodes_ends_after_join_timeout(lab: Lab, tmp_path: Path) -> None:
    """The job ends with exit code 3 on all nodes."""
    job = Job(lab, tmp_path, *c10d("node1", "2", "--rdzv-conf=join_timeout=3"))
    agents = [job.start("node1"), job.start("node2")]
    job.until_runs(agents, 2)
    job.kill(agents[1])
    assert agents[0].wait() == 3
    text = r"gave up after 3 s: node2 was lost: .*; 1 of 2 nodes left: node1"
    assert re.search(text, agents[0].text), agents[0].text


def test_node_leaves_on_sigterm_and_others_continue(lab: Lab, tmp_path: Path) -> None:
    """An agent that receives SIGTERM exits with code 143. The others continue immediately, without
    using the restart budget.
    """
    job, agents = begin(lab, tmp_path, "2:3", 3)
    job.kill(agents[1], signal.SIGTERM)
    assert agents[1].wait() == 143
    job.until_runs([agents[0], agents[2]], 2, generation=1)
    assert "node2 left: its agent got SIGTERM" in agents[0].text
    assert agents[0].workers[-1].restart == 0
    job.tell("stop")
    assert (agents[0].wait(), agents[2].wait()) == (0, 0)


def test_workers_on_other_nodes_outlive_the_coordinator(lab: Lab, tmp_path: Path) -> None:
    """Workers on other nodes keep running; a new agent at the endpoint takes its group rank."""
    job, agents = begin(lab, tmp_path, "3", 3)
    job.kill(agents[0])
    job.until_says(agents[1], "lost the coordinator")
    time.sleep(2)
    job.until_counts("node2")  # its host is alive, and a refused connection is not silence
    back = job.start("node1")
    together = [back, agents[1], agents[2]]
    job.until_runs(together, 3, generation=1)
    assert [agent.workers[-1].rank for agent in together] == [0, 1, 2]
    job.tell("stop")
    assert [agent.wait() for agent in together] == [0, 0, 0]


def test_workers_freeze_while_coordinator_host_is_cut_off(lab: Lab, tmp_path: Path) -> None:
    """Workers on nodes without heartbeats freeze, and continue once the network is restored."""
    job, agents = begin(lab, tmp_path, "3", 3)
    lab.cut("node1")
    job.until_says(agents[1], "workers are frozen")
    assert not job.running("node2")
    lab.mend("node1")
    job.until(lambda: job.running("node2") and job.running("node3"))
    assert job.stop() == [0, 0, 0]


def test_workers_freeze_even_if_spawner_is_stopped(lab: Lab, tmp_path: Path) -> None:
    """The spawner freezes the workers, so once their lease has expired, the agent keeps resuming
    the spawner until it has done so.
    """
    job, agents = begin(lab, tmp_path, "2:3", 3)
    _, spawner, *_ = linux.tree(agents[1].process.pid)  # after the guard
    lab.cut("node2")
    end = time.monotonic() + 1.3  # longer than the lease
    while time.monotonic() < end:
        os.kill(spawner, signal.SIGSTOP)
        time.sleep(0.01)
    job.until_says(agents[1], "workers are frozen")
    assert not job.running("node2")
    job.until_runs([agents[0], agents[2]], 2, generation=1)  # mended earlier, it would stay
    lab.mend("node2")
    job.until_runs(agents, 3, generation=2)
    assert job.stop() == [0, 0, 0]


def test_only_one_side_of_a_partition_runs(lab: Lab, tmp_path: Path) -> None:
    """The coordinator's side continues; the other side, just as large, freezes its workers."""
    job, agents = begin(lab, tmp_path, "1:4", 4)
    lab.partition(["node1", "node2"], ["node3", "node4"])
    job.until_runs(agents[:2], 2, generation=1)
    assert not job.running("node3")
    assert not job.running("node4")
    job.until_counts("node1")
    lab.heal()
    job.until_runs(agents, 4, generation=2)
    assert job.stop() == [0, 0, 0, 0]


def test_finished_node_exits_when_another_node_fails_permanently(lab: Lab, tmp_path: Path) -> None:
    """The node that is done exits with the failure's exit code. It does not wait for the exit
    barrier, whose timeout is longer than the test (torchrun: 300 s).
    """
    job, agents = begin(lab, tmp_path, "2", 2, f"--rdzv-conf=exit_barrier_timeout={2 * LIMIT_S}")
    job.tell("finish.0")
    job.until(lambda: not job.running("node1"))
    job.tell("fail.1")
    assert [agent.wait() for agent in agents] == [1, 1]
    assert "rank 1 raised ValueError" in agents[0].text


def test_node_without_the_script_does_not_fail_the_job(lab: Lab, tmp_path: Path) -> None:
    """That node fails before it joins, and the others wait for one that has the script."""
    job = Job(lab, tmp_path, *c10d("node1", "2"))
    first = job.start("node1")
    wrong = job.start("node2", script=("trian.py",))
    assert wrong.wait() == 2
    assert "did you mean" in wrong.text
    second = job.start("node3")
    job.until_runs([first, second], 2)
    job.tell("stop")
    assert (first.wait(), second.wait()) == (0, 0)


def test_node_with_different_nnodes_is_rejected(lab: Lab, tmp_path: Path) -> None:
    """A node that was started with a different size is refused, and both sizes are reported."""
    job = Job(lab, tmp_path, *c10d("node1", "2"))
    first = job.start("node1")
    job.until_says(first, "waiting for 1 more")
    wrong = job.start("node2", "--nnodes=3")
    assert wrong.wait() == 2
    assert re.search(r"--nnodes=3.* on node2.* --nnodes=2", wrong.text)
    second = job.start("node3")
    job.until_runs([first, second], 2)
    job.tell("stop")
    assert (first.wait(), second.wait()) == (0, 0)


CHECKPOINTING = """
import os, sys, time
from relight.worker import should_checkpoint
os.write(1, f"started in a world of {os.environ['WORLD_SIZE']}\\n".encode())
end = time.monotonic() + 900
while time.monotonic() < end and not os.path.exists("stop"):
    if should_checkpoint():
        open(f"saved.{os.environ['RANK']}", "w").close()
        sys.exit(0)
    time.sleep(0.02)
"""


def test_workers_checkpoint_before_new_nodes_are_admitted(lab: Lab, tmp_path: Path) -> None:
    """With --membership-change=at-checkpoint, workers save and exit before the group grows."""
    (tmp_path / "saving.py").write_text(CHECKPOINTING)
    flags = ("--rdzv-conf=last_call_timeout=1", "--membership-change=at-checkpoint")
    job = Job(lab, tmp_path, *c10d("node1", "1:2", *flags))
    first = job.start("node1", script=("saving.py",))
    job.until_says(first, "started in a world of 1")
    second = job.start("node2", script=("saving.py",))
    for agent in (first, second):
        job.until_says(agent, "started in a world of 2")
    assert (tmp_path / "saved.0").exists()
    assert job.stop() == [0, 0]


def test_worker_that_never_checkpoints_is_stopped_after_timeout(lab: Lab, tmp_path: Path) -> None:
    """A script that never checks for the request is stopped after checkpoint_timeout."""
    flags = ("--rdzv-conf=last_call_timeout=1,checkpoint_timeout=1",
             "--membership-change=at-checkpoint")  # fmt: skip
    job = Job(lab, tmp_path, *c10d("node1", "1:2", *flags))
    first = job.start("node1")
    job.until_runs([first], 1)
    second = job.start("node2")
    job.until_runs([first, second], 2, generation=1)
    assert job.stop() == [0, 0]


def test_loss_of_only_endpoint_host_ends_job_after_join_timeout(lab: Lab, tmp_path: Path) -> None:
    """If a single endpoint host is gone, the others wait for the join timeout, then exit with code
    3 and leave no workers behind.
    """
    job, agents = begin(lab, tmp_path, "3", 3, "--rdzv-conf=last_call_timeout=2,join_timeout=3")
    lab.cut("node1")
    for agent in agents[1:]:
        assert agent.wait() == 3, agent.text
        assert "no coordinator at node1:29400" in agent.text
        assert "error    node1:29400: no response" in agent.text  # what `relight doctor` sees
        assert "relight doctor --nnodes=N --rdzv-endpoint=node1:29400" in agent.text
    assert not job.running("node2")


SAVES = """
import os, signal, time
def on_term(*_):
    open(f"asked.{os.environ['RANK']}", "w").write(str(time.monotonic()))
signal.signal(signal.SIGTERM, on_term)
file = os.open(f"alive.{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT)
open(f"begun.{os.environ['RANK']}", "w").close()
while True:
    time.sleep(0.02)
    os.pwrite(file, f"{time.monotonic():20.6f}".encode(), 0)
    if os.path.exists(f"fail.{os.environ['RANK']}"):
        raise SystemExit(3)
"""


def test_grace_period_is_the_same_on_all_nodes(lab: Lab, tmp_path: Path) -> None:
    """When a rank fails, all ranks on all nodes are asked to stop and killed at the same time."""
    job = Job(lab, tmp_path, *c10d("node1", "3", "--nproc-per-node=2", "--shutdown-timeout=3"))
    (tmp_path / "saves.py").write_text(SAVES)
    agents = [job.start(f"node{number}", script=("saves.py",)) for number in (1, 2, 3)]
    job.until(lambda: len(list(tmp_path.glob("begun.*"))) == 6, "all workers")
    job.tell("fail.3")
    assert [agent.wait() for agent in agents] == [3, 3, 3]
    others = [rank for rank in range(6) if rank != 3]
    asked = [float((tmp_path / f"asked.{rank}").read_text()) for rank in others]
    killed = [float((tmp_path / f"alive.{rank}").read_text()) for rank in others]
    assert max(asked) < min(killed)
    # Neither immediately nor after the default, with some tolerance for a busy machine.
    assert all(1 < k - a < 20 for a, k in zip(asked, killed, strict=True)), (asked, killed)


@pytest.mark.parametrize("kind", ["worker", long("warm")])
def test_heartbeat_socket_is_held_by_spawner_but_not_by_workers(
    lab: Lab, tmp_path: Path, kind: str
) -> None:
    """So the machine rejects datagrams to this port once the spawner has exited, and not before."""
    flags = ("--preload=json",) if kind == "warm" else ()
    job, agents = begin(lab, tmp_path, "1:2", 2, "--max-restarts=1", *flags)
    generation = 0
    lost = agents[1]
    if kind == "warm":  # the first one may be cold
        name = f"warm spawner of {lost.process.pid}"
        job.until(lambda: pids_by_name(name), name)
        job.tell("fail.1")
        job.until_runs(agents, 2, generation=1)
        generation = 1
    (spawner,) = pids_by_name(f"{kind} spawner of {lost.process.pid}")
    held = heartbeat_sockets(spawner)
    assert held == heartbeat_sockets(lost.process.pid) != set()
    (worker,) = Path(f"/proc/{spawner}/task/{spawner}/children").read_text().split()
    assert heartbeat_sockets(int(worker)) == set()
    job.until_says(agents[0], rf"generation {generation}: ")
    job.kill(lost)
    job.until_runs(agents[:1], 1, generation=generation + 1)
    assert not job.running("node2")
    assert job.stop() == [0, -9]


def pids_by_name(name: str) -> list[int]:
    """Return the processes with this name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has exited
        if re.search(rf"^{name}\b", words):
            found.append(int(path.parent.name))
    return found


def heartbeat_sockets(pid: int) -> set[str]:
    """Return the inodes of a process's UDP sockets."""
    mine = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("udp", "udp6")]
    inodes = {line.split()[9] for text in lines for line in text.splitlines()[1:]}
    return {inode for inode in inodes if f"socket:[{inode}]" in mine}
