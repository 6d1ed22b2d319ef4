"""Slow, stuck, and closed consoles and terminals, and how they affect workers."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start
from test_logs import LAST_WORDS

pytestmark = pytest.mark.forked

Script = Callable[[str], Path]

# A slow console.


def read_all(fd: int, into: bytes = b"") -> bytes:
    while new := os.read(fd, 1 << 20):
        into += new
    return into


def wait_for(done: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.02)


WRITER = """
import os, pathlib, sys
rank = os.environ["RANK"]
for number in range(50_000):
    sys.stdout.write(f"{rank} {number} some words to fill the line up\\n")
sys.stdout.flush()
pathlib.Path(f"done{rank}").touch()
"""


def test_slow_console_does_not_block_workers_that_use_tee(
    start: Start, tmp_path: Path, script: Script
) -> None:
    """With --tee, workers run at full speed, and the console receives everything later."""
    agent = start("run", "--nproc-per-node=2", "-t1", "--log-dir=logs", script(WRITER))
    wait_for(lambda: (tmp_path / "done0").exists() and (tmp_path / "done1").exists())
    assert agent.poll() is None
    assert agent.stdout is not None
    lines = read_all(agent.stdout.fileno()).splitlines()
    assert agent.wait(LIMIT_S) == 0
    for rank in (b"0", b"1"):
        mine = [line for line in lines if line.startswith(b"[default%s]:" % rank)]
        assert [line.split()[1] for line in mine] == [b"%d" % number for number in range(50_000)]


def test_slow_console_blocks_workers_without_log_files(
    start: Start, tmp_path: Path, script: Script
) -> None:
    """Without a file, workers block as on the console itself; the agent still handles signals."""
    agent = start("run", "--nproc-per-node=2", script(WRITER))
    assert agent.stdout is not None
    shown = os.read(agent.stdout.fileno(), 1000)
    time.sleep(1)  # long enough for a worker to write several times as much
    assert not (tmp_path / "done0").exists()
    assert not (tmp_path / "done1").exists()
    shown = read_all(agent.stdout.fileno(), shown)
    assert agent.wait(LIMIT_S) == 0
    lines = shown.splitlines()
    for rank in (b"0", b"1"):
        assert [line.split()[1] for line in lines if line.startswith(rank)] == [
            b"%d" % number for number in range(50_000)
        ]


@pytest.mark.parametrize("flags", [(), ("-t1",)], ids=["raw", "tee'd"])
def test_second_signal_makes_agent_abandon_stuck_console(
    start: Start, tmp_path: Path, script: Script, flags: tuple[str, ...]
) -> None:
    """The agent normally ends once the console has received everything."""
    agent = start("run", "--nproc-per-node=1", *flags, "--log-dir=logs", "--shutdown-timeout=1",
                  script(WRITER))  # fmt: skip
    assert agent.stdout is not None
    assert os.read(agent.stdout.fileno(), 1000)
    if flags:
        wait_for((tmp_path / "done0").exists)
    time.sleep(0.5)
    agent.send_signal(signal.SIGTERM)
    time.sleep(1.2)
    assert agent.poll() is None
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(LIMIT_S) == 128 + signal.SIGTERM
    if flags:
        (log,) = (tmp_path / "logs").rglob("stdout.log")
        assert log.read_text().count("\n") == 50_000


# A console that is closed, or never existed.


def test_workers_without_log_files_get_a_broken_pipe_when_reader_exits(
    start: Start, script: Script
) -> None:
    """`relight run … | head` ends like `python … | head`."""
    agent = start("run", "--nproc-per-node=1", script("while True: print('line')"))
    assert agent.stdout is not None
    assert agent.stderr is not None
    os.read(agent.stdout.fileno(), 1000)
    agent.stdout.close()
    errors = agent.stderr.read()
    assert agent.wait(LIMIT_S) == 1
    assert b"BrokenPipeError" in errors


def test_workers_that_use_tee_continue_when_reader_exits(
    start: Start, tmp_path: Path, script: Script
) -> None:
    """With --tee, the job succeeds and its files are complete."""
    agent = start("run", "--nproc-per-node=2", "-t1", "--duplicate-stdout-filters= 49999 ",
                  "--log-dir=logs", script(WRITER))  # fmt: skip
    assert agent.stdout is not None
    os.read(agent.stdout.fileno(), 1000)
    agent.stdout.close()
    assert agent.wait(LIMIT_S) == 0
    for log in (tmp_path / "logs").rglob("stdout.log"):
        assert log.read_text().count("\n") == 50_000
    (filtered,) = (tmp_path / "logs").rglob("filtered_stdout.log")
    assert filtered.read_text().count("\n") == 2


@pytest.mark.parametrize("flags", [(), ("-t1",)])
def test_redirecting_console_to_full_disk_does_not_fail_job(
    launch: Launch, tmp_path: Path, script: Script, flags: tuple[str, ...]
) -> None:
    """`… > /dev/full` is reported once."""
    result = launch("-c", f'exec {sys.executable} -m relight run "$@" > /dev/full', "sh",
                    *flags, "--log-dir=logs", script(WRITER), command=("sh",))  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "done0").exists()
    assert result.stderr.count("relight: can't write to stdout: No space left on device") == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_agent_works_with_closed_standard_streams(
    launch: Launch, tmp_path: Path, script: Script, closed: str
) -> None:
    """If stdin, stdout, or stderr is closed, workers don't inherit unexpected descriptors."""
    train = script(
        "import os, pathlib, sys\n"
        "links = [os.readlink(f'/proc/self/fd/{fd}') for fd in range(3)]\n"
        "pathlib.Path('links' + os.environ['RANK']).write_text(' '.join(links))\n"
        "print('out')\n"
        "print('err', file=sys.stderr)\n"
    )
    result = launch("-c", f'exec {sys.executable} -m relight run --nproc-per-node=2 "$@" {closed}',
                    "sh", train, command=("sh",))  # fmt: skip
    assert result.returncode == 0, result.stderr
    for rank in range(2):
        stdin, stdout, stderr = (tmp_path / f"links{rank}").read_text().split()
        assert stdin.startswith(("/dev/null", "pipe:"))
        assert stdout.startswith("pipe:")
        assert stderr.startswith("pipe:")
    assert result.stdout == ("out\nout\n" if closed in ("<&-", "2>&-") else "")


