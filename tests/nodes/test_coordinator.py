"""`relight coordinator`: a head node that coordinates but does not train."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, Launch, clean_environment
from netlab import Lab

from nodes.jobs import Job, c10d

pytestmark = pytest.mark.slow


def coordinate(lab: Lab, path: Path, *flags: str) -> "subprocess.Popen[bytes]":
    """Start it on node4, and return once it is listening."""
    with path.open("wb") as file:
        process = lab["node4"].start(
            [*RELIGHT, "coordinator", "--bind=node4", "-v", *flags],
            stdout=file,
            stderr=file,
            env=clean_environment(TMPDIR=str(path.parent)),
        )
    end = time.monotonic() + LIMIT_S
    while "coordinating jobs at node4:29400" not in path.read_text():
        assert time.monotonic() < end, path.read_text()
        assert process.poll() is None, path.read_text()
        time.sleep(0.02)
    return process


@pytest.mark.needs_hosts
def test_workers_survive_restart_of_killed_coordinator(lab: Lab, tmp_path: Path) -> None:
    """Workers keep running without a pause while the head's process is killed and started again."""
    first = coordinate(lab, tmp_path / "first.txt")
    job = Job(lab, tmp_path, *c10d("node4", "3"))
    agents = [job.start(f"node{number}") for number in (1, 2, 3)]
    job.until_runs(agents, 3)
    first.kill()
    first.wait()
    end = time.monotonic() + 1.5  # longer than a lease
    while time.monotonic() < end:
        assert all(job.running(agent.host) for agent in agents), job.report()
    second = coordinate(lab, tmp_path / "second.txt")
    job.until(
        lambda: "job test: its first node has connected" in (tmp_path / "second.txt").read_text()
    )
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert all(job.running(agent.host) for agent in agents), job.report()
    assert not any("workers are frozen" in agent.text for agent in agents), job.report()
    assert all(len(agent.workers) == 1 for agent in agents)
    job.tell("fail.1")  # to check that it really coordinates
    assert [agent.wait() for agent in agents] == [1, 1, 1]
    second.send_signal(signal.SIGTERM)
    assert second.wait(LIMIT_S) == 0


@pytest.mark.needs_hosts
def test_generation_of_absent_node_is_not_confused_with_running_one(
    lab: Lab, tmp_path: Path
) -> None:
    """The absent node's generation has the same number and size as the running one, which also has
    a free place. The two are not confused: the node's worker does not run alongside a group that it
    was never in.
    """
    first = coordinate(lab, tmp_path / "first.txt")
    job = Job(lab, tmp_path, *c10d("node4", "2"))
    away, gone = job.start("node1"), job.start("node2")
    job.until_runs([away, gone], 2)
    job.kill(away, signal.SIGSTOP)
    job.kill(gone)
    first.kill()
    first.wait()
    second = coordinate(lab, tmp_path / "second.txt")
    lost, stays = job.start("node1"), job.start("node3")
    job.until_runs([lost, stays], 2)
    second.kill()
    second.wait()
    job.kill(lost)
    job.kill(away, signal.SIGCONT)
    coordinate(lab, tmp_path / "third.txt")
    job.until_runs([away, stays], 2, generation=1)
    assert {worker.group_rank for worker in (away.workers[-1], stays.workers[-1])} == {0, 1}
    job.tell("stop")
    assert (away.wait(), stays.wait()) == (0, 0)


@pytest.mark.needs_hosts
def test_absent_node_does_not_run_alongside_its_replacement(lab: Lab, tmp_path: Path) -> None:
    """The absent node's group was complete with one node, and it is the first to reach the next
    coordinator. The other node keeps running, because its connections were refused.
    """
    head = tmp_path / "first.txt"
    first = coordinate(lab, head)
    job = Job(lab, tmp_path, *c10d("node4", "1:2", "--rdzv-conf=last_call_timeout=1"))
    away = job.start("node1")
    job.until_runs([away], 1)
    job.kill(away, signal.SIGSTOP)
    job.until(lambda: "job test: its last node has disconnected" in head.read_text())
    stays = job.start("node2")
    job.until_runs([stays], 1)
    first.kill()
    first.wait()
    coordinate(lab, tmp_path / "second.txt")
    job.kill(away, signal.SIGCONT)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        before = job.counts()
        time.sleep(0.2)
        after = job.counts()
        run = [name for name, count in before.items() if after[name] > count]
        assert len(run) < 2 or away.workers[-1].world == 2, job.report()
    job.until_runs([away, stays], 2, generation=1)
    assert job.stop() == [0, 0]


@pytest.mark.needs_hosts
def test_one_coordinator_serves_many_jobs(lab: Lab, tmp_path: Path) -> None:
    """Two jobs with different ids run at one head, at the same time and one after the other."""
    path = tmp_path / "head.txt"
    head = coordinate(lab, path)
    for _ in range(2):
        jobs = []
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            jobs.append(Job(lab, folder, *c10d("node4", "2"), f"--rdzv-id={name}"))
        started = [[job.start("node1"), job.start("node2")] for job in jobs]
        for job, agents in zip(jobs, started, strict=True):
            job.until_runs(agents, 2)
            assert {w.world for agent in agents for w in agent.workers} == {2}
        for job in jobs:
            assert job.stop() == [0, 0]
            (job.directory / "stop").unlink()
        jobs[0].until(lambda: path.read_text().count("its last node has disconnected") % 2 == 0)
    assert path.read_text().count("job a: its first node has connected") == 2
    head.send_signal(signal.SIGTERM)
    assert head.wait(LIMIT_S) == 0


