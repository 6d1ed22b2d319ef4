"""Jobs whose coordinator is recorded in a registry: real etcd, or a directory."""

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, clean_environment, long
from etcd_server import EtcdCluster, EtcdServer
from netlab import Lab

from nodes.jobs import AgentOn, Job, OneMachine

pytestmark = pytest.mark.slow


@pytest.fixture
def here() -> Iterator[OneMachine]:
    with OneMachine() as machine:
        yield machine


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


ETCD = pytest.param("etcd", marks=pytest.mark.needs_etcd)


@pytest.fixture(params=[ETCD, long("file")])  # rendezvous/test_contract.py has all
def flags(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """The flags that make a job's nodes meet, with a new job id for each test."""
    where = str(tmp_path / "meet")
    if request.param != "file":
        where = request.getfixturevalue("etcd").endpoint
    return register_flags(request.param, where, tmp_path.name)


def register_flags(backend: str, where: str, job: str) -> tuple[str, ...]:
    return (f"--rdzv-backend={backend}", f"--rdzv-endpoint={where}", f"--rdzv-id={job}")


@pytest.mark.parametrize("flags", [ETCD, "file"], indirect=True)
def test_nodes_rendezvous_through_a_registry(
    flags: tuple[str, ...], here: OneMachine, tmp_path: Path
) -> None:
    """Three nodes find each other, train, and finish; the same id can be reused immediately."""
    job = Job(here, tmp_path, *flags, "--nnodes=3", "--nproc-per-node=2")
    for _ in range(2):
        agents = [job.start(f"agent{number}") for number in range(3)]
        job.until_runs(agents, 3)
        assert {w.world for agent in agents for w in agent.workers} == {6}
        assert job.stop() == [0] * len(job.agents)
        (tmp_path / "stop").unlink()


def test_other_nodes_continue_after_coordinator_is_killed(
    flags: tuple[str, ...], here: OneMachine, tmp_path: Path
) -> None:
    """If the coordinating node is killed, the others continue without it and without a restart."""
    job = Job(here, tmp_path, *flags, "--nnodes=2:3", "--rdzv-conf=last_call_timeout=9")
    agents = [job.start("agent0")]
    job.until_says(agents[0], "waiting|has joined|have joined")
    agents += [job.start("agent1"), job.start("agent2")]
    job.until_runs(agents, 3)
    job.kill(agents[0])
    others = agents[1:]
    job.until_runs(others, 2, generation=1)
    assert {agent.workers[-1].restart for agent in others} == {0}
    job.tell("stop")
    assert [agent.wait() for agent in others] == [0, 0]


def test_coordinator_failover_does_not_affect_workers(
    flags: tuple[str, ...], here: OneMachine, tmp_path: Path
) -> None:
    """A second `relight coordinator` takes over."""
    job = Job(here, tmp_path, *flags, "--nnodes=2", "--rdzv-conf=is_host=0")
    first = coordinator(here, tmp_path, "first", *flags)
    until(lambda: " on port " in first[1].read_text())
    second = coordinator(here, tmp_path, "second", *flags)
    until(lambda: "waiting: " in second[1].read_text())
    agents = [job.start("agent0"), job.start("agent1")]
    job.until_runs(agents, 2)
    pids = sorted(job.counts())
    first[0].kill()
    until(lambda: " on port " in second[1].read_text())
    until(lambda: all("lost the coordinator" in agent.text for agent in agents))
    before = job.counts()
    until(lambda: all(job.counts()[name] > before[name] + 20 for name in before))
    assert sorted(job.counts()) == pids
    assert job.stop() == [0, 0]
    assert "refused a connection" not in first[1].read_text()  # the second probes it
    second[0].send_signal(signal.SIGTERM)
    assert second[0].wait(LIMIT_S) == 0


def test_coordinator_paused_beyond_its_lease_cannot_act(
    flags: tuple[str, ...], here: OneMachine, tmp_path: Path
) -> None:
    """The coordinator is replaced while stopped, and its group has ended when it continues."""
    conf = "--rdzv-conf=last_call_timeout=9,lease_ttl=4"
    job = Job(here, tmp_path, *flags, "--nnodes=2:3", conf)
    agents = [job.start("agent0")]
    job.until_says(agents[0], "waiting|has joined|have joined")
    agents += [job.start("agent1"), job.start("agent2")]
    job.until_runs(agents, 3)
    frozen, others, old = agents[0], agents[1:], job.counts()
    pause_outside_of_lock(job, frozen)
    job.until_runs(others, 2, generation=1)
    job.until(lambda: sum(keeps_counting(job, name) for name in job.counts()) == 2)
    assert not any(keeps_counting(job, name) for name in old)  # it stops before the others run
    job.kill(frozen, signal.SIGCONT)
    job.until_runs(agents, 3, generation=2)
    assert job.stop() == [0, 0, 0]
    assert not any("nonsense" in agent.text for agent in agents)


def pause_outside_of_lock(job: Job, agent: AgentOn) -> None:
    """Stop an agent while it holds no lock on a file registry, or nobody could take its place."""

    def is_paused() -> bool:
        job.kill(agent, signal.SIGSTOP)
        stat = Path(f"/proc/{agent.process.pid}/stat")
        job.until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "a stopped agent")
        if any(map(is_locked, job.directory.glob("meet/*.lock"))):
            job.kill(agent, signal.SIGCONT)
            return False
        return True

    job.until(is_paused)


