"""Worker output, end to end: files, console, tee, and filters, without any loss."""

import collections
import itertools
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, Launch, long

pytestmark = pytest.mark.forked

Script = Callable[[str], Path]

SAY = "echo out $LOCAL_RANK; echo err $LOCAL_RANK >&2"


def say(launch: Launch, *flags: str, count: int = 2, **variables: str) -> "Output":
    """With these flags, run workers that write one line to each stream."""
    result = launch(
        "run", f"--nproc-per-node={count}", *flags, "--no-python", "sh", "-c", SAY,
        OMP_NUM_THREADS="1", **variables,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return Output(sorted(result.stdout.splitlines()), sorted(result.stderr.splitlines()))


Output = collections.namedtuple("Output", ["stdout", "stderr"])


def files_of(directory: Path) -> dict[str, str]:
    """Return the log files of the only run in a directory, by relative path."""
    (run,) = directory.iterdir()
    return {str(path.relative_to(run)): path.read_text() for path in run.rglob("*.log")}


# Where each stream goes.


@pytest.mark.parametrize(
    ("redirects", "tee"),
    [
        pair if sum(pair) in (0, 3, 6) else long(*pair)
        for pair in itertools.product(range(4), repeat=2)
    ],
)
def test_redirects_and_tee_bit_masks_select_streams(
    launch: Launch, tmp_path: Path, redirects: int, tee: int
) -> None:
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


def test_redirects_and_tee_accept_per_rank_values(launch: Launch, tmp_path: Path) -> None:
    """Ranks that are not listed stay on the console."""
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
def test_local_ranks_filter_applies_only_to_console(
    launch: Launch, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    everybody = say(launch, *flags, "--log-dir=all", count=3)
    filtered = say(launch, *flags, "--log-dir=some", "--local-ranks-filter=0,2", count=3)
    for all_lines, some_lines in zip(everybody, filtered, strict=True):
        assert some_lines == [line for line in all_lines if not line.endswith("1")]
    assert files_of(tmp_path / "some") == files_of(tmp_path / "all")


def test_log_dir_dev_null_disables_redirects_and_tee(launch: Launch, tmp_path: Path) -> None:
    """The filter is also off: all output is raw."""
    output = say(launch, "-r1", "-t2", "--local-ranks-filter=0", "--log-dir=/dev/null")
    assert output.stdout == ["out 0", "out 1"]
    assert [line for line in output.stderr if "note:" not in line] == ["err 0", "err 1"]
    assert list(tmp_path.iterdir()) == []


def test_each_attempt_has_its_own_log_directory(
    launch: Launch, tmp_path: Path, script: Script
) -> None:
    """Directories have torchrun's layout, and nothing from earlier attempts is lost."""
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
    # The rank that failed first has written its line; the other may have been stopped before it
    # could.
    for attempt in range(2):
        assert f":attempt {attempt}\n" in result.stdout
    assert result.stdout.splitlines()[-2:].count("[default1]:attempt 2") == 1


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("[${role_name} ${rank}/${local_rank}] ", "[trainer 1/1] "),
        ("$$ ${unknown} é|", "$ ${unknown} é|"),
        ("", "[trainer1]:"),
        ("${hostname}:${rank}: ", f"{socket.gethostname()}:1: "),
    ],
)
def test_log_line_prefix_template_replaces_tee_prefix(
    launch: Launch, template: str, prefix: str
) -> None:
    output = say(launch, "-t1", "--role=trainer", "--log-dir=logs",
                 TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=template)  # fmt: skip
    assert f"{prefix}out 1" in output.stdout


def test_log_line_prefix_flag_overrides_environment_variable(launch: Launch) -> None:
    """The flag is new in torch 2.14, which gives it the same precedence."""
    output = say(launch, "-t1", "--log-dir=logs", "--log_line_prefix_template", "<${rank}> ",
                 TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="variable")  # fmt: skip
    assert "<1> out 1" in output.stdout


def test_filtered_lines_from_several_ranks_go_to_one_file(
    launch: Launch, tmp_path: Path, script: Script
) -> None:
    """Lines keep their prefixes; without --tee, the file stays empty."""
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


