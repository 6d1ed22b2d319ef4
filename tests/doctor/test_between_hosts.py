"""Every network fault is found on real hosts, and reported with its name and a remedy."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT
from netlab import Lab

from doctor.doctors import PORT, changed, commands, diagnose

pytestmark = [pytest.mark.slow, pytest.mark.needs_hosts]

SQUATTER = """
import socket, sys
server = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\\r\\n\\r\\n")
    connection.close()
"""
THREE = ("node1", "node2", "node3")
MEET = "--timeout=5"
"""The join timeout for tests with a node that never joins, long enough for a busy machine."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Provide three hosts that can reach each other."""
    with Lab(hosts=THREE) as lab:
        yield lab


def test_healthy_network_produces_no_findings(lab: Lab, tmp_path: Path) -> None:
    """All nodes agree on who joined."""
    reports = diagnose(lab, commands(THREE), tmp_path)
    for report in reports.values():
        assert report.code == 0, report
        assert report.of("error") == report.of("warning") == [], report
        assert sorted(report.whole["nodes"]) == list(THREE)


def test_text_output_is_one_summary_or_one_line_per_finding(lab: Lab, tmp_path: Path) -> None:
    """The summary lists the checks, and each finding has its remedy."""
    plain = {
        host: [word for word in words if word != "--json"]
        for host, words in commands(THREE).items()
    }
    for report in diagnose(lab, plain, tmp_path).values():
        assert report.out.startswith("no problems found; checked shared memory"), report
        assert report.out.count("\n") == 1
        assert "3 pairs among 3 nodes" in report.out
    lab.wall("node2", [PORT])
    for report in diagnose(lab, plain, tmp_path).values():
        first, remedy, *_, last = report.out.splitlines()
        assert first.startswith("error    all others -> node2: "), report
        assert remedy.startswith("         -> open TCP ports 32768-60999"), report
        assert last.startswith("1 error, 0 warnings; checked "), report
        assert report.code == 1


def test_host_reachable_only_on_the_endpoint_port_is_reported(lab: Lab, tmp_path: Path) -> None:
    """The report also names the blocked ports."""
    lab.wall("node2", [PORT])
    reports = diagnose(lab, commands(THREE), tmp_path)
    for report in reports.values():
        finding = report.one("but work in the other direction")
        assert finding["where"] == "all others -> node2"
        assert "32768-60999" in finding["remedy"]
        assert "--master-port" in finding["remedy"]
        assert len(report.of("error")) == 1
        assert report.code == 1


def test_endpoint_host_is_reported_if_its_other_ports_are_blocked(lab: Lab, tmp_path: Path) -> None:
    lab.wall("node1", [PORT])
    for report in diagnose(lab, commands(THREE), tmp_path).values():
        assert report.one("in the other direction")["where"] == "all others -> node1", report


def test_blocked_connection_between_two_nodes_is_the_only_finding(lab: Lab, tmp_path: Path) -> None:
    """Both nodes reach the endpoint, but not each other."""
    lab.partition(["node2"], ["node3"])
    for report in diagnose(lab, commands(THREE), tmp_path).values():
        assert report.of("error") == [
            "node2 -> node3; node3 -> node2: neither connections to free ports nor datagrams get "
            "through"
        ], report


def test_finding_about_a_one_way_block_names_the_blocked_direction(
    lab: Lab, tmp_path: Path
) -> None:
    lab.block("node3", "node2")
    for report in diagnose(lab, commands(THREE), tmp_path).values():
        finding = report.one("no packets get through in this direction")
        assert finding["where"] == "node3 -> node2", report
        assert len(report.of("error")) == 1, report


@pytest.mark.parametrize(("host", "size"), [("node3", 1450), ("node1", 600)])
def test_network_that_drops_large_packets_is_reported(
    lab: Lab, tmp_path: Path, host: str, size: int
) -> None:
    """The size that still gets through is reported. This works even for the endpoint's own
    network, although the report uses that network to reach all nodes.
    """
    lab.limit(host, size)
    words = commands(THREE)
    words["node2"] = changed(words["node2"], version="3.9.18", ahead_s=90)  # longer report
    for report in diagnose(lab, words, tmp_path).values():
        finding = report.one("large ones are lost")
        assert finding["where"] == f"{host} -> all others", report
        known = {1450: 1450, 600: 576}[size]
        assert f"{known} bytes get through, but the interface sends 9000" in finding["why"]
        assert f"mtu {known}" in finding["remedy"]
        assert report.code == 1


def test_mtu_mismatch_is_reported_as_a_warning(lab: Lab, tmp_path: Path) -> None:
    lab["node2"].start(["ip", "link", "set", "eth0", "mtu", "1500"]).wait(LIMIT_S)
    for report in diagnose(lab, commands(THREE), tmp_path).values():
        finding = report.one("the MTU differs", level="warning")
        assert "1500 on node2, 9000 on node1, node3" in finding["what"]
        assert report.code == 0