@pytest.mark.needs_hosts
def test_coordinator_with_token_rejects_agents_without_it(lab: Lab, tmp_path: Path) -> None:
    """A head that has a token turns away agents without it, and reports that."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    path = tmp_path / "head.txt"
    coordinate(lab, path, f"--rdzv-conf=token_file={token}")
    job = Job(lab, tmp_path, *c10d("node4", "1:2", "--rdzv-conf=join_timeout=4"))
    agent = job.start("node1")
    assert agent.wait() == 3
    assert "refused a connection" in path.read_text()


def test_invalid_coordinator_flags_are_rejected_before_port_is_bound(
    launch: Launch,
) -> None:
    """The message suggests what to write instead."""
    for flags, message in (
        (["x"], "takes flags only"),
        (["--bind=192.0.2.250:1"], "can't listen at 192.0.2.250:1"),
        (["--bind=a,b"], "expected one HOST"),
        (["--bind=a..b:4"], "--bind=a..b: not a valid host name"),
        ([f"--bind={'a' * 70}:4"], "not a valid host name"),
        (
            ["--rdzv-backend=file", "--rdzv-endpoint=/x", "--rdzv-id=x", "--rdzv-conf=is_host=0"],
            "is_host=0 is only valid for agents",
        ),
        (["--bind=nosuch.invalid"], "nosuch.invalid"),
        (["--rdzv-backend=static"], "node rank 0 coordinates"),
        (["--rdzv-backend=etcd", "--rdzv-endpoint=x"], "without --rdzv-id"),
        (["--rdzv-endpoint=x"], "--rdzv-endpoint is only valid for agents"),
        (["--rdzv-conf=nosuch=1"], "unknown key nosuch"),
        (["--rdzv-conf=keep_alive_interval=x"], "keep_alive_interval=x"),
    ):
        result = launch("coordinator", *flags)
        assert (result.returncode, result.stdout) == (2, ""), result
        assert message in result.stderr
        assert "Traceback" not in result.stderr
    assert json.dumps(launch("coordinator", "--help").stdout).count("--bind") >= 2


@pytest.mark.needs_hosts
def test_blocked_coordinator_console_does_not_stop_workers(lab: Lab, tmp_path: Path) -> None:
    """Workers keep running although the head's stderr is a full pipe and a stranger connects."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    try:
        head = lab["node4"].start(
            [*RELIGHT, "coordinator", "--bind=node4", "-v"],
            stdout=subprocess.DEVNULL,
            stderr=writer,
            env=clean_environment(TMPDIR=str(tmp_path)),
        )
        job = Job(lab, tmp_path, *c10d("node4", "2"))
        agents = [job.start("node1"), job.start("node2")]
        job.until_runs(agents, 2)
        stranger = (
            "import socket; s = socket.create_connection(('node4', 29400)); "
            "s.sendall(b'x' * 99); s.recv(9)"
        )
        for _ in range(3):
            lab["node3"].start([sys.executable, "-c", stranger]).wait(LIMIT_S)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert all(job.running(agent.host) for agent in agents), job.report()
        assert job.stop() == [0, 0]
        head.send_signal(signal.SIGTERM)
        assert head.wait(LIMIT_S) == 0
    finally:
        os.close(writer)
        os.close(reader)


@pytest.mark.needs_hosts
def test_rare_heartbeats_in_one_job_do_not_delay_another_job(lab: Lab, tmp_path: Path) -> None:
    """The first job checks for lost nodes so rarely that this test would not last long enough. In
    the other job, with the defaults, a stopped node is lost nevertheless. Closed connections
    are noticed in both jobs.
    """
    head = coordinate(lab, tmp_path / "head.txt")
    jobs = {}
    for name in ("slow", "fast"):
        (tmp_path / name).mkdir()
        jobs[name] = Job(lab, tmp_path / name, *c10d("node4", "1:2"), f"--rdzv-id={name}",
                         "--rdzv-conf=last_call_timeout=1")  # fmt: skip
    rare = "--rdzv-conf=keep_alive_interval=1000,last_call_timeout=1"
    slow = [jobs["slow"].start(node, rare) for node in ("node1", "node2")]
    jobs["slow"].until_runs(slow, 2)
    fast = [jobs["fast"].start(node) for node in ("node1", "node3")]
    jobs["fast"].until_runs(fast, 2)
    jobs["fast"].kill(fast[1], signal.SIGSTOP)
    jobs["fast"].until_runs(fast[:1], 1, generation=1)
    jobs["fast"].kill(fast[1], signal.SIGKILL)
    jobs["slow"].kill(slow[1])
    jobs["slow"].until_runs(slow[:1], 1, generation=1)
    for name, agents in (("fast", fast), ("slow", slow)):
        jobs[name].tell("stop")
        assert agents[0].wait() == 0
    head.send_signal(signal.SIGTERM)
    assert head.wait(LIMIT_S) == 0


@pytest.mark.needs_hosts
def test_job_with_rare_heartbeats_runs_undisturbed(lab: Lab, tmp_path: Path) -> None:
    """A node is lost after the timeout with which its own job was started."""
    head = coordinate(lab, tmp_path / "head.txt")
    job = Job(lab, tmp_path, *c10d("node4", "2"), "--rdzv-conf=keep_alive_interval=2")
    agents = [job.start("node1"), job.start("node2")]
    job.until_runs(agents, 2)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        assert all(job.running(agent.host) for agent in agents), job.report()
    other = job.start("node3", "--rdzv-conf=keep_alive_interval=1")
    assert other.wait() == 2
    assert "is 5 s on this node, but the job was started with 10 s" in other.text
    job.tell("stop")
    assert [agent.wait() for agent in agents] == [0, 0]
    assert [len(agent.workers) for agent in agents] == [1, 1]
    head.send_signal(signal.SIGTERM)
    assert head.wait(LIMIT_S) == 0
