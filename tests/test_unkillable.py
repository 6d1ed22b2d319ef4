"""Processes that survive SIGKILL are named, and nothing waits for them without a limit."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start
from test_helpers import OTHER_USER, WITHOUT_CAP_KILL, named, unkillable, wait_until
from test_orphans import marked, marker

from relight.core.workers.supervision import patience_s

pytestmark = pytest.mark.forked

__all__ = ["marker", "unkillable"]  # fixtures

FREEZER = Path("/sys/fs/cgroup/freezer")
FAILS_ONCE = """
import os, subprocess, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    subprocess.Popen(["sh", "-c", sys.argv[1]])
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    sys.exit(3)
"""


@pytest.fixture
def frozen(marker: str) -> Iterator[str]:
    """A command line that starts a process in an uninterruptible call (state D), and waits until it
    is in that call. SIGKILL has no effect until the process is thawed at the end of the test.
    """
    folder = FREEZER / f"relight-{marker}"
    folder.mkdir()
    state = folder / "freezer.state"
    freeze = f"echo $$ > {folder}/tasks; echo FROZEN > {state}; exec sleep {marker}"
    yield f"sh -c '{freeze}' & until grep -qx FROZEN {state}; do sleep 0.01; done"
    state.write_text("THAWED")
    for pid in (folder / "tasks").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    deadline = time.monotonic() + LIMIT_S
    while (folder / "tasks").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    folder.rmdir()


@pytest.mark.needs_setpriv
def test_zombie_owned_by_another_user_is_reaped() -> None:
    """A signal to it fails, as it would for a running process of that user."""
    code = (
        "import os, subprocess, sys\n"
        "from relight.host import linux\n"
        "child = subprocess.Popen(sys.argv[1:])\n"
        "os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"
        "try:\n"
        "    os.kill(child.pid, 9)\n"
        "except PermissionError:\n"
        "    print(linux.end_children(5))\n"
    )
    command = [*WITHOUT_CAP_KILL, sys.executable, "-c", code, *OTHER_USER, "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.needs_setpriv
def test_restart_does_not_wait_for_unkillable_process_of_another_user(
    launch: Launch, tmp_path: Path, marker: str, unkillable: str
) -> None:
    (tmp_path / "train.py").write_text(FAILS_ONCE)
    ready = tmp_path / "ready"
    done = launch(
        "run", "--max-restarts=1", "--shutdown-timeout=0.1", "train.py",
        f"touch {ready}; {unkillable}", ready,
        command=(*WITHOUT_CAP_KILL, sys.executable, "-m", "relight"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (pid,) = marked(f"sleep\0{marker}")
    who = rf"process {pid} \(sleep, user \S+\)"
    assert re.search(rf"{who} can't be killed: owned by another user", done.stderr), done.stderr
    assert re.search(rf"no longer waiting for {who}", done.stderr)


@pytest.mark.needs_freezer
def test_process_in_uninterruptible_sleep_is_reported(
    launch: Launch, tmp_path: Path, frozen: str
) -> None:
    (tmp_path / "train.py").write_text(FAILS_ONCE)
    ready = tmp_path / "ready"
    done = launch(
        "run", "--max-restarts=1", "--shutdown-timeout=0.1", "train.py",
        f"{frozen}; touch {ready}; wait", ready,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"process \d+ \(sh, user root\) still exists a second after SIGKILL", done.stderr
    ), done.stderr
    assert "no longer waiting for process" in done.stderr


@pytest.mark.needs_freezer
def test_uninterruptible_health_check_does_not_block_agent(
    launch: Launch, tmp_path: Path, frozen: str
) -> None:
    check = tmp_path / "check.sh"
    check.write_text(f"#!/bin/sh\n{frozen}; wait\n")
    check.chmod(0o755)
    done = launch("run", f"--health-check=exec {check}", "--health-check-timeout=0.5",
                  "--no-python", "true")  # fmt: skip
    assert "it did not finish within" in done.stderr


@pytest.mark.needs_setpriv
@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_guard_does_not_wait_for_unkillable_process(
    end: int, start: Start, tmp_path: Path, marker: str, unkillable: str
) -> None:
    agent = start(
        "run", "--no-python", "sh", "-c", f"({unkillable}) & sleep {marker}",
        command=(*WITHOUT_CAP_KILL, sys.executable, "-m", "relight"), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: len(marked(f"sleep\0{marker}")) == 2)
    wait_until(lambda: named(f"worker guard of {agent.pid}"))
    agent.send_signal(end)
    agent.wait(LIMIT_S)
    wait_until(lambda: not named(f"worker guard of {agent.pid}"))
    assert len(marked(f"sleep\0{marker}")) == 1


@pytest.mark.parametrize(
    ("grace_s", "refused", "expected"),
    [
        (0.1, True, 1.0), (3.0, True, 3.0), (900.0, True, 30.0),
        (0.1, False, 10.0), (20.0, False, 20.0), (900.0, False, 30.0),
    ],
)  # fmt: skip
def test_shutdown_timeout_limits_wait_for_unkillable_process(
    grace_s: float, refused: bool, expected: float
) -> None:
    """A killed one gets at least 10 s, because the kernel has to free its memory."""
    assert patience_s(grace_s, refused=refused) == expected
