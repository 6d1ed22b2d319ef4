"""`relight sandbox`: a job on simulated hosts, with faults, which leaves nothing behind."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start, clean_environment

from relight.host import system

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.needs_hosts
SCRIPT = """
import os, sys, time
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"rank {rank} of {size} on {os.uname().nodename} restart {restart}", flush=True)
if size == "1":
    sys.exit(5)
while restart == "0":
    time.sleep(0.05)
"""
Script = Callable[[str], Path]


def await_line(process: "subprocess.Popen[bytes]", text: str) -> None:
    for line in process.stdout:
        if text in line.decode():
            return
    raise AssertionError(f"it ended without {text!r}")


def is_running(pid: int) -> bool:
    return system._state(pid) not in (b"", b"Z", b"X")


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def await_gone(pids: list[int]) -> None:
    end = time.monotonic() + LIMIT_S
    while left := list(filter(is_running, pids)):
        assert time.monotonic() < end, f"left behind: {left}"
        time.sleep(0.02)


@pytest.mark.slow
def test_surviving_host_determines_exit_code_after_other_host_is_killed(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """The fault occurs at the time in the faults file; each line of output starts with its host."""
    (tmp_path / "faults").write_text('when "on host2 restart" kill host 2\nafter 1h heal\n')
    flags = ("--nnodes=1:2", "--faults=faults", "--rdzv-conf=last_call_timeout=30")
    done = launch("sandbox", "2", *flags, "--", script(SCRIPT))
    assert done.returncode == 5, done.stderr
    lines = done.stdout.splitlines()
    assert {re.sub(r"\d", "N", line[:8]) for line in lines} == {"[hostN] "}
    assert lines[-1] == "[host1] rank 0 of 1 on host1 restart 0"
    assert "[host1] relight: host2 was lost" in done.stderr
    assert re.search(r"relight: sandbox: after \d.\d s: kill host 2\n", done.stderr)
    assert "sandbox: line 2 of the faults was never reached: heal" in done.stderr


@pytest.mark.slow
def test_killing_a_rank_uses_up_one_restart(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "faults").write_text('when "rank 3 of 4" kill rank 3\n')
    flags = ("--nproc-per-node=2", "--max-restarts=1", "--faults=faults")
    done = launch("sandbox", "2", *flags, "--", script(SCRIPT))
    assert done.returncode == 0, done.stderr
    assert "[host2] rank 3 of 4 on host2 restart 1" in done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["asked", "killed", "with its switch", "its switch"])
def test_interrupted_sandbox_leaves_nothing_behind(
    start: Start, script: Script, killed: str
) -> None:
    """The sandbox receives SIGTERM, is killed alone or with its switch, or loses the switch."""
    process = start("sandbox", "2", "--", script(SCRIPT))
    await_line(process, "rank 0 of 2")
    pids = system.tree(process.pid)
    switch = next(p for p in pids if b"switch.py" in command_line(p))
    assert len(pids) > 4
    if killed == "asked":
        process.terminate()
    if killed in ("killed", "with its switch"):
        process.kill()
    if killed in ("with its switch", "its switch"):
        os.kill(switch, signal.SIGKILL)
    code = process.wait(LIMIT_S)
    assert code == {"asked": 143, "its switch": 4}.get(killed, -signal.SIGKILL)
    await_gone(pids)


@pytest.mark.slow
def test_keys_inject_faults_and_terminal_settings_are_restored(script: Script) -> None:
    """Each key waits until the previous one has taken effect; Ctrl-C ends the job."""
    ours, theirs = pty.openpty()
    before = subprocess.run(["stty", "-g"], stdin=theirs, capture_output=True, check=True).stdout
    command = [sys.executable, "-m", "relight", "sandbox", "2", "--nnodes=1:2", "--"]
    take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    take += "os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", take, *command, str(script(SCRIPT))],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=clean_environment(),
    )
    steps = [
        (b"l loss 10%; Ctrl-C ends the job", b""),
        (b"rank 1 of 2", b"f2"),
        (b"freeze host 2", b"f2"),
        (b"continue host 2", b"k2"),
        (b"kill host 2", b"\x03"),
    ]
    text, at = b"", 0
    for awaited, key in steps:
        end = time.monotonic() + LIMIT_S
        while awaited not in text[at:]:
            assert select.select([ours], [], [], end - time.monotonic())[0], text.decode()
            text += os.read(ours, 4096)
        os.write(ours, key)
    assert process.wait(LIMIT_S) in (130, 5)  # the survivor may have exited first
    after = subprocess.run(["stty", "-g"], stdin=theirs, capture_output=True, check=True).stdout
    os.close(ours)
    os.close(theirs)
    assert after == before


WRONG = [
    ((), "the first argument of relight sandbox is the number of hosts, not train.py"),
    (("0",), "a sandbox has 1 to 64 hosts, not 0"),
    (("2", "--fauts=x"), "did you mean --faults?"),
    (("2", "--faults=nothing"), "No such file"),
    (("2", "--faults=wrong"), "unknown action: 'kil'\nhint: did you mean kill?"),
    (("2", "--nnodes=3"), "--nnodes=3 needs more than 2 sandbox hosts"),
    (("2", "--node-rank=1"), "--node-rank is not supported in a sandbox"),
    (("2", "--rdzv-backend=etcd"), "sandbox hosts can't reach anything outside it"),
    (("2", "--max-restarts=x"), "--max-restarts=x"),
]


def test_invalid_sandbox_arguments_are_rejected_before_start(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from relight.cli.main import main

    monkeypatch.chdir(tmp_path)
    script("raise SystemExit")
    (tmp_path / "wrong").write_text("at 5s kil host 2\n")
    for flags, what in WRONG:
        assert main(["sandbox", *flags, "train.py"]) == 2
        assert what in capsys.readouterr().err
    assert main(["sandbox", "2", "nothing.py"]) == 2
    assert "no such file: nothing.py" in capsys.readouterr().err


def test_missing_privileges_error_lists_requirements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from relight.base.errors import MachineError
    from relight.sandbox import access

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        MachineError, match=r"require root or user namespaces.*unshare is not installed"
    ):
        access.prefix()


@pytest.mark.slow
def test_sandbox_fixture_runs_script_on_simulated_hosts(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test sees the exit code and output; an invalid fault and an endless job make it fail."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    pytester.makepyfile(
        test_x="""
def test_it(relight_sandbox, tmp_path):
    (tmp_path / "train.py").write_text("import os; print(os.uname().nodename); raise SystemExit(3)")
    done = relight_sandbox(1, tmp_path / "train.py")
    assert (done.exit_code, done.stdout) == (3, "[host1] host1\\n")

def test_wrong(relight_sandbox):
    relight_sandbox(1, "train.py", faults=["at 1s kil host 1"])

def test_late(relight_sandbox):
    relight_sandbox(1, "sleep", "1000", flags=["--no-python"], timeout=0.5)
"""
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*unknown action: 'kil'", "*the job did not end within 0.5 s"])