def test_clock_skew_is_reported_as_a_warning_with_its_size(lab: Lab, tmp_path: Path) -> None:
    words = commands(THREE)
    words["node3"] = changed(words["node3"], ahead_s=-90)
    for report in diagnose(lab, words, tmp_path).values():
        finding = report.one("the clock is", level="warning")
        assert finding["where"] == "node3"
        assert finding["what"].startswith(("the clock is 90.0 s behind", "the clock is 89.9 s"))
        assert "does not depend on clocks" in finding["why"]
        assert report.code == 0


def test_network_delay_is_not_mistaken_for_clock_skew(lab: Lab, tmp_path: Path) -> None:
    """Half the round trip is subtracted."""
    lab.set(delay_ms=200)
    words = commands(("node1", "node2"))
    words["node2"] = changed(words["node2"], ahead_s=3)
    for report in diagnose(lab, words, tmp_path).values():
        finding = report.one("the clock is", level="warning")
        assert finding["where"] == "node2"
        assert 2.85 < float(finding["what"].split()[3]) < 3.15
        assert report.of("error") == []


def test_version_mismatch_is_reported_with_host_names(lab: Lab, tmp_path: Path) -> None:
    words = commands(THREE)
    words["node2"] = changed(words["node2"], version="3.9.18")
    for report in diagnose(lab, words, tmp_path).values():
        finding = report.one("Python differs", level="warning")
        assert "3.9.18 on node2" in finding["what"]
        assert "on node1, node3" in finding["what"]


def test_script_mismatch_between_nodes_is_reported(lab: Lab, tmp_path: Path) -> None:
    """The script and arguments of a complete `relight run` command line are compared."""
    words = commands(THREE)
    for host in words:
        script = tmp_path / host / "train.py"
        script.parent.mkdir()
        script.write_text("print(2)\n" if host == "node1" else "print(1)\n")
        words[host] = [*words[host], "--max-restarts=3", str(script), "--lr", host[:4]]
    for report in diagnose(lab, words, tmp_path).values():
        assert "on node1" in report.one("the script's content differs", level="warning")["what"]
        assert not [f for f in report.findings if "the script's arguments" in f["what"]], report


