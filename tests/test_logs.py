"""The output of workers, from end to end: files, console, tee, filters; what must not be lost."""

import collections
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
from conftest import Launch, Start

Script = Callable[[str], Path]

SAY = "echo out $LOCAL_RANK; echo err $LOCAL_RANK >&2"


def say(launch: Launch, *flags: str, count: int = 2, **variables: str) -> "Output":
    """Run workers that write one line to each stream, with these flags."""
    result = launch(
        "run", f"--nproc-per-node={count}", *flags, "--no-python", "sh", "-c", SAY,
        OMP_NUM_THREADS="1", **variables,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return Output(sorted(result.stdout.splitlines()), sorted(result.stderr.splitlines()))


Output = collections.namedtuple("Output", ["stdout", "stderr"])


def files_of(directory: Path) -> dict[str, str]:
    """The log files of the only run in a directory, by their path in it."""
    (run,) = directory.iterdir()
    return {str(path.relative_to(run)): path.read_text() for path in run.rglob("*.log")}


# Where each stream goes


@pytest.mark.parametrize("tee", range(4))
@pytest.mark.parametrize("redirects", range(4))
def test_redirects_and_tee(launch: Launch, tmp_path: Path, redirects: int, tee: int) -> None:
    """A bit of --redirects sends a stream to a file, a bit of --tee to file and console."""
    output = say(launch, f"-r{redirects}", f"-t{tee}", "--log-dir=logs")
    expected = {}
    for bit, name, text, shown in ((1, "stdout", "out", output.stdout),
                                   (2, "stderr", "err", output.stderr)):  # fmt: skip
        if (redirects | tee) & bit:
            expected.update({f"attempt_0/{r}/{name}.log": f"{text} {r}\n" for r in (0, 1)})
        if tee & bit:
            assert shown == [f"[default{r}]:{text} {r}" for r in (0, 1)]
        elif redirects & bit:
            assert shown == []
        else:
            assert shown == [f"{text} {r}" for r in (0, 1)]
    assert files_of(tmp_path / "logs") == expected


def test_maps_by_local_rank(launch: Launch, tmp_path: Path) -> None:
    """--redirects and --tee take a value a rank; ranks that are not named stay on the console."""
    output = say(launch, "--redirects=0:3,2:1", "--tee=1:2", "--log-dir=logs", count=4)
    assert output.stdout == ["out 1", "out 3"]
    assert output.stderr == ["[default1]:err 1", "err 2", "err 3"]
    assert files_of(tmp_path / "logs") == {
        "attempt_0/0/stdout.log": "out 0\n",
        "attempt_0/0/stderr.log": "err 0\n",
        "attempt_0/1/stderr.log": "err 1\n",
        "attempt_0/2/stdout.log": "out 2\n",
    }


@pytest.mark.parametrize("flags", [(), ("-r3",), ("-t3",), ("-r1", "-t2")])
def test_the_filter_of_local_ranks(launch: Launch, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """--local-ranks-filter takes the console from the other ranks, not their files."""
    everybody = say(launch, *flags, "--log-dir=all", count=3)
    filtered = say(launch, *flags, "--log-dir=some", "--local-ranks-filter=0,2", count=3)
    for all_lines, some_lines in zip(everybody, filtered, strict=True):
        assert some_lines == [line for line in all_lines if not line.endswith("1")]
    assert files_of(tmp_path / "some") == files_of(tmp_path / "all")


def test_dev_null_as_log_dir(launch: Launch, tmp_path: Path) -> None:
    """--log-dir=/dev/null switches redirects, tee and filter off: all output is raw."""
    output = say(launch, "-r1", "-t2", "--local-ranks-filter=0", "--log-dir=/dev/null")
    assert output.stdout == ["out 0", "out 1"]
    assert [line for line in output.stderr if "note:" not in line] == ["err 0", "err 1"]
    assert list(tmp_path.iterdir()) == []


def test_each_attempt_has_its_directory(launch: Launch, tmp_path: Path, script: Script) -> None:
    """The layout is torchrun's, one directory an attempt, and nothing of an attempt is lost."""
    train = script(
        "import os, sys\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('attempt', attempt)\n"
        "sys.exit(attempt != '2')\n"
    )
    result = launch("run", "--nproc-per-node=2", "--max-restarts=2", "-t3", "--log-dir=logs",
                    "--rdzv-id=job7", train)  # fmt: skip
    assert result.returncode == 0, result.stderr
    (run,) = (tmp_path / "logs").iterdir()
    assert re.fullmatch(r"job7_\w{8}", run.name)
    assert run.stat().st_mode & 0o777 == 0o700
    names = sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file())
    assert [name for name in names if name.endswith(".log")] == [
        f"attempt_{attempt}/{rank}/{name}.log"
        for attempt in range(3) for rank in range(2) for name in ("stderr", "stdout")
    ]  # fmt: skip
    # Who failed first has written; the other may have been stopped before it could.
    for attempt in range(2):
        assert f":attempt {attempt}\n" in result.stdout
    assert result.stdout.splitlines()[-2:].count("[default1]:attempt 2") == 1


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("[${role_name} ${rank}/${local_rank}] ", "[trainer 1/1] "),
        ("$$ ${unknown} é|", "$ ${unknown} é|"),
        ("", "[trainer1]:"),
    ],
)
def test_the_prefix_template(launch: Launch, template: str, prefix: str) -> None:
    """TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE replaces what tee'd lines begin with."""
    output = say(launch, "-t1", "--role=trainer", "--log-dir=logs",
                 TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=template)  # fmt: skip
    assert f"{prefix}out 1" in output.stdout


