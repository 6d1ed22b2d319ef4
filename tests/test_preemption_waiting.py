"""Preempted nodes, and other nodes that learn of it late or from another coordinator."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from conftest import LIMIT_S, Start, long
from etcd_server import free_ports

pytestmark = pytest.mark.forked

TRAINS = """
import os, sys, time
from relight.worker import should_checkpoint
should_checkpoint()
os.write(1, b"up\\n")
while not should_checkpoint():
    time.sleep(0.002)
"""

SAVES = """
import os, sys, time
from relight.worker import should_checkpoint
should_checkpoint()
os.write(1, b"up\\n")
while not should_checkpoint():
    time.sleep(0.002)
os.write(1, b"saves\\n")
time.sleep(2 if os.environ["RANK"] in sys.argv[1:] else 0)
os.write(1, b"has saved\\n")
"""
"""Ranks given as arguments take 2 s to save."""

SAVES_THEN_IMPORTS = """
import os, sys, time
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
if os.environ["WORLD_SIZE"] == "1" and (sys.argv[1] == "imports" or restart == "1"):
    os.write(1, f"imports after restart {restart}\\n".encode())
    time.sleep(600)
from relight.worker import should_checkpoint
should_checkpoint()
if os.environ["WORLD_SIZE"] == "1":
    sys.exit(3)
os.write(1, b"up\\n")
while not should_checkpoint():
    time.sleep(0.002)
"""
"""Once the other node has left, the next worker imports, perhaps after failing in training."""

SAVES_AFTER_NOTICE = """
import os, signal, sys, time
def save(number, frame):
    if os.environ["RANK"] == "1":
        time.sleep(3)
    os.write(1, b"has saved\\n")
    sys.exit(85)
signal.signal(signal.SIGUSR1, save)
os.write(1, b"up %d\\n" % int(os.environ["RANK"]))
while True:
    time.sleep(0.01)
