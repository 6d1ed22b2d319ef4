"""An agent's helper processes end with it, whatever is killed, and never delay it, even if they
themselves can't be killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, PORTABLE, Start
from test_event_handlers import PLUGIN
from test_orphans import marked, marker, wait_until_gone

from relight.base.errors import EXIT_HUNG
from relight.host import linux

pytestmark = pytest.mark.forked

__all__ = ["marker"]  # a fixture

KINDS = ("health check", "nvidia-smi", "py-spy", "event handler")
ANY_GPU = (
    sys.executable, "-c",
    "import types\n"
    "from relight.health import inspection\n"
    "found = types.SimpleNamespace(visible=9, present=9, hiding='', holders=())\n"
    "inspection.gpus = lambda env: found\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip
"""Relight on a machine that appears to have GPUs."""
WITHOUT_CAP_KILL = ("setpriv", "--bounding-set=-kill")
"""A root user who, like other users, may not signal other users' processes."""
OTHER_USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def write_program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def with_helper(
    start: Start, tmp_path: Path, kind: str, text: str, before: tuple[str, ...] = ()
) -> "subprocess.Popen[bytes]":
    """Start an agent below another program; the agent starts a shell script with this text."""
    (tmp_path / "bin").mkdir()
    name = kind if kind in ("nvidia-smi", "py-spy") else "program"
    program = write_program(tmp_path / "bin" / name, text)
    (tmp_path / "train.py").write_text("import time\ntime.sleep(1000)\n")
    flags = {
        "health check": f"--health-check=exec {program}",
        "nvidia-smi": "--health-check=gpu",
        "py-spy": "--hang-timeout=1",
        "event handler": "--event-log-handler=starts",
    }
    variables = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([PLUGIN, os.environ.get("PYTHONPATH", "")]),
        "HANDLER_PROGRAM": str(program),
    }
    return start(
        "run", flags[kind], "train.py", command=(*before, *ANY_GPU), variables=variables,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def named(name: str) -> list[int]:
    """Return the pids of processes whose command line starts with a name."""
    return [pid for pid in marked(name) if command_line(pid).startswith(name)]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.fixture
def unkillable(marker: str) -> Iterator[str]:
    """The command line of a sleep process that belongs to another user and is killed at the end."""
    yield f"exec {' '.join(OTHER_USER)} sleep {marker}"
    for pid in marked(f"sleep\0{marker}"):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_agent_leaves_no_helper_process(
    kind: str, start: Start, tmp_path: Path, marker: str
) -> None:
    """The helper has a child in a separate session, and an orphaned daemon."""
    tree = f"setsid sleep {marker} &\n(setsid sh -c 'sleep {marker} &' &)\nsleep {marker}"
    if PORTABLE:
        tree = f"sleep {marker} &\nsleep {marker}"
    agent = with_helper(start, tmp_path, kind, tree)
    wait_until(lambda: len(marked(f"sleep\0{marker}")) >= 2 + (not PORTABLE))
    agent.kill()
    agent.wait()
    wait_until_gone(marker)


@pytest.mark.needs_setpriv
@pytest.mark.parametrize("kind", KINDS)
def test_unkillable_helper_process_does_not_block_agent(
    kind: str, start: Start, tmp_path: Path, marker: str, unkillable: str
) -> None:
    agent = with_helper(start, tmp_path, kind, unkillable, WITHOUT_CAP_KILL)
    wait_until(lambda: marked(f"sleep\0{marker}"))
    agent.terminate()
    # On a busy machine, the agent gives up on py-spy first and ends the hanging job.
    codes = {128 + signal.SIGTERM} | ({EXIT_HUNG} if kind == "py-spy" else set())
    assert agent.wait(LIMIT_S) in codes
    assert marked(f"sleep\0{marker}")
    wait_until(lambda: not named(f"helper guard of {agent.pid}"))


@pytest.mark.needs_setpriv
def test_unkillable_health_check_is_abandoned(
    start: Start, tmp_path: Path, marker: str, unkillable: str
) -> None:
    check = write_program(tmp_path / "check.sh", unkillable)
    agent = start(
        "run", f"--health-check=exec {check}", "--health-check-timeout=0.5",
        "--no-python", "true",
        command=(*WITHOUT_CAP_KILL, sys.executable, "-m", "relight"),
    )  # fmt: skip
    _, errors = agent.communicate(timeout=LIMIT_S)
    assert b"it did not finish within" in errors
    assert marked(f"sleep\0{marker}")


@pytest.mark.skipif(PORTABLE, reason="a spawner has no name")
def test_health_check_is_repeated_if_spawner_is_killed(
    start: Start, tmp_path: Path, marker: str
) -> None:
    """The lost result doesn't mean that the node is unhealthy."""
    times = tmp_path / "times"
    check = write_program(
        tmp_path / "check.sh", f"echo >> {times}\ntest $(wc -l < {times}) = 2 || sleep {marker}"
    )
    agent = start("run", f"--health-check={check}", "--no-python", "true")
    wait_until(lambda: marked(f"sleep\0{marker}"))
    (spawner,) = named(f"helper spawner of {agent.pid}")
    os.kill(spawner, signal.SIGKILL)
    _, errors = agent.communicate(timeout=LIMIT_S)
    assert agent.returncode == 0, errors
    assert times.read_text() == "\n\n"


@pytest.mark.skipif(PORTABLE, reason="there is no guard")
@pytest.mark.parametrize("victim", ["guard", "spawner"])
def test_helper_processes_survive_death_of_guard_or_spawner(
    victim: str, start: Start, tmp_path: Path
) -> None:
    """The workers restart; the event handler is notified of that and of the end."""
    (tmp_path / "train.py").write_text(
        "import os, time\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    time.sleep(1000)\n"
    )
    heard = tmp_path / "heard"
    agent = start(
        "run", "--event-log-handler=writes", "--max-restarts=1", "train.py",
        variables={"PYTHONPATH": os.pathsep.join([PLUGIN, os.environ.get("PYTHONPATH", "")]),
                   "EVENTS_FILE": str(heard)},
    )  # fmt: skip
    wait_until(lambda: heard.exists() and "WorkerStarted" in heard.read_text())
    name = f"worker {victim} of {agent.pid}"
    wait_until(lambda: named(name))
    os.kill(named(name)[0], signal.SIGKILL)
    _, errors = agent.communicate(timeout=LIMIT_S)
    assert agent.returncode == 0, errors
    assert b"receives no more events" not in errors
    assert heard.read_text().split()[-1] == "Ended"


@pytest.mark.skipif(PORTABLE, reason="there is no guard")
def test_killed_agent_leaves_no_suspended_status_page_process(start: Start, tmp_path: Path) -> None:
    """The page normally exits with its agent, but can't while it is stopped."""
    (tmp_path / "train.py").write_text("import time\ntime.sleep(1000)\n")
    agent = start("run", "--status=127.0.0.1:0", "train.py", stderr=subprocess.DEVNULL)
    pages: list[int] = []

    def find() -> list[int]:
        below = named(f"helper spawner of {agent.pid}")
        pages[:] = [page for pid in below for page in linux.tree(pid)]
        return pages

    wait_until(find)
    os.kill(pages[0], signal.SIGSTOP)
    agent.kill()
    agent.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{pages[0]}"))
