"""`breakpoint()` in a worker, and `relight debug` in another terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, RELIGHT, TORCHRUN

from relight.base.errors import MachineError, UsageError
from relight.cli.inspect import debug
from relight.stacks import rank_processes

SCRIPT = """\
import os

def step(number):
    x = 41 + number
    if os.environ["RANK"] in os.environ["STOPS"]:
        breakpoint()
    return x

for number in range(2):
    print("x is", step(number), flush=True)
"""


class Job:
    """A job whose stderr is read line by line."""

    def __init__(self, *arguments: str, stops: str = "0", **variables: str) -> None:
        self.process = subprocess.Popen(
            [*RELIGHT, "run", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "STOPS": stops, **variables},
        )  # fmt: skip

    def waits(self) -> str:
        """Wait until a worker reaches a breakpoint; return its line."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "is at a breakpoint" in line:
                return line.rstrip()
        raise AssertionError(self.process.wait(LIMIT_S))

    def pid(self) -> int:
        """Wait until a worker reaches a breakpoint; return its pid."""
        return int(self.waits().rpartition(" ")[2])

    def ends(self) -> tuple[int, str, str]:
        """Return the job's exit code and output."""
        stdout, stderr = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, stdout, stderr


@contextmanager
def running(*arguments: str, **options: Any) -> Iterator[Job]:
    job = Job(*arguments, **options)
    try:
        yield job
    finally:
        if job.process.poll() is None:
            job.process.kill()
        job.process.communicate(timeout=LIMIT_S)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def attach(*arguments: object, types: str) -> subprocess.CompletedProcess[str]:
    words = [*RELIGHT, "debug", *map(str, arguments)]
    return subprocess.run(
        words, input=types, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_rank_at_breakpoint_waits_and_prints_attach_command(script: str) -> None:
    with running("--nproc-per-node=2", script, stops="1") as job:
        line = job.waits()
        assert re.fullmatch(
            r"relight: rank 1 is at a breakpoint in .*train\.py:6 in step; "
            r"attach with relight debug \d+",
            line,
        )
        found = attach(job.process.pid, "--rank", 1, types="p x\nx = 50\nc\nc\n")
        assert "(Pdb) 41\n" in found.stdout
        assert found.stdout.endswith("rank 1 has ended\n"), found
        code, stdout, _ = job.ends()
        assert code == 0
        assert sorted(stdout.splitlines()) == ["x is 41", "x is 42", "x is 42", "x is 50"]


def test_rank_stays_at_breakpoint_after_debugger_detaches(script: str) -> None:
    with running(script) as job:
        first = attach(job.pid(), types="x = 50\n")
        assert first.stdout.endswith("detached: rank 0 is still waiting\n")
        assert ":7 in step" in job.waits() or sys.version_info >= (3, 13)
        second = attach(job.process.pid, types="p x\nc\nc\n")
        assert "-> return x" in second.stdout, "where it is"
        assert "(Pdb) 50\n" in second.stdout
        assert job.ends()[0] == 0


def test_debugger_detaches_when_its_terminal_is_killed(script: str) -> None:
    with running(script) as job:
        pid = job.pid()
        killed = subprocess.Popen(
            [*RELIGHT, "debug", str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert killed.stdout is not None
        killed.stdout.readline()
        killed.kill()
        killed.communicate(timeout=LIMIT_S)
        assert job.pid() == pid
        assert attach(pid, types="c\nc\n").returncode == 0
        assert job.ends()[0] == 0


def test_only_one_terminal_can_attach_at_a_time(script: str) -> None:
    with running(script) as job:
        pid = job.pid()
        first = subprocess.Popen(
            [*RELIGHT, "debug", str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert first.stdout is not None
        first.stdout.readline()
        second = attach(pid, types="c\n")
        assert second.returncode == 4
        assert "another terminal is attached to rank 0" in second.stderr
        first.communicate("c\nc\n", timeout=LIMIT_S)
        assert job.ends()[0] == 0


@pytest.mark.needs_root
def test_other_user_cannot_attach_to_breakpoint(script: str) -> None:
    other = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "connection = socket.socket(socket.AF_UNIX)\n"
        "connection.connect(f'\\0relight-breakpoint-{sys.argv[1]}')\n"
        "print(connection.recv(1000))\n"
    )
    with running(script) as job:
        pid = job.pid()
        found = subprocess.run(
            [sys.executable, "-c", other, str(pid)], capture_output=True, text=True, check=True
        )
        assert found.stdout == "b''\n"
        assert attach(pid, types="c\nc\n").returncode == 0


def test_pdb_quit_command_ends_rank(script: str) -> None:
    with running(script) as job:
        attach(job.pid(), types="q\n")
        code, _, stderr = job.ends()
        assert code == 1
        assert "rank 0 raised BdbQuit" in stderr


def test_pdb_interact_command_uses_attached_terminal(script: str) -> None:
    with running(script) as job:
        found = attach(job.pid(), types="interact\nx + 1\nprint(x + 2)\nexit()\np x\nc\nc\n")
        assert ">>> 42\n>>> 43\n>>> (Pdb) 41\n" in found.stdout


def test_pdb_commands_can_be_defined_on_attached_terminal(script: str) -> None:
    with running(script) as job:
        found = attach(job.pid(), types="b 10\ncommands 1\np number + 100\nend\nc\nc\nc\n")
        assert "(com) " in found.stdout
        assert "101\n" in found.stdout
        assert job.ends()[0] == 0


def test_breakpoints_in_threads_and_child_processes_are_independent(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing, threading\n"
        "def stop(name):\n"
        "    breakpoint()\n"
        "    print(name, flush=True)\n"
        "child = multiprocessing.get_context('fork').Process(target=stop, args=('child',))\n"
        "child.start()\n"
        "thread = threading.Thread(target=stop, args=('thread',))\n"
        "thread.start()\n"
        "child.join(), thread.join()\n"
    )
    with running(str(script)) as job:
        pids = {job.pid(), job.pid()}
        assert len(pids) == 2
        found = attach(job.process.pid, types="c\n")
        assert found.returncode == 2
        assert "2 processes are waiting at a breakpoint" in found.stderr
        rank = rank_processes.below(job.process.pid)[0]  # it only waits for its child
        for pid in (*(pids - {rank}), rank):
            attach(pid, types="c\n")
        code, stdout, _ = job.ends()
        assert (code, sorted(stdout.split())) == (0, ["child", "thread"])


@pytest.mark.slow
def test_rank_at_breakpoint_does_not_count_as_hung(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("breakpoint()\nprint('on')\n")
    with running("--hang-timeout=1", "--event-log-handler=console", str(script)) as job:
        pid = job.pid()
        with pytest.raises(subprocess.TimeoutExpired):
            job.process.wait(4)  # four times the limit
        attach(pid, types="c\n")
        assert job.ends()[0] == 0


@pytest.mark.parametrize("hook", ["0", "builtins.print"])
def test_pythonbreakpoint_variable_is_respected(hook: str, script: str) -> None:
    with running(script, PYTHONBREAKPOINT=hook) as job:
        code, _, stderr = job.ends()
        assert code == 0
        assert "is at a breakpoint" not in stderr


def test_breakpoint_works_in_environment_without_relight(tmp_path: Path, script: str) -> None:
    """The workers' virtual environment is empty; in practice, it has torch but not relight."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    assert (
        subprocess.run(
            [python, "-c", "import relight"], capture_output=True, check=False
        ).returncode
        == 1
    )
    with running(script, PYTHON_EXEC=str(python), PYTHONPATH=str(tmp_path)) as job:
        found = attach(job.pid(), types="import sys\np sys.path\nc\nc\n")
        assert f"'{tmp_path}'" in found.stdout
        assert job.ends()[0] == 0


def test_breakpoint_works_in_forked_workers(script: str) -> None:
    with running("--preload=json", "--nproc-per-node=2", script, stops="01") as job:
        for pid in {job.pid(), job.pid()}:
            assert "(Pdb) 41\n" in attach(pid, types="p x\nc\nc\n").stdout
        assert job.ends()[0] == 0


def test_errors_while_attaching_suggest_a_remedy() -> None:
    with pytest.raises(UsageError, match="rank 7 of 5 is not on this machine; here: ranks 0-1"):
        debug._choose({0: 10, 1: 11}, {}, 7, "5")
    with pytest.raises(UsageError, match="rank 7 of 5 is not on this machine; here: none"):
        debug._choose({}, {}, 7, "5")
    with pytest.raises(UsageError, match=r"rank 0 \(pid 10\), rank 1 \(pid 11\)") as several:
        debug._choose({0: 10, 1: 11}, {10: True, 11: True}, None, "5")
    assert several.value.hint == "relight debug 5 --rank 0"
    with pytest.raises(MachineError, match=r"rank 1 of 5 is not at a breakpoint"):
        debug._choose({0: 10, 1: 11}, {10: True}, 1, "5")
    with pytest.raises(MachineError, match="no rank of 5 is at a breakpoint"):
        debug._choose({0: 10, 1: 11}, {}, None, "5")
    assert debug._choose({0: 10, 1: 11}, {11: True}, None, "5") == (1, 11)


def at_terminal(command: list[str], answer: Callable[[str], str]) -> str:
    """Run a command in its own terminal, answer its prompts, and return all output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    shown, deadline = "", time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.5)[0]:
                continue
            try:
                data = os.read(terminal, 4096)
            except OSError:
                return shown  # the command has ended
            shown += data.decode()
            os.write(terminal, answer(shown).encode())
        raise AssertionError(shown)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [pytest.param("torchrun", marks=[pytest.mark.long, pytest.mark.needs_torch]), "relight"],
)
def test_breakpoint_at_terminal_behaves_as_under_torchrun(launcher: str, tmp_path: Path) -> None:
    """The second line comes from readline's history, which only exists at a terminal."""
    script = tmp_path / "train.py"
    script.write_text("x = 41\nbreakpoint()\nprint('x is', x)\n")
    command = TORCHRUN if launcher == "torchrun" else (*RELIGHT, "run")
    lines = iter(["x += 1\n", "\x1b[A\n", "c\n"])
    prompts = 0

    def answer(shown: str) -> str:
        nonlocal prompts
        if len(re.findall(r"\(Pdb\) ", shown)) <= prompts:
            return ""
        prompts += 1
        return next(lines, "")

    assert "x is 43" in at_terminal([*command, "--nproc-per-node=1", str(script)], answer)


def test_first_rank_at_breakpoint_gets_terminal_while_others_wait(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nbreakpoint()\nprint('rank', os.environ['RANK'], 'goes on')\n")
    attached: set[str] = set()
    typed = False

    def answer(shown: str) -> str:
        nonlocal typed
        for pid in set(re.findall(r"relight debug (\d+)", shown)) - attached:
            attached.add(pid)
            attach(pid, types="c\n")
        if "(Pdb) " in shown and attached and not typed:  # not before the other rank is waiting
            typed = True
            return "c\n"
        return ""

    shown = at_terminal([*RELIGHT, "run", "--nproc-per-node=2", str(script)], answer)
    assert len(attached) == 1
    assert "rank 0 goes on" in shown
    assert "rank 1 goes on" in shown