"""
"""Rank 1 takes longer to save than the notice may be delayed on other nodes."""

NEVER_LEAVES = """
import os, sys, time
from relight.worker import should_checkpoint
should_checkpoint()
os.write(1, b"up %d\\n" % os.getpid())
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
sys.exit(3)
"""
"""The worker fails once a file exists, and does not check again whether to save."""

GRACE_S = 10.0
ENDS_OR_SAVES = """
import os, sys, time
from relight.worker import should_checkpoint
should_checkpoint()
print("up of", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists(sys.argv[1]):
    if sys.argv[1].endswith("second") and should_checkpoint():
        break
    time.sleep(1)
"""
"""The first node's worker ends when its file appears. The second node's worker checks for the
request once a second, and saves at one of these calls.
"""


def read_until(stream: IO[bytes] | None, text: bytes) -> bytes:
    """Read lines from a stream until one contains some text; return that line."""
    assert stream is not None
    return next(line for line in stream if text in line)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("later_s", [0.0, long(GRACE_S)])
def test_waiting_agent_exits_with_code_75_if_its_workers_have_checkpointed(
    start: Start, script: Callable[[str], Path], tmp_path: Path, later_s: float
) -> None:
    """The agent receives the signal while it waits for the node that was preempted first, possibly
    after the workers' grace period has ended.
    """
    path = script(TRAINS)
    words = ("--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet", "--rdzv-id=j",
             f"--shutdown-timeout={GRACE_S}")  # fmt: skip
    first, second = (start("run", *words, path) for _ in range(2))
    for agent in (first, second):
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 75
    read_until(second.stderr, b"waiting for 1 more")  # either may have been the coordinator
    time.sleep(later_s)
    second.send_signal(signal.SIGTERM)
    _, err = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 75, err
    assert b"workers already checkpointed and exited; exit code 75" in err


@pytest.mark.parametrize(
    ("then", "restarts", "code"),
    [("imports", 0, 75), ("trains", 1, 143)],
    ids=["still imports", "trained and failed"],
)
def test_node_preempted_during_restart_exits_with_code_75_if_checkpoint_is_current(
    start: Start,
    script: Callable[[str], Path],
    tmp_path: Path,
    then: str,
    restarts: int,
    code: int,
) -> None:
    """The exit code is 143 if workers have trained since the checkpoint."""
    path = script(SAVES_THEN_IMPORTS)
    words = ("--nnodes=1:2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet",
             "--rdzv-id=j", "--max-restarts=1", "--rdzv-conf=last_call_timeout=60")  # fmt: skip
    first, second = (start("run", *words, path, then) for _ in range(2))
    for agent in (first, second):
        read_until(agent.stdout, b"up")
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 75
    read_until(second.stdout, b"imports after restart %d" % restarts)
    second.send_signal(signal.SIGTERM)
    _, err = second.communicate(timeout=LIMIT_S)
    assert second.returncode == code, err
    assert (b"workers already checkpointed and exited; exit code 75" in err) == (code == 75)


def test_preempted_node_does_not_rejoin_after_its_workers_finish(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """The script ends before the nodes agree on a call, because the other node's agent is stopped;
    the job continues without this node.
    """
    path = script(ENDS_OR_SAVES)
    words = ("--nnodes=1:2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet",
             "--rdzv-id=j", "--rdzv-conf=last_call_timeout=9,lease_ttl=20")  # fmt: skip
    first = start("run", *words, f"--log-dir={tmp_path}/logs", path, tmp_path / "first")
    read_until(first.stderr, b"1 of at most 2 nodes")  # it coordinates the group
    second = start("run", *words, path, tmp_path / "second")
    for agent in (first, second):
        read_until(agent.stdout, b"up of 2")
    second.send_signal(signal.SIGSTOP)
    first.send_signal(signal.SIGTERM)
    read_until(first.stderr, b"preempted: got SIGTERM")
    (tmp_path / "first").touch()
    (events,) = tmp_path.glob("logs/*/events.jsonl")
    wait_for(lambda: '"WorkerExited"' in events.read_text())
    second.send_signal(signal.SIGCONT)
    assert first.wait(LIMIT_S) == 75
    read_until(second.stdout, b"up of 1")
    (tmp_path / "second").touch()
    assert second.wait(LIMIT_S) == 0


def test_node_preempted_while_coordinator_is_missing_still_checkpoints(
    start: Start, script: Callable[[str], Path]
) -> None:
    """The preempted node may reach the next coordinator before the other node does."""
    (port,) = free_ports(1)
    path = script(TRAINS)
    bind, patience = f"--bind=127.0.0.1:{port}", "--rdzv-conf=keep_alive_interval=5"
    words = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
             "--rdzv-id=j", f"{patience},is_host=0")  # fmt: skip
    coordinator = start("coordinator", bind, "-v", patience)
    first, second = (start("run", *words, path) for _ in range(2))
    for agent in (first, second):
        read_until(agent.stdout, b"up")
    coordinator.kill()
    for agent in (first, second):
        read_until(agent.stderr, b"lost the coordinator")
    second.send_signal(signal.SIGSTOP)
    first.send_signal(signal.SIGTERM)
    read_until(first.stderr, b"preempted: got SIGTERM")
    coordinator = start("coordinator", bind, "-v", patience)
    read_until(coordinator.stderr, b"its first node has connected")
    second.send_signal(signal.SIGCONT)
    _, err = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 75, err
    assert b"preempted: all workers exited in time" in err
    read_until(second.stderr, b"is preempted: got SIGTERM; workers have")
    second.send_signal(signal.SIGTERM)
    assert second.wait(LIMIT_S) == 75


@pytest.mark.parametrize("slow", ["0", long("1")])
@pytest.mark.parametrize("backend", ["file", "c10d"])
def test_node_that_finishes_checkpoint_first_does_not_interrupt_other_nodes(
    start: Start, script: Callable[[str], Path], tmp_path: Path, backend: str, slow: str
) -> None:
    """All nodes are preempted. The first one to finish may be the coordinator, or a node that the
    coordinator needs for its lease.
    """
    endpoint = tmp_path / "meet" if backend == "file" else f"127.0.0.1:{free_ports(1)[0]}"
    words = ("--nnodes=2", f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}",
             "--rdzv-id=j", script(SAVES), slow)  # fmt: skip
    agents = [start("run", *words) for _ in range(2)]
    for agent in agents:
        read_until(agent.stdout, b"up")
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    for agent in agents:
        out, err = agent.communicate(timeout=LIMIT_S)
        assert (agent.returncode, out) == (75, b"saves\nhas saved\n"), err
        assert b"frozen" not in err


def test_worker_exit_after_preemption_notice_does_not_interrupt_other_nodes(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """The other node may even get the notice later."""
    words = ("--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet", "--rdzv-id=j",
             "--on-preempt=SIGUSR1", script(SAVES_AFTER_NOTICE))  # fmt: skip
    agents = [start("run", *words) for _ in range(2)]
    ups = [read_until(agent.stdout, b"up") for agent in agents]
    first, second = sorted(agents, key=lambda agent: ups[agents.index(agent)])
    first.send_signal(signal.SIGUSR1)
    read_until(first.stdout, b"has saved")
    second.send_signal(signal.SIGUSR1)
    out, err = second.communicate(timeout=LIMIT_S)
    assert (second.returncode, out) == (85, b"has saved\n"), err
    assert first.wait(LIMIT_S) == 85


def test_checkpoint_continues_if_coordinator_is_killed(
    start: Start, script: Callable[[str], Path]
) -> None:
    """The next coordinator learns that a preempted node and the one waiting for it are saving."""
    (port,) = free_ports(1)
    words = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
             "--rdzv-id=j", "--rdzv-conf=is_host=0", script(SAVES), "0", "1")  # fmt: skip
    coordinator = start("coordinator", f"--bind=127.0.0.1:{port}")
    first, second = (start("run", *words) for _ in range(2))
    for agent in (first, second):
        read_until(agent.stdout, b"up")
    first.send_signal(signal.SIGTERM)
    for agent in (first, second):
        read_until(agent.stdout, b"saves")
    coordinator.kill()
    start("coordinator", f"--bind=127.0.0.1:{port}")
    out, err = first.communicate(timeout=LIMIT_S)
    assert (first.returncode, out) == (75, b"has saved\n"), err
    read_until(second.stderr, b"waiting for 1 more")
    second.send_signal(signal.SIGTERM)
    out, err = second.communicate(timeout=LIMIT_S)
    assert (second.returncode, out) == (75, b"has saved\n"), err


def test_preempted_node_without_connection_to_group_checkpoints_alone(
    start: Start, script: Callable[[str], Path]
) -> None:
    (port,) = free_ports(1)
    coordinator = start("coordinator", f"--bind=127.0.0.1:{port}")
    agent = start("run", "--nnodes=1:2", "--rdzv-backend=c10d",
                  f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=j",
                  "--rdzv-conf=is_host=0,last_call_timeout=0.1", script(SAVES))  # fmt: skip
    read_until(agent.stdout, b"up")
    coordinator.kill()
    coordinator.wait()
    agent.send_signal(signal.SIGTERM)
    out, err = agent.communicate(timeout=LIMIT_S)
    assert (agent.returncode, out) == (75, b"saves\nhas saved\n"), err
    assert b"the group has not answered; workers have" in err


def test_preempted_node_does_not_report_its_stopped_workers_as_failed(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """The other node's agent is stopped, so one of its workers fails and this node is preempted
    before the nodes agree when to save.
    """
    words = ("--nnodes=1:2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet",
             "--rdzv-id=j", script(NEVER_LEAVES))  # fmt: skip
    patient = "--rdzv-conf=last_call_timeout=60,lease_ttl=60"
    preempted = start("run", patient, *words, tmp_path / "never")
    read_until(preempted.stderr, b"1 of at most 2 nodes")  # it coordinates the group
    other = start("run", patient, *words, tmp_path / "fails")
    read_until(preempted.stdout, b"up")
    worker = int(read_until(other.stdout, b"up").split()[1])
    other.send_signal(signal.SIGSTOP)
    (tmp_path / "fails").touch()
    wait_for(lambda: not Path(f"/proc/{worker}/exe").exists())  # exited, or a zombie
    preempted.send_signal(signal.SIGTERM)
    read_until(preempted.stderr, b"preempted: got SIGTERM")
    other.send_signal(signal.SIGCONT)
    _, err = preempted.communicate(timeout=LIMIT_S)
    assert preempted.returncode == 143, err
    # If the other agent agrees to save before it notices the failure, the workers keep their 30 s.
    told = b"workers had to be stopped; exit code 143", b"workers did not exit within 30 s"
    assert any(b"preempted: " + each in err for each in told), err
    assert b"was killed by" not in err
    other.kill()
