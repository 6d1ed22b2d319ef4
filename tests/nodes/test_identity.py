"""Nodes may share names, pids, clocks, and addresses, and are still distinct."""

import re
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import pytest
from conftest import LIMIT_S, long
from netlab import Lab

from nodes.jobs import PYTHON, AgentOn, Job, c10d

pytestmark = [pytest.mark.slow, pytest.mark.needs_hosts]

HOSTS = ("node1", "node2", "node3")
OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
DEBIAN = r"""
import re, sys
name = sys.argv[1]
with open("/etc/hosts", "r+") as file:  # the host's own: a mount of its namespace
    text = file.read()
    assert "10.77.0.1" in text
    file.seek(0)
    file.truncate()
    file.write(re.sub(rf"(?m)^\S+ {name}$", "", text) + f"127.0.1.1 {name}\n")
"""
"""Maps a host's own name to the address that Debian's installer gives it."""
OTHER_CLOCK = """
import datetime, os, time
shift, real = float(os.environ["SHIFT"]), time.time
localtime, gmtime, strftime = time.localtime, time.gmtime, time.strftime
time.time = lambda: real() + shift
time.time_ns = lambda: int(time.time() * 1e9)
time.localtime = lambda seconds=None: localtime(time.time() if seconds is None else seconds)
time.gmtime = lambda seconds=None: gmtime(time.time() if seconds is None else seconds)
time.strftime = lambda form, at=None: strftime(form, time.localtime() if at is None else at)
class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
datetime.datetime = Shifted
"""


def lab_with_hostnames(hostnames: Mapping[str, str]) -> Lab:
    """Return hosts, some of which have a name that other hosts can't guess."""
    return Lab(HOSTS, hostnames=hostnames)


def check(lab: Lab, name: str, *command: str) -> None:
    """Run a command on a host."""
    process = lab[name].start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 0, said


def group_ranks(agents: list[AgentOn]) -> list[int]:
    return [agent.workers[-1].group_rank for agent in agents]


def test_hosts_with_the_same_name_are_distinct_nodes(tmp_path: Path) -> None:
    """Losing one of the hosts does not affect the other."""
    with lab_with_hostnames({"node1": "trainer", "node2": "trainer"}) as lab:
        job = Job(lab, tmp_path, *c10d("10.77.0.1", "2:3", "--rdzv-conf=last_call_timeout=9"))
        agents = [job.start(host) for host in HOSTS]
        job.until_runs(agents, 3)
        assert sorted(group_ranks(agents)) == [0, 1, 2]
        job.kill(agents[1])
        job.until_runs([agents[0], agents[2]], 2, generation=1)
        assert job.stop() == [0, -9, 0]


@pytest.mark.parametrize("first", ["node1", "node2"])
def test_endpoint_address_distinguishes_hosts_with_the_same_name(
    tmp_path: Path, first: str
) -> None:
    """If a second host has the endpoint's name, the host with the endpoint's address coordinates,
    even if the other one starts first.
    """
    with lab_with_hostnames({"node2": "node1"}) as lab:
        job = Job(lab, tmp_path, *c10d("node1", "2"))
        agents = [job.start(first)]
        job.until_says(agents[0], "waiting for")
        agents.append(job.start("node2" if first == "node1" else "node1"))
        job.until_runs(agents, 2)
        assert job.stop() == [0, 0]


def test_agents_with_equal_pids_are_distinct_nodes(lab: Lab, tmp_path: Path) -> None:
    """Such agents run in containers, on one host or on several."""
    job = Job(lab, tmp_path, *c10d("node1", "3", "--max-restarts=1"))
    agents = [job.start(host, under=OWN_PIDS) for host in ("node1", "node1", "node2")]
    job.until_runs(agents, 3)
    assert sorted(group_ranks(agents)) == [0, 1, 2]
    job.tell("fail.2")
    job.until_runs(agents, 3, generation=1)
    assert job.stop() == [0, 0, 0]


