"""A preempted node: its workers save at the same step, and the agent reports that."""

import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start

pytestmark = pytest.mark.forked

TRAINS = """
import os, sys, time, random
from relight.worker import deadline, should_checkpoint
assert not should_checkpoint()
os.write(1, b"up\\n")
call = 1
while True:
    call += 1
    if should_checkpoint():
        os.write(1, f"leaves at {call}, {deadline():.0f} s are left\\n".encode())
        sys.exit(SAVED)
    time.sleep(random.random() * SLEEP)
"""
ONE_FAILS = """
import os, sys, time
from relight.worker import should_checkpoint
should_checkpoint()
failed = sys.argv[0] + ".failed"
os.write(1, b"up\\n")
while not should_checkpoint():
    time.sleep(0.002)
if os.environ["RANK"] == "1":
    open(failed, "w").close()
    sys.exit(7)
while not os.path.exists(failed):
    time.sleep(0.01)
time.sleep(1)
os.write(1, b"rank 0 has saved\\n")
"""
IGNORES = """
import os, signal, time
from relight.worker import should_checkpoint
signal.signal(signal.SIGTERM, lambda *_: None)
should_checkpoint()
os.write(1, b"up\\n")
while True:
    time.sleep(1)
"""
DOES_NOT_ASK = """
import os, time
os.write(1, b"up\\n")
time.sleep(600)
"""
HANDLES_ITSELF = """
import os, signal, sys, time
from pathlib import Path
saved = Path(sys.argv[0] + ".saved")
def save(number, frame):
    saved.touch()
    os.write(1, b"rank 0 saved\\n")
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGUSR1, save)
os.write(1, b"up\\n")
while not saved.exists():
    time.sleep(0.01)
"""
SAVES_AFTER_NOTICE = """
import os, signal, sys, time
from pathlib import Path
exited = Path(sys.argv[0] + ".exited")
def save(number, frame):
    if os.environ["RANK"] == "1":
        exited.touch()
        sys.exit(85)
    while not exited.exists():
        time.sleep(0.01)
    time.sleep(1)
    os.write(1, b"rank 0 saved\\n")
    sys.exit(85)
signal.signal(signal.SIGUSR1, save)
os.write(1, b"up\\n")
while True:
    time.sleep(0.01)
"""
Agent = subprocess.Popen[bytes]


def trains(sleep: float = 0.002, saved: int = 0) -> str:
    return TRAINS.replace("SLEEP", str(sleep)).replace("SAVED", str(saved))


def wait_until_up(agent: Agent, workers: int) -> None:
    assert agent.stdout is not None
    for _ in range(workers):
        assert agent.stdout.readline() == b"up\n"


def end(agent: Agent) -> tuple[int, str, str]:
    out, err = agent.communicate(timeout=LIMIT_S)
    assert agent.returncode is not None
    return agent.returncode, out.decode(), err.decode()


@pytest.mark.slow
def test_all_ranks_exit_at_same_checkpoint_call(
    start: Start, script: Callable[[str], Path]
) -> None:
    """The signal may arrive at any moment, and workers may run at any speed."""
    for sleep_s in 2 * (0, 1e-5, 1e-3, 0.02):
        agent = start("run", "--nproc-per-node=4", script(trains(sleep_s)))
        wait_until_up(agent, 4)
        time.sleep(random.random() * 0.1)  # vary the moment of the signal
        began = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        code, out, err = end(agent)
        calls, left = zip(*re.findall(r"leaves at (\d+), (\d+) s are left", out), strict=True)
        assert (code, len(calls), len(set(calls))) == (75, 4, 1), (sleep_s, out, err)
        took_s = time.monotonic() - began
        assert all(30 - took_s - 1 < int(seconds) <= 30 for seconds in left), (took_s, out)


def test_preempted_agent_reports_preemption_deadline_and_exit(
    start: Start, script: Callable[[str], Path]
) -> None:
    agent = start("run", script(trains()))
    wait_until_up(agent, 1)
    agent.send_signal(signal.SIGTERM)
    code, _, err = end(agent)
    assert code == 75
    lines = [line for line in err.splitlines() if "OMP_NUM_THREADS" not in line]
    assert (
        lines[0] == "relight: preempted: got SIGTERM; send another signal to stop the workers now"
    )
    assert lines[1].endswith(" is preempted: got SIGTERM; workers have 30 s to save a checkpoint")
    assert lines[2:] == ["relight: preempted: all workers exited in time; exit code 75"]