def test_duplicate_filters(launch: Launch, tmp_path: Path, script: Script) -> None:
    """Tee'd lines with one of the texts are also in one file for all ranks, prefix included."""
    train = script(
        "import sys, time\n"
        "for text in ('an app', 'le\\npear\\nba', 'nana', '\\nkiwi\\napple'):\n"
        "    for stream in (sys.stdout, sys.stderr):\n"
        "        stream.write(text)\n"
        "        stream.flush()\n"
        "    time.sleep(0.2)\n"
    )
    filters = ("--duplicate-stdout-filters=apple,banana", "--duplicate-stderr-filters=kiwi")
    flags = ("run", "--nproc-per-node=3", "--local-ranks-filter=0,1", *filters)
    launch(*flags, "-t3", "--log-dir=tee", train)
    files = files_of(tmp_path / "tee")
    lines = [f"[default{r}]:{text}" for r in (0, 1) for text in ("an apple", "apple", "banana")]
    assert sorted(files["attempt_0/filtered_stdout.log"].splitlines()) == lines
    assert files["attempt_0/filtered_stdout.log"].endswith("\n")
    assert sorted(files["attempt_0/filtered_stderr.log"].splitlines()) == [
        "[default0]:kiwi", "[default1]:kiwi",
    ]  # fmt: skip
    launch(*flags, "--log-dir=raw", train)
    assert files_of(tmp_path / "raw") == {
        "attempt_0/filtered_stdout.log": "", "attempt_0/filtered_stderr.log": "",
    }  # fmt: skip


def test_both_streams_keep_their_order(launch: Launch, script: Script) -> None:
    """With 2>&1 what a worker writes to stdout and stderr arrives in the order of writing."""
    train = script(
        "import os\nfor number in range(3000):\n    os.write(1 + number % 2, b'%05d\\n' % number)\n"
    )
    result = launch(
        "-c", f'exec {sys.executable} -m relight run --nproc-per-node=1 "$0" 2>&1', train,
        command=("sh",),
    )  # fmt: skip
    assert result.stdout.split() == [f"{number:05}" for number in range(3000)]


# Nothing is lost