def test_unrelated_program_on_the_endpoint_port_is_reported(lab: Lab, tmp_path: Path) -> None:
    """From other hosts the program is recognised by its response, and on its own machine by its
    name.
    """
    process = lab["node1"].start(
        [sys.executable, "-c", SQUATTER, str(PORT)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    reports = diagnose(lab, commands(THREE, "--timeout=2"), tmp_path)
    for report in reports.values():
        finding = report.one(f"port {PORT} is in use")
        assert "it is a web server" in finding["why"]
        assert report.code == 1
    assert f"(pid {process.pid})" in reports["node1"].one("is in use")["why"]
    assert "pid" not in reports["node2"].one("is in use")["why"]


def test_unrelated_program_on_the_endpoint_udp_port_is_a_warning(lab: Lab, tmp_path: Path) -> None:
    """Heartbeats also use the connection."""
    take = "import socket, sys; s = socket.socket(10, 2); s.bind(('::', 29400)); print(); input()"
    process = lab["node1"].start(
        [sys.executable, "-c", take], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    for report in diagnose(lab, commands(THREE), tmp_path).values():
        assert (
            report.one("UDP port 29400 is in use by another program", level="warning")["where"]
            == "node1"
        )
        assert report.of("error") == []


def test_node_that_cannot_resolve_endpoint_is_reported(lab: Lab, tmp_path: Path) -> None:
    """The other nodes report which one did not join."""
    words = commands(THREE, MEET)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.77.0.3 node3\n")
    words["node3"] = with_hosts(hosts, words["node3"])
    reports = diagnose(lab, words, tmp_path)
    assert "the name node1 does not resolve" in reports["node3"].one("does not resolve")["what"]
    for name in ("node1", "node2"):
        finding = reports[name].one("1 of 3 nodes did not join")
        assert "node1, node2" in finding["why"]
    assert [report.code for report in reports.values()] == [1, 1, 1]


def test_endpoint_that_resolves_to_loopback_is_reported(lab: Lab, tmp_path: Path) -> None:
    """Debian's 127.0.1.1 is an example."""
    words = commands(THREE, MEET)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 node1\n10.77.0.3 node3\n")
    words["node3"] = with_hosts(hosts, words["node3"])
    reports = diagnose(lab, words, tmp_path)
    finding = reports["node3"].one("the endpoint is this machine itself (127.0.1.1)")
    assert "/etc/hosts" in finding["why"]
    assert reports["node1"].of("error") == [": 1 of 3 nodes did not join"]


def test_endpoint_that_resolves_differently_on_some_nodes_is_reported(
    lab: Lab, tmp_path: Path
) -> None:
    words = commands(THREE)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.9 node1\n10.77.0.3 node3\n")
    words["node3"] = with_hosts(hosts, words["node3"])
    for report in diagnose(lab, words, tmp_path).values():
        finding = report.one("the endpoint's name resolves to different addresses", level="warning")
        assert "10.77.0.1, 10.77.0.9 on node3" in finding["what"]


def test_unresponsive_endpoint_is_distinguished_from_refused_connection(
    lab: Lab, tmp_path: Path
) -> None:
    """Silence means a firewall or a dead machine, and a refusal means a dead program."""
    lab.block("node2", "node1")
    words = commands(("node1", "node2"), "--timeout=2")
    reports = diagnose(lab, words, tmp_path)
    assert "no response" in reports["node2"].one("nothing was received")["what"]
    lab.heal()
    alone = diagnose(lab, {"node2": words["node2"]}, tmp_path)["node2"]
    assert "the connection is refused" in alone.one("nothing listens on port 29400")["what"]
    lab.wall("node1", [33434])
    alone = diagnose(lab, {"node2": words["node2"]}, tmp_path)["node2"]
    assert "10.77.0.1 is up: a firewall drops packets to port 29400" in alone.out
    assert alone.one("no response")["remedy"].startswith("open TCP port 29400")


def test_no_route_to_host_error_is_reported(lab: Lab, tmp_path: Path) -> None:
    for command in ("ip -6 route add unreachable fd77::2", "ip route add unreachable 10.77.0.2"):
        lab["node3"].start(command.split()).wait(LIMIT_S)
    for report in diagnose(lab, commands(THREE), tmp_path).values():
        assert report.one("there is no route")["where"] == "node3 -> node2", report


def test_running_job_at_endpoint_is_recognized(lab: Lab, tmp_path: Path) -> None:
    """The job isn't mistaken for an unrelated program, and nodes learn why they can't meet."""
    run = [*RELIGHT, "run", "--nnodes=2", "--rdzv-backend=c10d", "--no-python"]
    job = lab["node1"].start([*run, f"--rdzv-endpoint=node1:{PORT}", "true"], cwd=tmp_path,
                             stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert job.stderr is not None
    while "1 of" not in job.stderr.readline():
        pass
    reports = diagnose(lab, commands(("node2",), "--timeout=1", count=2), tmp_path)
    assert reports["node2"].one("the endpoint is in use by a coordinator", level="warning")
    assert reports["node2"].code == 0
    assert not [f for f in reports["node2"].findings if "taken" in f["what"]]


def test_node_with_a_wrong_token_is_reported(lab: Lab, tmp_path: Path) -> None:
    """With the right token, there are no findings."""
    words = commands(THREE, MEET)
    token = tmp_path / "token"
    token.write_text("good")
    with_token = {host: [*w, f"--rdzv-conf=token_file={token}"] for host, w in words.items()}
    for report in diagnose(lab, with_token, tmp_path).values():
        assert report.of("error") == report.of("warning") == [], report
    with_token["node3"] = words["node3"]
    reports = diagnose(lab, with_token, tmp_path)
    assert "token" in reports["node3"].one("this node was refused")["what"]
    assert [f for f in reports["node1"].findings if f["what"].startswith("refused a connection")]


def test_node_that_dies_during_the_check_is_reported(lab: Lab, tmp_path: Path) -> None:
    """The others finish in time."""
    words = commands(THREE)
    die = "import os, sys, threading, relight.health.probes as p\n"
    die += "p.Prober.start = lambda *a: os._exit(9)\n"
    die += "from relight.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words["node2"] = [sys.executable, "-c", die, *words["node2"][len(RELIGHT) :]]
    reports = diagnose(lab, words, tmp_path)
    for name in ("node1", "node3"):
        assert reports[name].one("but sent no report")["where"] == "node2"


def test_surplus_node_is_rejected_with_a_reason(lab: Lab, tmp_path: Path) -> None:
    words = commands(THREE, MEET)
    words["node3"] = [w.replace("--nnodes=3", "--nnodes=2") for w in words["node3"]]
    reports = diagnose(lab, words, tmp_path)
    assert "--nnodes=3" in reports["node3"].one("this node was refused")["what"]


def with_hosts(path: Path, command: list[str]) -> list[str]:
    """Return the same command with a different /etc/hosts."""
    program = f'umount /etc/hosts && mount --bind {path} /etc/hosts && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", program, "sh", *command]


def test_doctor_needs_no_flags_under_slurm(lab: Lab, tmp_path: Path) -> None:
    """The cluster's variables are enough, as they are for `relight run`."""
    usual = [*RELIGHT, "doctor", "--json"]
    words = {
        host: ["env", *(f"{k}={v}" for k, v in slurm(number).items()), *usual]
        for number, host in enumerate(THREE)
    }
    for report in diagnose(lab, words, tmp_path).values():
        assert report.of("error") == report.of("warning") == [], report
        assert len(report.whole["nodes"]) == 3


def slurm(number: int) -> dict[str, str]:
    """Return one task's variables in a step on three nodes (srun(1), output environment)."""
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_NNODES": "3",
        "SLURM_STEP_NUM_NODES": "3",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
        "SLURM_STEP_NODELIST": "node[1-3]",
        "SLURM_NODEID": str(number),
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": f"node{number + 1}",
    }
