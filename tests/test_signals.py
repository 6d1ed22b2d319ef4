"""Signals to the agent are forwarded, followed by SIGKILL after a grace period, or ignored."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, Launch, Start, long
from test_orphans import marked, marker  # noqa: F401

pytestmark = pytest.mark.forked

Script = Callable[[str], Path]

# Prints that it is ready, then records each signal that it receives.
RECORDER = """
import os, signal, sys, time
def note(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    if os.environ.get("LEAVE_ON") == signal.Signals(number).name:
        sys.exit(int(os.environ.get("LEAVE_WITH", "0")))
for name in os.environ["CATCH"].split(","):
    signal.signal(getattr(signal, name), note)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def wait_for(agent: "subprocess.Popen[bytes]", text: bytes, count: int = 1) -> bytes:
    """Read the agent's stdout until `text` has appeared `count` times."""
    assert agent.stdout is not None
    seen = b""
    while seen.count(text) < count:
        line = agent.stdout.readline()
        assert line, f"the output ended before {text!r}: {seen!r}"
        seen += line
    return seen


def started(
    start: Start, script: Script, *flags: str, **variables: str
) -> "subprocess.Popen[bytes]":
    agent = start("run", "--nproc-per-node=2", *flags, script(RECORDER), variables=variables)
    wait_for(agent, b"ready\n", 2)
    return agent


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_job_stops_when_parent_exits_if_requested(how: str, start: Start, script: Script) -> None:
    """The job stops as if it had received SIGTERM, so workers may save."""
    flags = ["--end-with-parent"] if how == "flag" else []
    variables = {"CATCH": "SIGTERM", "LEAVE_ON": "SIGTERM"}
    if how == "variable":
        variables["RELIGHT_END_WITH_PARENT"] = "1"
    words = ('"$@" & wait', "sh", *RELIGHT, "run", *flags, script(RECORDER))
    shell = start("-c", *words, command=("sh",), variables=variables)
    wait_for(shell, b"ready\n")
    shell.kill()
    out, errors = shell.communicate(timeout=LIMIT_S)  # until the job has closed its output
    assert b"got SIGTERM" in out
    expected = f"relight: process {shell.pid}, which started this job, has ended: stopping"
    assert expected.encode() in errors


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_stop_signal_is_forwarded_to_workers_once(name: str, start: Start, script: Script) -> None:
    """Workers may exit when they receive it; the agent's exit code is 128 + n."""
    agent = started(start, script, CATCH=name, LEAVE_ON=name)
    agent.send_signal(signal.Signals[name])
    out, errors = agent.communicate(timeout=LIMIT_S)
    assert out.count(b"got " + name.encode()) == 2
    assert agent.returncode == 128 + signal.Signals[name]
    assert b"Traceback" not in errors


def test_workers_are_killed_when_grace_period_ends(start: Start, script: Script) -> None:
    """All workers are killed at the same time, after --shutdown-timeout."""
    agent = started(start, script, "--shutdown-timeout=0.5", CATCH="SIGTERM")
    begin = time.monotonic()
    agent.send_signal(signal.SIGTERM)
    out, _ = agent.communicate(timeout=LIMIT_S)
    assert time.monotonic() - begin >= 0.5
    assert out.count(b"got SIGTERM") == 2
    assert agent.returncode == 143


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_stop_signal_kills_workers_immediately(
    second: int, start: Start, script: Script
) -> None:
    """The exit code is that of the first signal."""
    agent = started(start, script, "--shutdown-timeout=600", CATCH="SIGTERM,SIGINT")
    agent.send_signal(signal.SIGTERM)
    wait_for(agent, b"got SIGTERM\n", 2)
    agent.send_signal(second)
    _, err = agent.communicate(timeout=LIMIT_S)
    assert agent.returncode == 143
    assert b"they are killed in 10 min, or immediately on a second signal" in err


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_user_signals_reach_workers_with_a_handler(name: str, start: Start, script: Script) -> None:
    """SIGUSR1 and SIGUSR2 do not end the agent."""
    agent = started(start, script, CATCH=f"{name},SIGTERM", LEAVE_ON="SIGTERM")
    agent.send_signal(signal.Signals[name])
    wait_for(agent, b"got " + name.encode(), 2)
    agent.send_signal(signal.SIGTERM)
    agent.communicate(timeout=LIMIT_S)
    assert agent.returncode == 143


def test_user_signals_are_not_sent_to_workers_without_a_handler(
    start: Start, script: Script
) -> None:
    agent = started(start, script, "-v", CATCH="SIGTERM", LEAVE_ON="SIGTERM")
    agent.send_signal(signal.SIGUSR1)
    assert agent.stderr is not None
    while b"forwarded SIGUSR1" not in (line := agent.stderr.readline()):
        assert line
    assert b"none, because no worker handles it" in line
    agent.send_signal(signal.SIGTERM)
    out, _ = agent.communicate(timeout=LIMIT_S)
    assert out.count(b"got SIGTERM") == 2


def test_signals_to_handle_flag_replaces_default_signals(start: Start, script: Script) -> None:
    """Torchrun does the same."""
    agent = started(
        start, script, "--signals-to-handle=SIGUSR1", CATCH="SIGUSR1", LEAVE_ON="SIGUSR1"
    )
    agent.send_signal(signal.SIGUSR1)
    out, _ = agent.communicate(timeout=LIMIT_S)
    assert out.count(b"got SIGUSR1") == 2
    assert agent.returncode == 128 + signal.SIGUSR1


def test_unhandled_signal_ends_agent_and_its_workers(
    start: Start, script: Script, tmp_path: Path
) -> None:
    """The signal is SIGHUP, which --signals-to-handle omits."""
    agent = start("run", "--signals-to-handle=SIGTERM", script(
        "import os, time; print(os.getpid(), flush=True); time.sleep(600)"))  # fmt: skip
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    agent.send_signal(signal.SIGHUP)
    agent.wait(LIMIT_S)
    assert agent.returncode == -signal.SIGHUP
    deadline = time.monotonic() + LIMIT_S
    while _alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] != b"Z"


