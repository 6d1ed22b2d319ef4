"""Nodes find each other and get their ranks, however the endpoint is named."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import long
from netlab import Lab

from nodes.jobs import WORKER, Job, c10d

pytestmark = pytest.mark.needs_hosts

MEET_IN_STORE = """
import os, socket, struct
master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
def text(value):
    return struct.pack("=Q", len(value)) + value
with socket.create_connection(master) as store:
    store.sendall(b"\\0" + struct.pack("=I", 0x3C85F7CE))  # as in host/store_server.py
    if os.environ["RANK"] == "0":
        store.sendall(b"\\1" + text(b"key") + text(b"from rank 0"))
    store.sendall(b"\\6" + struct.pack("=Q", 1) + text(b"key"))
    answers = store.makefile("rb")
    answers.read(1)  # until the key is there
    store.sendall(b"\\3" + text(b"key"))
    print("read", answers.read(8 + 11)[8:], flush=True)
"""
FORWARDER = """
import socket, threading
def copy(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)
server = socket.create_server(("", 29777))
print("ready", flush=True)
while True:
    client = server.accept()[0]
    try:
        target = socket.create_connection(("10.77.0.1", 29501))
    except OSError:  # nobody listens there yet
        client.close()
        continue
    threading.Thread(target=copy, args=(client, target), daemon=True).start()
    threading.Thread(target=copy, args=(target, client), daemon=True).start()