@pytest.mark.parametrize("host", ["node1", "node2"])
def test_unresolvable_hostname_does_not_affect_a_job(tmp_path: Path, host: str) -> None:
    """Nobody looks up a node's own hostname, whether or not it hosts the endpoint."""
    with lab_with_hostnames({host: "no-such-name"}) as lab:
        job = Job(lab, tmp_path, *c10d("10.77.0.1", "2"))
        agents = [job.start("node2"), job.start("node1")]
        job.until_runs(agents, 2)
        assert {worker.master for agent in agents for worker in agent.workers} & {
            f"{address}:{agents[0].workers[0].pairs['MASTER_PORT']}"
            for address in ("10.77.0.1", "10.77.0.2")
        }
        assert job.stop() == [0, 0]


@pytest.mark.parametrize("order", [("node2", "node1", "node3"), long(("node1", "node1", "node2"))])
def test_endpoint_may_resolve_to_loopback_on_its_own_host(
    lab: Lab, tmp_path: Path, order: tuple[str, ...]
) -> None:
    """Debian maps a host's own name to 127.0.1.1. Other hosts can connect anyway, and the workers
    get an address that is reachable from everywhere, even if an agent on that host started first.
    """
    check(lab, "node1", PYTHON, "-c", DEBIAN, "node1")
    job = Job(lab, tmp_path, *c10d("node1", "3"))
    agents = []
    for host in order:
        agents.append(job.start(host))
        if host == "node1" and host in order[1:]:
            job.until_says(agents[0], f"{len(agents)} of 3 nodes")
    job.until_runs(agents, 3)
    addresses = {worker.pairs["MASTER_ADDR"] for agent in agents for worker in agent.workers}
    assert addresses <= {"10.77.0.1", "10.77.0.2", "fd77::1", "fd77::2"}, job.report()
    assert job.stop() == [0, 0, 0]


def test_workers_communicate_over_the_network_of_the_endpoint(lab: Lab, tmp_path: Path) -> None:
    for number, name in enumerate(HOSTS, 1):
        check(lab, name, "ip", "addr", "add", f"10.88.0.{number}/24", "dev", "eth0")
        check(lab, name, "ip", "addr", "add", f"172.17.0.1{number}/32", "dev", "lo")
    job = Job(lab, tmp_path, *c10d("10.88.0.2", "3"))
    agents = [job.start(host) for host in HOSTS]
    job.until_runs(agents, 3)
    master = {worker.pairs["MASTER_ADDR"] for agent in agents for worker in agent.workers}
    assert master == {"10.88.0.1"}, job.report()
    assert job.stop() == [0, 0, 0]


def test_local_addr_of_first_node_becomes_master_addr_everywhere(lab: Lab, tmp_path: Path) -> None:
    check(lab, "node1", "ip", "addr", "add", "10.88.0.1/24", "dev", "eth0")
    job = Job(lab, tmp_path, *c10d("10.77.0.1", "2"))
    agents = [job.start("node1", "--local-addr=10.88.0.1"), job.start("node2")]
    job.until_runs(agents, 2)
    assert {agent.workers[0].pairs["MASTER_ADDR"] for agent in agents} == {"10.88.0.1"}
    assert job.stop() == [0, 0]