LAST_WORDS = """
import os, signal, sys
data = b"".join(b"%s %07d\\n" % (os.environ["RANK"].encode(), n) for n in range(20_000))
data += b"the end of " + os.environ["RANK"].encode()
for fd in (1, 2):
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left):]
if os.environ["RANK"] == os.environ["DIES"]:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("flags", [(), ("-r3",), ("-t3",)], ids=["raw", "redirected", "tee'd"])
def test_a_killed_worker_loses_nothing(
    launch: Launch, tmp_path: Path, script: Script, flags: tuple[str, ...]
) -> None:
    """What a worker wrote before SIGKILL is there, all and in order, in file and console."""
    result = launch("run", "--nproc-per-node=1", "--log-dir=logs", *flags, script(LAST_WORDS),
                    DIES="0")  # fmt: skip
    assert result.returncode == 128 + signal.SIGKILL
    lines = [f"0 {number:07}" for number in range(20_000)] + ["the end of 0"]
    if flags:
        for name, text in files_of(tmp_path / "logs").items():
            assert text == "\n".join(lines), name
    if flags != ("-r3",):
        prefix = "[default0]:" if flags else ""
        expected = [prefix + line for line in lines]
        assert result.stdout.splitlines() == expected
        assert result.stderr.splitlines()[: len(expected)] == expected


@pytest.mark.parametrize("flags", [(), ("-t1",)], ids=["raw", "tee'd"])
def test_what_a_worker_left_behind_holds_nothing_up(
    launch: Launch, script: Script, flags: tuple[str, ...]
) -> None:
    """A grandchild that has the worker's stdout open is ended, and the output is complete."""
    train = script(
        "import pathlib, subprocess, sys, time\n"
        "grandchild = 'echo child; touch started; exec sleep 1000'\n"
        "subprocess.Popen(['setsid', 'sh', '-c', grandchild])\n"
        "sys.stdout.write('last words')\n"
        "sys.stdout.flush()\n"
        "while not pathlib.Path('started').exists():\n"
        "    time.sleep(0.02)\n"
    )
    result = launch("run", "--nproc-per-node=1", *flags, "--log-dir=logs", train, timeout=60)
    assert result.returncode == 0
    assert "last words" in result.stdout
    assert "child" in result.stdout


def test_anything_passes_through(launch: Launch, tmp_path: Path, script: Script) -> None:
    """Bytes that are no text, also without a line end, reach console and file unchanged."""
    train = script(
        "import os, random\n"
        "data = random.Random(7).randbytes(300_000)\n"
        "for start in range(0, len(data), 7001):\n"
        "    os.write(1, data[start:start + 7001])\n"
    )
    run = ("-c", f'{sys.executable} -m relight run --nproc-per-node=1 "$@" | sha1sum', "sh")
    expected = launch("-c", f"{sys.executable} {train} | sha1sum", command=("sh",)).stdout
    assert launch(*run, train, command=("sh",)).stdout == expected
    assert launch(*run, "-r1", "--log-dir=logs", train, command=("sh",)).returncode == 0
    (log,) = (tmp_path / "logs").rglob("stdout.log")
    assert launch("-c", f"sha1sum < {log}", command=("sh",)).stdout == expected


HUGE = """
import os
data = os.environ["RANK"].encode() * 10_000_000
left = memoryview(data + b"\\n")
while left:
    left = left[os.write(1, left):]
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-t1",)], ids=["raw", "tee'd"])
def test_huge_lines_stay_whole(launch: Launch, script: Script, flags: tuple[str, ...]) -> None:
    """A line of 10 MB from each of four ranks, all at once, is four lines."""
    result = launch("run", "--nproc-per-node=4", *flags, "--log-dir=logs", script(HUGE))
    prefix = "[default{}]:" if flags else ""
    lines = sorted(result.stdout.splitlines())
    assert [len(line) for line in lines] == [10_000_000 + len(prefix.format(0))] * 4
    for rank, line in enumerate(lines):
        assert line == prefix.format(rank) + str(rank) * 10_000_000


MANY = """
import os, sys
rank, count = os.environ["RANK"], int(os.environ["LINES"])
for number in range(count):
    sys.stdout.write(f"{rank} {number} some words to fill the line up to a usual length\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-t1",)], ids=["raw", "tee'd"])