"""


@pytest.mark.parametrize(
    "endpoint",
    [long("10.77.0.1:29400"), "node1", long("node1:1234"), "[fd77::1]:29400"],
)
def test_nodes_rendezvous_at_endpoint_given_by_any_name(
    lab: Lab, tmp_path: Path, endpoint: str
) -> None:
    """The nodes meet and finish together at an address, a name from /etc/hosts, or IPv6."""
    job = Job(lab, tmp_path, *c10d(endpoint, "3", "--nproc-per-node=2"))
    agents = [job.start(host) for host in ("node3", "node1", "node2")]
    job.until_runs(agents, 3)
    ranks = sorted(worker.rank for agent in agents for worker in agent.workers)
    assert ranks == list(range(6))
    assert {worker.world for agent in agents for worker in agent.workers} == {6}
    assert len({worker.master for agent in agents for worker in agent.workers}) == 1
    assert [agent.workers[0].group_rank for agent in agents] == [2, 0, 1]  # by name
    assert job.stop() == [0, 0, 0]


def test_rank_0_runs_on_endpoint_host_on_request(lab: Lab, tmp_path: Path) -> None:
    """Otherwise it runs on the host whose name sorts first."""
    flags = c10d("node2", "3", "--rdzv-conf=rank0=endpoint")
    job = Job(lab, tmp_path, *flags)
    agents = [job.start(host) for host in ("node1", "node2", "node3")]
    job.until_runs(agents, 3)
    assert [agent.workers[0].rank for agent in agents] == [1, 0, 2]
    assert job.stop() == [0, 0, 0]


def test_nodes_with_different_sizes_and_roles_get_correct_ranks(lab: Lab, tmp_path: Path) -> None:
    """Ranks, role ranks, and local sizes are correct if nodes differ."""
    job = Job(lab, tmp_path, *c10d("node1", "3"))
    agents = [
        job.start("node1", "--nproc-per-node=1", "--role=reader"),
        job.start("node2", "--nproc-per-node=3", "--role=trainer"),
        job.start("node3", "--nproc-per-node=2", "--role=trainer"),
    ]
    job.until_runs(agents, 3)
    job.until(lambda: sum(len(agent.workers) for agent in agents) == 6)
    found = sorted(
        (w.rank, w.pairs["ROLE_RANK"], w.pairs["ROLE_WORLD_SIZE"], w.pairs["LOCAL_WORLD_SIZE"])
        for agent in agents
        for w in agent.workers
    )
    assert found == [
        (0, "0", "1", "1"),
        (1, "0", "5", "3"), (2, "1", "5", "3"), (3, "2", "5", "3"),
        (4, "3", "5", "2"), (5, "4", "5", "2"),
    ]  # fmt: skip
    assert job.stop() == [0, 0, 0]


def test_node_rank_determines_node_order(lab: Lab, tmp_path: Path) -> None:
    """The workers rendezvous at the given port."""
    flags = ("--nnodes=3", "--master-addr=10.77.0.2", "--master-port=29501")
    job = Job(lab, tmp_path, *flags)
    agents = [
        job.start("node1", "--node-rank=2"),
        job.start("node2", "--node-rank=0"),
        job.start("node3", "--node-rank=1"),
    ]
    job.until_runs(agents, 3)
    assert [agent.workers[0].rank for agent in agents] == [2, 0, 1]
    assert {agent.workers[0].master for agent in agents} == {"10.77.0.2:29501"}
    assert job.stop() == [0, 0, 0]


@pytest.mark.parametrize(
    ("here", "elsewhere", "more"),
    [
        ("localhost", "10.77.0.1", ()),
        long("localhost", "10.77.0.1", ("--local-addr=localhost",)),
        long("127.0.0.1", "node1", ()),
        ("127.0.1.1", "node1", ()),
        ("ip6-localhost", "[fd77::1]", ()),
        long("[::1]", "10.77.0.1", ()),
    ],
)
def test_loopback_endpoint_accepts_nodes_from_other_machines(
    lab: Lab, tmp_path: Path, here: str, elsewhere: str, more: tuple[str, ...]
) -> None:
    """The node that hosts the endpoint may use a name for it that is only valid on its machine."""
    job = Job(lab, tmp_path, "--rdzv-backend=c10d", "--nnodes=2")
    agents = [
        job.start("node1", f"--rdzv-endpoint={here}:29400", *more),
        job.start("node2", f"--rdzv-endpoint={elsewhere}:29400"),
    ]
    job.until_runs(agents, 2)
    masters = {agent.workers[0].pairs["MASTER_ADDR"] for agent in agents}
    assert masters in ({"10.77.0.1"}, {"fd77::1"})
    assert job.stop() == [0, 0]


def test_hosts_whose_name_maps_to_loopback_elect_a_coordinator(lab: Lab, tmp_path: Path) -> None:
    """Debian's /etc/hosts maps the machine's own name to 127.0.1.1."""
    job = Job(lab, tmp_path, *c10d("node1,node2,node3", "3"))
    for number in (1, 2, 3):
        own = f"s/^10.77.0.{number}/127.0.1.1/; /^fd77/d"
        debian = ("sh", "-c", f'sed "{own}" /etc/hosts > hosts{number} && '
                  f'cat hosts{number} > /etc/hosts && exec "$@"', "sh")  # fmt: skip
        job.start(f"node{number}", under=debian)
    job.until_runs(job.agents, 3)
    assert len({agent.workers[0].master for agent in job.agents}) == 1
    assert job.stop() == [0, 0, 0]


def test_workers_use_address_and_port_given_to_their_node(lab: Lab, tmp_path: Path) -> None:
    """As with torchrun, the nodes in a static rendezvous may use different addresses and ports for
    node 0. Here node3 forwards one of its own ports to node1, and node2 uses node1's name.
    """
    job = Job(lab, tmp_path, "--nnodes=2")
    (tmp_path / "train.py").write_text(MEET_IN_STORE + WORKER)
    mapping = lab["node3"].start([sys.executable, "-c", FORWARDER], stdout=subprocess.PIPE)
    assert mapping.stdout is not None
    assert mapping.stdout.readline() == b"ready\n"
    lab.block("node2", "node1")
    lab.block("node1", "node2")
    agents = [
        job.start("node1", "--node-rank=0", "--master-addr=localhost", "--master-port=29501"),
        job.start("node2", "--node-rank=1", "--master-addr=node3", "--master-port=29777"),
    ]
    job.until_runs(agents, 2)
    masters = [agent.workers[0].master for agent in agents]
    assert masters == ["localhost:29501", "node3:29777"]
    assert "read b'from rank 0'" in agents[1].text
    assert job.stop() == [0, 0]


def test_second_node_with_same_rank_is_rejected(lab: Lab, tmp_path: Path) -> None:
    """The second node with the same rank is refused by name; the job continues with the first."""
    job = Job(lab, tmp_path, "--nnodes=2", "--master-addr=10.77.0.1")
    first = job.start("node1", "--node-rank=0")
    job.until_says(first, r"waiting for 1 more")
    wrong = job.start("node2", "--node-rank=0")
    assert wrong.wait() != 0
    right = job.start("node3", "--node-rank=1")
    job.until_runs([first, right], 2)
    job.tell("stop")
    assert (first.wait(), right.wait()) == (0, 0)


def test_waiting_node_reports_which_nodes_are_present(lab: Lab, tmp_path: Path) -> None:
    """A line names the nodes present and how long the group will wait; then exit code 3."""
    flags = c10d("node1", "3", "--rdzv-conf=join_timeout=3")
    job = Job(lab, tmp_path, *flags)
    agents = [job.start("node1"), job.start("node2")]
    for agent in agents:
        assert agent.wait() == 3, agent.text
        assert re.search(
            r"2 of 3 nodes have joined: node\d, node\d; waiting for 1 more", agent.text
        )
        assert "gave up after 3 s" in agent.text


def test_node_gives_up_if_no_node_hosts_the_endpoint(lab: Lab, tmp_path: Path) -> None:
    """If nobody hosts the endpoint, a node reports that and gives up with exit code 3."""
    job = Job(lab, tmp_path, *c10d("node4", "2", "--rdzv-conf=join_timeout=2"))
    agent = job.start("node1")
    assert agent.wait() == 3
    assert "no coordinator at node4:29400" in agent.text


def test_unrelated_program_on_endpoint_port_is_reported(lab: Lab, tmp_path: Path) -> None:
    """A program that accepts the connection but sends nothing is reported, and nothing hangs."""
    script = "import socket, time; s = socket.create_server(('10.77.0.1', 29400)); time.sleep(100)"
    lab["node1"].start([sys.executable, "-c", script])
    job = Job(lab, tmp_path, *c10d("10.77.0.1", "2", "--rdzv-conf=join_timeout=7"))
    agents = [job.start("node2"), job.start("node1")]
    for agent in agents:
        assert agent.wait() == 3, agent.text
        assert "is it relight?" in agent.text


def test_elastic_job_starts_after_last_call_timeout(lab: Lab, tmp_path: Path) -> None:
    """With 2:4 and two nodes, the group forms if no other node arrives within last_call_timeout."""
    flags = c10d("node1", "2:4", "--rdzv-conf=last_call_timeout=1")
    job = Job(lab, tmp_path, *flags)
    agents = [job.start("node1"), job.start("node2")]
    assert job.until_runs(agents, 2) >= 0.8
    assert job.stop() == [0, 0]


def test_new_nodes_are_admitted_together_and_spares_wait(lab: Lab, tmp_path: Path) -> None:
    """Two that arrive together cause one new generation; one above the maximum becomes a spare."""
    flags = c10d("node1", "1:3", "--rdzv-conf=last_call_timeout=4")
    job = Job(lab, tmp_path, *flags)
    first = job.start("node1")
    job.until_runs([first], 1)
    more = [job.start("node2"), job.start("node3")]
    job.until_runs([first, *more], 3, generation=1)
    assert first.workers[-1].rank == 0  # the first node keeps rank 0
    assert {worker.restart for agent in [first, *more] for worker in agent.workers} == {0}
    spare = job.start("node4")
    job.until_says(spare, "kept as a spare")
    assert not spare.workers
    lost_rank = more[0].workers[-1].rank
    job.kill(more[0])
    job.until_runs([first, more[1], spare], 3, generation=2)
    assert spare.workers[-1].rank == lost_rank
    job.tell("stop")
    assert [agent.wait() for agent in (first, more[1], spare)] == [0, 0, 0]


def test_two_jobs_at_one_endpoint_do_not_affect_each_other(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    flags = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1")
    one = Job(lab, tmp_path / "a", *flags, "--rdzv-id=a")
    two = Job(lab, tmp_path / "b", *flags, "--rdzv-id=b")
    agents = [one.start("node1"), two.start("node2"), one.start("node3"), two.start("node4")]
    one.until_runs(one.agents, 2)
    two.until_runs(two.agents, 2)
    two.tell("stop")
    assert [agent.wait() for agent in two.agents] == [0, 0]
    one.tell("stop")
    assert [agent.wait() for agent in one.agents] == [0, 0]
    assert len(agents) == 4


def test_jobs_waiting_at_one_endpoint_report_each_other(lab: Lab, tmp_path: Path) -> None:
    """Two nodes that were meant to form one job would wait forever if their ids differ."""
    flags = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1")
    job = Job(lab, tmp_path, *flags)
    agents = [job.start("node1", "--rdzv-id=train-7"), job.start("node2", "--rdzv-id=train-8")]
    for agent in agents:
        job.until_says(
            agent,
            r"note: 2 jobs with different --rdzv-id are waiting for nodes at this endpoint: "
            r"train-7 \(1 of 2 nodes: node1\), train-8 \(1 of 2 nodes: node2\); if they are one "
            "job, give all its nodes the same id",
        )
    late = [job.start("node3", "--rdzv-id=train-7"), job.start("node4", "--rdzv-id=train-8")]
    job.until_runs([*agents, *late], 2)
    for agent in (agents[1], late[1]):  # first, since their coordinator leaves with its job
        job.kill(agent, signal.SIGTERM)
        agent.wait()
    assert job.stop() == [0, 143, 0, 143]
    assert [agent.text.count("note: 2 jobs") for agent in job.agents] == [1, 1, 0, 0]


@pytest.mark.parametrize("endpoint", ["127.0.1.1", "localhost"])
def test_node_waiting_at_its_own_loopback_address_prints_a_note(
    lab: Lab, tmp_path: Path, endpoint: str
) -> None:
    """Each node hosts an endpoint on its own machine, and would otherwise wait silently."""
    job = Job(lab, tmp_path, *c10d(endpoint, "2"))
    for agent in [job.start("node1"), job.start("node2")]:
        job.until_says(
            agent,
            rf"note: endpoint {endpoint}:29400 is the loopback address (::1, )?127.0.[01].1 on "
            "this node, and no other machine has joined; give the other nodes an address of this "
            "machine that they can reach",
        )