@pytest.mark.parametrize("shift", [long("20"), "-600", long("600")])
def test_clock_skew_does_not_affect_a_job(lab: Lab, tmp_path: Path, shift: str) -> None:
    """If a clock is off by seconds or minutes, a group still forms, a lost node is still noticed,
    and the earliest failure is still reported first.
    """
    (tmp_path / "sitecustomize.py").write_text(OTHER_CLOCK)
    other = {"PYTHONPATH": str(tmp_path), "SHIFT": shift}
    flags = c10d("node2", "2:3", "--rdzv-conf=last_call_timeout=9", "--max-restarts=1")
    job = Job(lab, tmp_path, *flags)
    agents = [job.start("node1"), job.start("node2", **other), job.start("node3")]
    job.until_runs(agents, 3)
    job.kill(agents.pop())
    job.until_runs(agents, 2, generation=1)
    job.tell("fail.1")
    job.until_runs(agents, 2, generation=2)
    # Rank 0 fails shortly after rank 1, before its agent can learn about that.
    lab.set(delay_ms=100)
    pid = max(int(name.split(".")[2]) for name in job.counts() if ".node2." in name)
    job.tell("fail.1")
    job.until(lambda: not Path(f"/proc/{pid}/exe").exists(), "the end of rank 1")
    job.tell("fail.0")
    assert [agent.wait() for agent in agents] == [1, 1]
    for agent in agents:
        report = agent.text[agent.text.rindex("relight: rank") :]
        assert report.startswith(("relight: rank 1 ", "relight: ranks 0-1 ")), report
        moment = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4})"
        at = re.search(rf"\n  (?:first rank 1 )?on node2: .*?{moment}", report)
        assert at, report
        told = datetime.strptime(at[1], "%Y-%m-%d %H:%M:%S%z").timestamp() - time.time()
        assert abs(told - float(shift)) < LIMIT_S, report  # according to that host's clock


def test_three_agents_on_one_host_rendezvous_at_localhost(lab: Lab, tmp_path: Path) -> None:
    job = Job(lab, tmp_path, *c10d("localhost", "3", "--nproc-per-node=2"))
    agents = [job.start("node1") for _ in range(3)]
    job.until_runs(agents, 3)
    assert sorted(w.rank for agent in agents for w in agent.workers) == list(range(6))
    assert len({w.master for agent in agents for w in agent.workers}) == 1
    assert job.stop() == [0, 0, 0]


def test_script_and_argument_mismatches_are_reported(lab: Lab, tmp_path: Path) -> None:
    """A node with a different script or different arguments is reported both on that node and on
    the first one, and the message names both nodes.
    """
    job = Job(lab, tmp_path, *c10d("node1", "3"))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "train.py").write_text((tmp_path / "train.py").read_text() + "\n")
    first = job.start("node1", script=("train.py", "--lr", "1"))
    job.until_says(first, "waiting for 2 more")
    agents = [
        first,
        job.start("node2", script=("old/train.py", "--lr", "1")),
        job.start("node3", script=("train.py", "--lr", "2")),
    ]
    job.until_runs(agents, 3)
    script = r"the script's content differs between the nodes: \w+ on node[12], \w+ on node[12]"
    arguments = r"the script's arguments differ between the nodes: .* on node[13], .* on node[13]"
    assert len(re.findall(script, first.text)) == len(re.findall(script, agents[1].text)) == 1
    assert len(re.findall(arguments, first.text)) == 1
    assert len(re.findall(arguments, agents[2].text)) == 1
    assert not re.search(script, agents[2].text)
    assert job.stop() == [0, 0, 0]


def test_identical_nodes_report_no_mismatch(lab: Lab, tmp_path: Path) -> None:
    job = Job(lab, tmp_path, *c10d("node1", "2"))
    agents = [job.start("node1"), job.start("node2")]
    job.until_runs(agents, 2)
    assert job.stop() == [0, 0]
    assert not any("differ" in agent.text for agent in agents)


def test_node_with_different_restart_budget_reports_which_one_applies(
    lab: Lab, tmp_path: Path
) -> None:
    """The job has one budget; a node that asks for a different one reports which one applies."""
    job = Job(lab, tmp_path, *c10d("node1", "2"))
    first = job.start("node1", "--max-restarts=1")
    job.until_says(first, "waiting for 1 more")
    second = job.start("node2", "--max-restarts=5")
    job.until_runs([first, second], 2)
    job.tell("fail.0")
    job.until_runs([first, second], 2, generation=1)
    job.tell("fail.1")
    assert (first.wait(), second.wait()) == (1, 1)
    for agent in (first, second):
        assert "the only restart is used up" in agent.text
        assert re.search(r"max-restarts.*node1.*node2|max-restarts.*node2.*node1", agent.text)