@pytest.mark.parametrize("how", ["signal", "file"])
def test_preemption_signal_or_file_can_be_configured(
    start: Start, script: Callable[[str], Path], tmp_path: Path, how: str
) -> None:
    notice = tmp_path / "notice"
    value = "SIGUSR1" if how == "signal" else str(notice)
    agent = start("run", f"--on-preempt={value}", script(trains()))
    wait_until_up(agent, 1)
    if how == "signal":
        agent.send_signal(signal.SIGUSR1)
    else:
        notice.touch()
    code, out, err = end(agent)
    assert code == 75, err
    assert "leaves at" in out
    assert f"preempted: {'got SIGUSR1' if how == 'signal' else f'{notice} was created'}" in err


def test_workers_that_never_poll_for_preemption_are_stopped_normally(
    start: Start, script: Callable[[str], Path]
) -> None:
    agent = start("run", "--on-preempt=SIGUSR1", script(DOES_NOT_ASK))
    wait_until_up(agent, 1)
    agent.send_signal(signal.SIGTERM)
    code, _, err = end(agent)
    assert code == 143
    assert "preempted" not in err


def test_workers_that_never_poll_for_preemption_get_advisory_signal(
    start: Start, script: Callable[[str], Path]
) -> None:
    """Workers may handle the signal; those that don't may be cut off when the node goes away."""
    agent = start("run", "--on-preempt=SIGUSR1", "--nproc-per-node=2", script(HANDLES_ITSELF))
    wait_until_up(agent, 2)
    agent.send_signal(signal.SIGUSR1)
    code, out, err = end(agent)
    assert code == 0, err
    assert "rank 0 saved" in out
    assert "preempted" not in err


def test_worker_that_exits_after_preemption_notice_does_not_stop_others(
    start: Start, script: Callable[[str], Path]
) -> None:
    agent = start("run", "--on-preempt=SIGUSR1", "--nproc-per-node=2", script(SAVES_AFTER_NOTICE))
    wait_until_up(agent, 2)
    agent.send_signal(signal.SIGUSR1)
    code, out, err = end(agent)
    assert (code, out) == (85, "rank 0 saved\n"), err
    assert (
        "local rank 1 exited after a preemption notice: waiting for local rank 0 to "
        "save a checkpoint and leave, for 2 min at most" in err
    )


def test_workers_that_miss_checkpoint_deadline_are_killed(
    start: Start, script: Callable[[str], Path]
) -> None:
    agent = start("run", "--shutdown-timeout=0.3", script(IGNORES))
    wait_until_up(agent, 1)
    agent.send_signal(signal.SIGTERM)
    code, _, err = end(agent)
    assert code == 143
    assert "preempted: workers did not exit within 0.3 s; killing them" in err


def test_second_signal_stops_workers_immediately(
    start: Start, script: Callable[[str], Path]
) -> None:
    agent = start("run", script(IGNORES.replace("lambda *_: None", "signal.SIG_DFL")))
    wait_until_up(agent, 1)
    agent.send_signal(signal.SIGTERM)
    assert agent.stderr is not None
    while b"preempted" not in agent.stderr.readline():
        pass
    agent.send_signal(signal.SIGTERM)
    assert end(agent)[0] == 143


def test_worker_that_fails_during_checkpoint_is_reported(
    start: Start, script: Callable[[str], Path]
) -> None:
    """The job is not restarted on this node."""
    agent = start("run", "--max-restarts=3", script(trains(saved=7)))
    wait_until_up(agent, 1)
    agent.send_signal(signal.SIGTERM)
    code, _, err = end(agent)
    assert code == 7
    assert "rank 0 exited with code 7" in err
    assert "no restart: this node is preempted" in err


def test_worker_that_fails_during_checkpoint_does_not_stop_others(
    start: Start, script: Callable[[str], Path]
) -> None:
    """Rank 0 completes a long checkpoint, and rank 1's failure is reported."""
    agent = start("run", "--nproc-per-node=2", "--max-restarts=3", script(ONE_FAILS))
    wait_until_up(agent, 2)
    agent.send_signal(signal.SIGTERM)
    code, out, err = end(agent)
    assert out == "rank 0 has saved\n", err
    assert code == 7
    assert "rank 1 exited with code 7" in err
    assert "no restart: this node is preempted" in err


def test_invalid_on_preempt_value_is_rejected(launch: Launch) -> None:
    done = launch("run", "--on-preempt=SIGFOO", "x.py")
    assert done.returncode == 2
    assert "--on-preempt=SIGFOO" in done.stderr


def test_job_that_polls_for_preemption_leaves_no_shared_file_behind(
    launch: Launch, script: Callable[[str], Path], tmp_path: Path
) -> None:
    text = "from relight.worker import should_checkpoint; assert not should_checkpoint()"
    logs = tmp_path / "logs"
    assert launch("run", f"--log-dir={logs}", "-r3", script(text)).returncode == 0
    assert not [path for path in logs.rglob("*") if "shared" in path.name]