def test_a_million_lines(
    launch: Launch, tmp_path: Path, script: Script, flags: tuple[str, ...]
) -> None:
    """Every line of four workers is shown once, whole and in its rank's order."""
    count = 250_000
    result = launch("run", "--nproc-per-node=4", *flags, "--log-dir=logs", script(MANY),
                    LINES=str(count), timeout=110)  # fmt: skip
    assert result.returncode == 0
    prefix = r"\[default(\d)\]:" if flags else "()"
    pattern = re.compile(prefix + r"(\d) (\d+) some words to fill the line up to a usual length")
    following = [0] * 4
    for line in result.stdout.splitlines():
        match = pattern.fullmatch(line)
        assert match, line
        named, rank, number = match.groups()
        assert not flags or named == rank
        assert int(number) == following[int(rank)]
        following[int(rank)] += 1
    assert following == [count] * 4
    if flags:
        for path in (tmp_path / "logs").rglob("stdout.log"):
            rank = path.parent.name
            expected = f"{rank} {count - 1} some words to fill the line up to a usual length\n"
            text = path.read_text()
            assert text.count("\n") == count
            assert text.endswith(expected)


# A slow console


def read_all(fd: int, into: bytes = b"") -> bytes:
    while new := os.read(fd, 1 << 20):
        into += new
    return into


def wait_for(done: Callable[[], bool], limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
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


def test_a_slow_console_does_not_hold_teed_workers(
    start: Start, tmp_path: Path, script: Script
) -> None:
    """With --tee workers run at full speed; the console gets everything, later."""
    agent = start("run", "--nproc-per-node=2", "-t1", "--log-dir=logs", script(WRITER))
    wait_for(lambda: (tmp_path / "done0").exists() and (tmp_path / "done1").exists())
    assert agent.poll() is None
    assert agent.stdout is not None
    lines = read_all(agent.stdout.fileno()).splitlines()
    assert agent.wait(30) == 0
    for rank in (b"0", b"1"):
        mine = [line for line in lines if line.startswith(b"[default%s]:" % rank)]
        assert [line.split()[1] for line in mine] == [b"%d" % number for number in range(50_000)]


def test_a_slow_console_holds_raw_workers(start: Start, tmp_path: Path, script: Script) -> None:
    """Without a file a worker waits, as on the console itself, and the agent takes signals."""
    agent = start("run", "--nproc-per-node=2", script(WRITER))
    assert agent.stdout is not None
    shown = os.read(agent.stdout.fileno(), 1000)
    time.sleep(1)  # it could write several times as much meanwhile
    assert not (tmp_path / "done0").exists()
    assert not (tmp_path / "done1").exists()
    shown = read_all(agent.stdout.fileno(), shown)
    assert agent.wait(30) == 0
    lines = shown.splitlines()
    for rank in (b"0", b"1"):
        assert [line.split()[1] for line in lines if line.startswith(rank)] == [
            b"%d" % number for number in range(50_000)
        ]


@pytest.mark.parametrize("flags", [(), ("-t1",)], ids=["raw", "tee'd"])
def test_a_stuck_console_can_be_given_up(
    start: Start, tmp_path: Path, script: Script, flags: tuple[str, ...]
) -> None:
    """The agent ends when the console has everything; a second signal ends it without that."""
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
    assert agent.wait(30) == 128 + signal.SIGTERM
    if flags:
        (log,) = (tmp_path / "logs").rglob("stdout.log")
        assert log.read_text().count("\n") == 50_000


# A console that goes away, or never was there


def test_raw_workers_learn_that_nobody_reads(start: Start, script: Script) -> None:
    """`relight run … | head` ends as `python … | head` does: the worker's write fails."""
    agent = start("run", "--nproc-per-node=1", script("while True: print('line')"))
    assert agent.stdout is not None
    assert agent.stderr is not None
    os.read(agent.stdout.fileno(), 1000)
    agent.stdout.close()
    errors = agent.stderr.read()
    assert agent.wait(30) == 1
    assert b"BrokenPipeError" in errors


def test_teed_workers_go_on_when_nobody_reads(start: Start, tmp_path: Path, script: Script) -> None:
    """With --tee the job ends well and its files are complete, though the console is gone."""
    agent = start("run", "--nproc-per-node=2", "-t1", "--duplicate-stdout-filters= 49999 ",
                  "--log-dir=logs", script(WRITER))  # fmt: skip
    assert agent.stdout is not None
    os.read(agent.stdout.fileno(), 1000)
    agent.stdout.close()
    assert agent.wait(60) == 0
    for log in (tmp_path / "logs").rglob("stdout.log"):
        assert log.read_text().count("\n") == 50_000
    (filtered,) = (tmp_path / "logs").rglob("filtered_stdout.log")
    assert filtered.read_text().count("\n") == 2


def test_a_full_disk_behind_the_console(launch: Launch, tmp_path: Path, script: Script) -> None:
    """`-t … > /dev/full` costs the console, not the job."""
    result = launch("-c", f'exec {sys.executable} -m relight run "$@" > /dev/full', "sh",
                    "-t1", "--log-dir=logs", script(WRITER), command=("sh",))  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "done0").exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors(
    launch: Launch, tmp_path: Path, script: Script, closed: str
) -> None:
    """An agent without stdin, stdout or stderr works, and workers have nothing odd there."""
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