def is_locked(path: Path) -> bool:
    with open(path, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.needs_etcd
def test_registry_outage_does_not_stop_workers(
    here: OneMachine, etcd: EtcdServer, tmp_path: Path
) -> None:
    """While etcd is down for ten seconds, workers keep running; afterwards nothing has changed."""
    job = Job(here, tmp_path, *register_flags("etcd", etcd.endpoint, tmp_path.name), "--nnodes=2:3",
              "--rdzv-conf=last_call_timeout=1", "--max-restarts=1")  # fmt: skip
    agents = [job.start("agent0"), job.start("agent1")]
    job.until_runs(agents, 2)
    etcd.kill(0)
    end = time.monotonic() + 10  # less than lease_ttl
    while time.monotonic() < end:
        before = job.counts()
        time.sleep(1)
        after = job.counts()
        assert all(after[name] > before[name] for name in before), job.report()
    etcd.start(0)
    etcd.wait_healthy()
    job.tell("fail.0")
    job.until_runs(agents, 2, generation=1)
    agents.append(job.start("agent2"))
    job.until_runs(agents, 3, generation=2)
    assert job.stop() == [0, 0, 0]


@pytest.mark.needs_etcd
@pytest.mark.needs_root
def test_lost_coordinator_is_replaced_even_if_registry_disk_is_full(
    here: OneMachine, tmp_path: Path
) -> None:
    """The next coordinator writes its record once, and keeps it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=True)
    try:
        job = Job(here, tmp_path, *register_flags("file", f"{disk}/meet", "job"), "--nnodes=2:3")
        agents = [job.start("agent0")]
        job.until_says(agents[0], "this node coordinates the group now")
        agents += [job.start("agent1"), job.start("agent2")]
        job.until_runs(agents, 3)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (disk / "filler").write_bytes(bytes(1 << 20))
        job.kill(agents[0])
        others = agents[1:]
        job.until_runs(others, 2, generation=1)
        job.tell("stop")
        assert [agent.wait() for agent in others] == [0, 0]
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert sum(agent.text.count("coordinates the group now") for agent in others) == 1
    assert not any("no longer coordinates" in agent.text for agent in others)


@pytest.mark.needs_etcd
def test_coordinator_lost_while_etcd_is_full_is_replaced_afterwards(
    here: OneMachine, tmp_path: Path
) -> None:
    """While the NOSPACE alarm is set, etcd accepts no record: the nodes report that, and wait.
    Nobody takes over until it is disarmed.
    """
    with EtcdServer(tmp_path / "etcd", flags=["--quota-backend-bytes=1000000"]) as server:
        meet = register_flags("etcd", server.endpoint, "job")
        job = Job(here, tmp_path, *meet, "--nnodes=2:3", "--rdzv-conf=lease_ttl=5")
        agents = [job.start("agent0")]
        job.until_says(agents[0], "this node coordinates the group now")
        agents += [job.start("agent1"), job.start("agent2")]
        job.until_runs(agents, 3)
        with pytest.raises(AssertionError, match="database space exceeded"):
            for number in range(100):
                server.ctl("put", f"filler{number}", "x" * 100_000)
        job.kill(agents[0])
        others = agents[1:]
        full = "etcdserver: mvcc: database space exceeded: compact and defragment etcd, then run "
        full += "`etcdctl alarm disarm`"
        for agent in others:
            job.until_says(agent, f"waiting for the coordinator at .*: etcd at .*: {full}")
        assert not any("coordinates the group now" in agent.text for agent in others)
        assert not any("firewall" in agent.text for agent in others)
        server.ctl("del", "--prefix", "filler")
        status = json.loads(server.ctl("endpoint", "status", "--write-out=json"))
        server.ctl("compact", str(status[0]["Status"]["header"]["revision"]))
        server.ctl("defrag")
        server.ctl("alarm", "disarm")
        job.until_runs(others, 2, generation=1)
        job.tell("stop")
        assert [agent.wait() for agent in others] == [0, 0]
    # Possibly twice: a holder steps down if a renewal takes a second while a node is lost.
    assert any("coordinates the group now" in agent.text for agent in others)


@pytest.mark.needs_root
def test_node_reports_full_registry_disk_and_exits_with_code_3(
    here: OneMachine, tmp_path: Path
) -> None:
    """A node does not become the coordinator with a record that it can write but not renew."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=True)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (disk / "filler").write_bytes(bytes(1 << 20))
        meet = register_flags("file", f"{disk}/meet", "job")
        job = Job(here, tmp_path, *meet, "--nnodes=2", "--rdzv-conf=join_timeout=2")
        agent = job.start("agent0")
        assert agent.wait() == 3
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert f"{disk}/meet is full: {os.strerror(errno.ENOSPC)}" in agent.text


def test_losing_the_etcd_leader_does_not_disturb_the_job(here: OneMachine, tmp_path: Path) -> None:
    """One of three etcd members, the leader, is killed; workers continue, and nodes can join."""
    with EtcdCluster(tmp_path / "etcd") as cluster:
        flags = register_flags("etcd", cluster.endpoint, "job")
        job = Job(here, tmp_path, *flags, "--nnodes=2:3", "--rdzv-conf=last_call_timeout=1")
        agents = [job.start("agent0"), job.start("agent1")]
        job.until_runs(agents, 2)
        cluster.kill(cluster.leader())
        for _ in range(5):
            before = job.counts()
            time.sleep(1)
            after = job.counts()
            assert all(after[name] > before[name] for name in before), job.report()
        agents.append(job.start("agent2"))
        job.until_runs(agents, 3, generation=1)
        assert job.stop() == [0, 0, 0]


@pytest.mark.needs_hosts
@pytest.mark.long
def test_hosts_sharing_only_a_directory_rendezvous_and_survive_host_loss(
    lab: Lab, tmp_path: Path
) -> None:
    """On separate hosts that have only a directory in common, nodes find each other's addresses. If
    the coordinator's machine is cut off, the others continue after `lease_ttl`.
    """
    flags = register_flags("file", str(tmp_path / "meet"), "job")
    conf = "--rdzv-conf=last_call_timeout=9,lease_ttl=4"
    job = Job(lab, tmp_path, *flags, "--nnodes=2:3", conf)
    agents = [job.start("node1")]
    job.until_says(agents[0], "waiting|has joined|have joined")
    agents += [job.start("node2"), job.start("node3")]
    job.until_runs(agents, 3)
    lab.cut("node1")
    job.until_runs(agents[1:], 2, generation=1)
    assert {agent.workers[-1].restart for agent in agents[1:]} == {0}
    # The machine that is cut off can still access the disk, and sees the new holder there.
    assert not job.running("node1")
    lab.mend("node1")
    job.until_runs(agents, 3, generation=2)
    assert job.stop() == [0, 0, 0]


@pytest.mark.needs_iptables
@pytest.mark.needs_etcd
@pytest.mark.needs_hosts
@pytest.mark.parametrize(
    ("where", "kind"), [("OUTPUT", "tcp-reset"), long("INPUT", "icmp-port-unreachable")]
)
def test_node_refused_by_firewall_does_not_take_over(
    lab: Lab, flags_in_lab: tuple[str, ...], tmp_path: Path, where: str, kind: str
) -> None:
    """A firewall's refusal of the coordinator's port does not make a node take over. The node
    reports the refusal, and the others continue undisturbed.
    """
    job = Job(lab, tmp_path, *flags_in_lab, "--nnodes=1:3",
              "--rdzv-conf=last_call_timeout=1,lease_ttl=3")  # fmt: skip
    agents = [job.start("node1")]
    job.until_says(agents[0], "generation 0")
    agents.append(job.start("node2"))
    job.until_runs(agents, 2, generation=1)
    for host in ("node1", "node2"):
        if where == "OUTPUT":
            reject(lab, "node3", where, "-d", lab[host].address, kind)
        else:
            reject(lab, host, where, "-s", lab["node3"].address, kind)
    late = job.start("node3")
    job.until_says(late, r"waiting for the coordinator at .*: the coordinator on node1 refuses")
    job.until_says(late, r"the coordinator on node1 refuses connections at \S+, but still renews")
    job.until_counts("node1")
    job.until_counts("node2")
    assert not late.workers
    job.tell("stop")
    assert [agent.wait() for agent in agents] == [0, 0]
    assert all(re.findall("generation [0-9]", a.text)[-1] == "generation 1" for a in agents)


@pytest.mark.needs_iptables
@pytest.mark.needs_etcd
@pytest.mark.needs_hosts
def test_coordinator_isolated_by_firewall_freezes_its_workers(
    lab: Lab, flags_in_lab: tuple[str, ...], tmp_path: Path
) -> None:
    """A firewall on the coordinator's host starts to refuse everything, including the registry's
    responses. Its workers freeze before the refused nodes continue as another group.
    """
    job = Job(lab, tmp_path, *flags_in_lab, "--nnodes=1:3", "--rdzv-conf=last_call_timeout=9")
    agents = [job.start("node1")]
    job.until_says(agents[0], "has joined|have joined")
    agents += [job.start("node2"), job.start("node3")]
    job.until_runs(agents, 3)
    reject(lab, "node1", "INPUT", "!", "-i", "lo", "tcp-reset")
    job.until_runs(agents[1:], 2, generation=1)
    assert not job.running("node1")
    assert "a node was lost during a register outage" in agents[0].text
    job.tell("stop")
    assert [agent.wait() for agent in agents[1:]] == [0, 0]


def test_node_with_different_token_reports_that_it_was_rejected(
    here: OneMachine, tmp_path: Path
) -> None:
    """A node with a different token reports that it was refused, even if the others have ended."""
    flags = register_flags("file", str(tmp_path / "meet"), "job")
    conf = "--rdzv-conf=last_call_timeout=1,join_timeout=6"
    job = Job(here, tmp_path, *flags, "--nnodes=1:2", conf)
    good = job.start("agent0", RELIGHT_TOKEN="one")
    job.until_runs([good], 1)
    bad = job.start("agent1", RELIGHT_TOKEN="another")
    job.until_says(bad, "waiting for the coordinator at .*token")
    job.tell("stop")
    assert (good.wait(), bad.wait()) == (0, 3)
    assert re.search("error: .* the last one refused this node: .*token", bad.text)


def test_job_with_unreachable_registry_ends_after_join_timeout(
    here: OneMachine, tmp_path: Path
) -> None:
    """The node reports its wait for the registry and the reason; the exit code is 3."""
    flags = register_flags("etcd", "127.0.0.1:1", "job")
    job = Job(here, tmp_path, *flags, "--nnodes=2", "--rdzv-conf=join_timeout=4")
    agent = job.start("agent0")
    job.until_says(agent, r"waiting for the coordinator at etcd 127.0.0.1:1: etcd at 127.0.0.1:1")
    assert agent.wait() == 3
    assert re.search(r"error: no coordinator at etcd 127.0.0.1:1 for \d s: etcd at", agent.text)


@pytest.fixture
def flags_in_lab(lab: Lab, tmp_path: Path) -> tuple[str, ...]:
    """Flags for an etcd on node4 that all hosts can reach."""
    url = f"http://{lab['node4'].address}:2379"
    command = ["etcd", "--data-dir", tmp_path / "etcd", "--listen-client-urls",
               "http://0.0.0.0:2379", "--advertise-client-urls", url]  # fmt: skip
    with (tmp_path / "etcd.log").open("wb") as log:
        lab["node4"].start(command, stdout=log, stderr=log)
    return register_flags("etcd", url.removeprefix("http://"), "job")


def reject(lab: Lab, host: str, chain: str, *what: str) -> None:
    *which, kind = what
    rule = ["iptables", "-A", chain, "-p", "tcp", *which, "-j", "REJECT", "--reject-with", kind]
    assert lab[host].start(rule).wait(LIMIT_S) == 0


def keeps_counting(job: Job, name: str) -> bool:
    before = job.counts()[name]
    time.sleep(0.3)
    return job.counts()[name] > before


def coordinator(
    here: OneMachine, directory: Path, name: str, *flags: str
) -> "tuple[subprocess.Popen[bytes], Path]":
    path = directory / f"{name}.txt"
    with path.open("wb") as file:
        process = here.start(
            [*RELIGHT, "coordinator", *flags],
            stdout=file,
            stderr=file,
            env=clean_environment(TMPDIR=str(directory)),
        )
    return process, path


def until(condition: object, limit_s: float = LIMIT_S) -> None:
    assert callable(condition)
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