# Terminals.


class Terminal:
    """A pseudo-terminal that is the agent's console."""

    def __init__(self, rows: int = 33, columns: int = 101) -> None:
        self.fd, self.agents_end = os.openpty()
        self.resize(rows, columns)
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def read_until(self, text: bytes) -> bytes:
        return self.read_until_match(re.escape(text))

    def read_until_match(self, pattern: bytes) -> bytes:
        end = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.seen, re.DOTALL):
            assert time.monotonic() < end, self.seen
            if select.select([self.fd], [], [], 0.1)[0]:
                self.seen += os.read(self.fd, 65536)
        return self.seen

    def read_to_end(self, agent: "subprocess.Popen[bytes]") -> bytes:
        """Read until the agent has exited and no output is left."""
        end = time.monotonic() + LIMIT_S
        while True:
            assert time.monotonic() < end, self.seen
            ended = agent.poll() is not None
            while select.select([self.fd], [], [], 0.05)[0]:
                self.seen += os.read(self.fd, 65536)
            if ended:
                return self.seen

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.agents_end)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


TICKS = """
import time
for _ in range(20):
    tick = int(time.time() * 10) + 1
    time.sleep(max(0, tick / 10 - time.time()))
    print("tick", tick)
"""


@pytest.mark.parametrize("flags", [(), ("--tee=3", "--log-dir=logs")], ids=["raw", "tee'd"])
@pytest.mark.parametrize("setting", ["once", "all"])
def test_identical_lines_from_several_ranks_are_shown_once_on_terminal(
    start: Start, tmp_path: Path, terminal: Terminal, script: Script, flags: tuple[str, ...],
    setting: str,
) -> None:  # fmt: skip
    """The files contain all lines."""
    agent = start(
        "run", "--nproc-per-node=3", *flags, script(TICKS),
        stdout=terminal.agents_end, stderr=terminal.agents_end,
        variables={"OMP_NUM_THREADS": "1", "RELIGHT_REPEATED_LINES": setting},
    )  # fmt: skip
    output = terminal.read_to_end(agent)
    shown = re.findall(rb"^(?:\[default\d\]:)?tick \d+\r$", output, re.MULTILINE)
    notes = re.findall(rb"^\[ranks? [-\d, ]+\] (?:the same|tick )", output, re.MULTILINE)
    assert agent.returncode == 0
    assert (20 <= len(shown) < 60 and notes) if setting == "once" else (len(shown) == 60)
    for log in (tmp_path / "logs").rglob("stdout.log"):
        assert log.read_text().count("tick") == 20