# Terminals


class Terminal:
    """A pseudo-terminal as the agent's console."""

    def __init__(self, rows: int = 33, columns: int = 101) -> None:
        self.fd, self.agents_end = os.openpty()
        self.resize(rows, columns)
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def read_until(self, text: bytes, limit_s: float = 60) -> bytes:
        end = time.monotonic() + limit_s
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.fd], [], [], 0.1)[0]:
                self.seen += os.read(self.fd, 65536)
        return self.seen

    def read_to_end(self, agent: "subprocess.Popen[bytes]") -> bytes:
        """Read until the agent has ended and nothing is left."""
        while True:
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


def test_a_terminal_is_a_terminal_for_the_workers(
    start: Start, terminal: Terminal, script: Script
) -> None:
    """Raw workers see a terminal of the same size, which follows that of the agent."""
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
    assert agent.wait(30) == 0


BAR = """
import os, sys, time
for percent in range(0, 101, 10):
    sys.stderr.write(f"\\r{percent:3}% of {os.environ['RANK']}")
    sys.stderr.flush()
    time.sleep(0.03)
sys.stderr.write("\\n")
"""


def test_a_progress_bar_on_a_terminal(start: Start, terminal: Terminal, script: Script) -> None:
    """With one rank, a bar's bytes are on the terminal as the worker wrote them."""
    agent = start("run", "--nproc-per-node=1", script(BAR),
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    shown = terminal.read_to_end(agent)
    assert shown == b"".join(b"\r%3d%% of 0" % n for n in range(0, 101, 10)) + b"\r\n"


@pytest.mark.parametrize("flags", [(), ("-t2",)], ids=["raw", "tee'd"])
def test_progress_bars_of_several_ranks(
    start: Start, terminal: Terminal, script: Script, flags: tuple[str, ...]
) -> None:
    """Each line has the moves of one bar; none is lost; --tee puts the prefix before each."""
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


def test_a_killed_worker_loses_nothing_on_a_terminal(
    start: Start, terminal: Terminal, script: Script
) -> None:
    """What a worker wrote to a pseudo-terminal before SIGKILL is shown."""
    agent = start("run", "--nproc-per-node=1", script(LAST_WORDS), variables={"DIES": "0"},
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    shown = terminal.read_to_end(agent)
    text = b"\r\n".join(b"0 %07d" % n for n in range(20_000)) + b"\r\nthe end of 0"
    assert shown.startswith(text + text)
    assert agent.returncode == 128 + signal.SIGKILL


def test_one_stream_on_the_terminal_and_one_not(
    start: Start, terminal: Terminal, script: Script
) -> None:
    """Stderr is a pipe where it goes to one, also if stdout is a terminal."""
    train = script("import sys\nprint(sys.stdout.isatty(), sys.stderr.isatty())\n"
                   "print('error', file=sys.stderr)\n")  # fmt: skip
    agent = start("run", "--nproc-per-node=1", train, stdout=terminal.agents_end)
    assert terminal.read_to_end(agent) == b"True False\r\n"
    assert agent.stderr is not None
    assert agent.stderr.read() == b"error\n"