def test_nohup_job_survives_sighup(start: Start, script: Script) -> None:
    agent = start(
        "run", "--nproc-per-node=2", script(RECORDER),
        variables={"CATCH": "SIGTERM", "LEAVE_ON": "SIGTERM"},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    wait_for(agent, b"ready\n", 2)
    agent.send_signal(signal.SIGHUP)
    agent.send_signal(signal.SIGTERM)
    out, _ = agent.communicate(timeout=LIMIT_S)
    assert agent.returncode == 143
    assert b"SIGHUP" not in out


# Signals itself at one of the events that Python audits, such as an import, a fork, or the exit.
AUDITED = """
import atexit, os, sys
number, event, at = int(sys.argv.pop(1)), sys.argv.pop(1), int(sys.argv.pop(1))
class Last:
    def __del__(self, end=os._exit, kill=os.kill, pid=os.getpid()):
        kill(pid, number)  # Python takes itself to pieces, without our handlers
sys.last = Last()
seen = 0
def audit(name, args):
    global seen
    if name == event and os.getpid() == own:
        seen += 1
        if seen == at:
            os.kill(own, number)
own = os.getpid()
from relight.__main__ import entry
sys.addaudithook(audit)
if event == "atexit":
    atexit.register(os.kill, own, number)
entry()
"""
MOMENTS = [("import", at) for at in (1, 2, 7, 12, 17, 23, 28, 33, 38, 43, 48, 53, 58)] + [
    ("socket.__new__", 1), ("open", 1), ("open", 4), ("os.fork", 1), ("os.remove", 1),
    ("os.rmdir", 1), ("atexit", 1), ("never", 1),
]  # fmt: skip


@pytest.mark.parametrize("number", [long(signal.SIGINT), signal.SIGTERM])
def test_signal_at_any_moment_ends_agent_cleanly(number: int, start: Start, marker: str) -> None:
    """From relight's first line to its last, it exits with 128 + n or the job's own exit code. It
    is never killed by the signal, prints no traceback, and leaves no worker behind.
    """
    codes = {}
    for event, at in MOMENTS:
        lasts = marker if event in ("import", "socket.__new__", "os.fork") else "0"
        agent = start("-c", AUDITED, str(number), event, str(at), "run", "--no-python", "sleep",
                      lasts, command=(sys.executable,))  # fmt: skip
        _, errors = agent.communicate(timeout=LIMIT_S)
        assert b"Traceback" not in errors, (event, at, errors)
        codes[event, at] = agent.returncode
    assert {codes[moment] for moment in codes if moment[0] == "import"} == {128 + number}, codes
    assert set(codes.values()) == {128 + number, 0}, codes
    assert codes["atexit", 1] == 128 + number
    assert codes["never", 1] == 0
    assert marked(marker) == []


def test_sigterm_does_not_reach_children_of_python_worker(start: Start, script: Script) -> None:
    """The script itself can react first."""
    agent = start("run", script("""
import signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
def leave(number, frame):
    time.sleep(0.2)
    print("child", child.poll(), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(600)
"""))  # fmt: skip
    wait_for(agent, b"ready\n")
    agent.send_signal(signal.SIGTERM)
    out, _ = agent.communicate(timeout=LIMIT_S)
    assert b"child None" in out


def test_stop_signal_goes_to_whole_process_group_of_non_python_program(
    start: Start, tmp_path: Path
) -> None:
    """A shell script doesn't forward signals."""
    inner = tmp_path / "inner.sh"
    inner.write_text(
        "trap 'echo inner got it; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    )
    outer = tmp_path / "outer.sh"
    outer.write_text(f"trap 'wait; exit 0' TERM; sh {inner} & wait; wait")
    agent = start("run", "--no-python", "sh", outer)
    wait_for(agent, b"ready\n")
    agent.send_signal(signal.SIGTERM)
    out, _ = agent.communicate(timeout=LIMIT_S)
    assert b"inner got it" in out


def test_workers_start_with_default_signal_state(launch: Launch, script: Script) -> None:
    """No signals are blocked or ignored."""
    probe = script("""
fields = dict(line.split(":\\t") for line in open("/proc/self/status") if line.startswith("Sig"))
print(fields["SigBlk"].strip(), fields["SigIgn"].strip())
""")
    result = launch("run", probe)
    plain = subprocess.run(
        [os.sys.executable, str(probe)], capture_output=True, text=True, check=True
    )
    assert result.stdout == plain.stdout