def test_lines_on_stdout_and_stderr_keep_their_order(launch: Launch, script: Script) -> None:
    """With 2>&1, lines appear in the order of writing."""
    train = script(
        "import os\nfor number in range(3000):\n    os.write(1 + number % 2, b'%05d\\n' % number)\n"
    )
    result = launch(
        "-c", f'exec {sys.executable} -m relight run --nproc-per-node=1 "$0" 2>&1', train,
        command=("sh",),
    )  # fmt: skip
    assert result.stdout.split() == [f"{number:05}" for number in range(3000)]


# Nothing is lost.


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
def test_output_of_killed_worker_is_complete(
    launch: Launch, tmp_path: Path, script: Script, flags: tuple[str, ...]
) -> None:
    """The file and the console have all of the output, in order."""
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
def test_leftover_grandchild_process_does_not_delay_exit(
    launch: Launch, script: Script, flags: tuple[str, ...]
) -> None:
    """A grandchild that keeps the worker's stdout open is ended, and the output is complete."""
    train = script(
        "import pathlib, subprocess, sys, time\n"
        "grandchild = 'echo child; touch started; exec sleep 1000'\n"
        "subprocess.Popen(['setsid', 'sh', '-c', grandchild])\n"
        "sys.stdout.write('last words')\n"
        "sys.stdout.flush()\n"
        "while not pathlib.Path('started').exists():\n"
        "    time.sleep(0.02)\n"
    )
    result = launch("run", "--nproc-per-node=1", *flags, "--log-dir=logs", train, timeout=LIMIT_S)
    assert result.returncode == 0
    assert "last words" in result.stdout
    assert "child" in result.stdout


def test_binary_output_passes_through_unchanged(
    launch: Launch, tmp_path: Path, script: Script
) -> None:
    """The console and the file get the same bytes, even if the last line lacks a line break."""
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
def test_huge_lines_from_several_ranks_do_not_mix(
    launch: Launch, script: Script, flags: tuple[str, ...]
) -> None:
    """Four ranks each print a line of 10 MB at the same time."""
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
@pytest.mark.parametrize("count", [30_000, pytest.param(250_000, marks=pytest.mark.long)])
def test_every_output_line_is_shown_exactly_once(
    launch: Launch, tmp_path: Path, script: Script, flags: tuple[str, ...], count: int
) -> None:
    """Four workers write at the same time; the lines of each rank stay in order."""
    result = launch("run", "--nproc-per-node=4", *flags, "--log-dir=logs", script(MANY),
                    LINES=str(count), timeout=LIMIT_S)  # fmt: skip
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


FILLS = """
import os
with open(os.environ["FILLER"], "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
raise ValueError("never to be read")
"""


SAYS_NOTHING = "import os\nos._exit(1)"


@pytest.mark.parametrize(
    ("disk_type", "text", "says"),
    [
        ("tmpfs", FILLS, "the disk of its log is full; output may be lost"),
        ("tmpfs", SAYS_NOTHING, ""),
        ("ramfs", SAYS_NOTHING, ""),
    ],
    ids=["full", "enough room", "unknown size"],
)
def test_failure_report_mentions_full_log_disk(
    launch: Launch, script: Script, tmp_path: Path, disk_type: str, text: str, says: str
) -> None:
    """The report warns that output may be lost."""
    unshare = ("unshare", "--mount", "--map-root-user")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here, so no disk of a few kilobytes")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t {disk_type} -o size=256k none {disk} && exec "$@"'
    result = launch(
        "run", "--redirects=3", f"--log-dir={disk}", script(text),
        command=(*unshare, "sh", "-c", mount, "sh", *RELIGHT), FILLER=str(disk / "filler"),
    )  # fmt: skip
    assert result.returncode == 1
    first, *rest = result.stderr.splitlines()
    assert first == "relight: rank 0 exited with code 1" + (says and f": {says}")
    assert says or any(line.startswith("  it printed nothing to stderr") for line in rest)