def test_workers_see_a_terminal_if_agent_runs_on_one(
    start: Start, terminal: Terminal, script: Script
) -> None:
    """The workers' terminal has the size of the agent's terminal, and follows changes to it."""
    train = script(
        "import os, sys, time\n"
        "size = os.get_terminal_size()\n"
        "print(sys.stdout.isatty(), sys.stderr.isatty(), *size, 'first')\n"
        "while os.get_terminal_size() == size:\n"
        "    time.sleep(0.02)\n"
        "print(*os.get_terminal_size(), 'second')\n"
    )
    agent = start("run", "--nproc-per-node=1", train,
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    assert b"True True 101 33 first\r\n" in terminal.read_until(b"first\r\n")
    terminal.resize(40, 120)
    agent.send_signal(signal.SIGWINCH)
    assert b"120 40 second\r\n" in terminal.read_until(b"second\r\n")
    assert agent.wait(LIMIT_S) == 0


BAR = """
import os, sys, time
for percent in range(0, 101, 10):
    sys.stderr.write(f"\\r{percent:3}% of {os.environ['RANK']}")
    sys.stderr.flush()
    time.sleep(0.03)
sys.stderr.write("\\n")
"""


def test_progress_bar_of_single_rank_is_passed_through_unchanged(
    start: Start, terminal: Terminal, script: Script
) -> None:
    """With one rank, every byte reaches the terminal as it was written."""
    agent = start("run", "--nproc-per-node=1", script(BAR),
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    shown = terminal.read_to_end(agent)
    assert shown == b"".join(b"\r%3d%% of 0" % n for n in range(0, 101, 10)) + b"\r\n"


@pytest.mark.parametrize("flags", [(), ("-t2",)], ids=["raw", "tee'd"])
def test_progress_bars_from_several_ranks_do_not_mix(
    start: Start, terminal: Terminal, script: Script, flags: tuple[str, ...]
) -> None:
    """Each line contains one bar's updates, and none is lost; --tee adds a prefix to each line."""
    agent = start("run", "--nproc-per-node=2", *flags, "--log-dir=logs", script(BAR),
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    shown = terminal.read_to_end(agent)
    for line in shown.split(b"\n"):
        assert not (b"of 0" in line and b"of 1" in line), line
    for rank in range(2):
        moves = re.findall(rb"( *\d+)%% of %d" % rank, shown)
        assert [int(move) for move in moves] == list(range(0, 101, 10))
        if flags:
            prefix = b"[default%d]:" % rank
            assert len(re.findall(re.escape(prefix) + rb" *\d+%", shown)) == 11


def test_output_of_killed_worker_is_complete_on_terminal(
    start: Start, terminal: Terminal, script: Script
) -> None:
    agent = start("run", "--nproc-per-node=1", script(LAST_WORDS), variables={"DIES": "0"},
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    shown = terminal.read_to_end(agent)
    text = b"\r\n".join(b"0 %07d" % n for n in range(20_000)) + b"\r\nthe end of 0"
    assert shown.startswith(text + text)
    assert agent.returncode == 128 + signal.SIGKILL


def test_worker_stream_is_not_a_terminal_if_agent_stream_is_pipe(
    start: Start, terminal: Terminal, script: Script
) -> None:
    """The other stream may be a terminal."""
    train = script("import sys\nprint(sys.stdout.isatty(), sys.stderr.isatty())\n"
                   "print('error', file=sys.stderr)\n")  # fmt: skip
    agent = start("run", "--nproc-per-node=1", train, stdout=terminal.agents_end)
    assert terminal.read_to_end(agent) == b"True False\r\n"
    assert agent.stderr is not None
    assert agent.stderr.read() == b"error\n"
