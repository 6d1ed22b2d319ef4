"""A terminal shows the traceback of ending workers once; elsewhere, no byte is dropped."""

import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start
from release.distribution import interpreter
from test_logs_console import Terminal, wait_for
from warm_torch import WarmTorch

pytestmark = pytest.mark.forked

Script = Callable[[str], Path]
HEADER = b"Traceback (most recent call last):"
SAME = """
def load(path):
    raise ValueError(f"no file {path}")
load("data.bin")
"""
CHAIN = """
try:
    {}["a"]
except KeyError:
    raise ValueError("no a")
"""
TWO = """
import os
if int(os.environ["RANK"]) % 2:
    {}["key"]
raise ValueError("no file")
"""


TOGETHER = """
import os, signal, time
if "RANK" in os.environ:
    signal.signal(signal.SIGTERM, lambda *_: None)
    here = os.path.dirname(__file__)
    attempt = f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']} rank "
    open(os.path.join(here, attempt + os.environ["RANK"]), "w").close()
    size = int(os.environ["WORLD_SIZE"])
    while sum(each.startswith(attempt) for each in os.listdir(here)) < size:
        time.sleep(0.01)
"""
"""Runs before each script: all ranks start together, and none is stopped before it has failed."""


@pytest.fixture
def together(tmp_path: Path) -> dict[str, str]:
    """Variables with which all ranks fail, no matter which one is first."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(TOGETHER)
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal(columns=200)
    yield terminal
    terminal.close()


@pytest.fixture
def shown(
    start: Start, terminal: Terminal, script: Script, together: dict[str, str]
) -> Callable[..., str]:
    """Run a script on a terminal; return the terminal's final content."""

    def run(text: str, *flags: str, **variables: str) -> str:
        agent = start(
            "run", *flags, script(text), stdout=terminal.agents_end, stderr=terminal.agents_end,
            variables={"NO_COLOR": "1", "OMP_NUM_THREADS": "1", **together, **variables},
        )  # fmt: skip
        return terminal.read_to_end(agent).decode().replace("\r\n", "\n")

    return run


# Shown once.


@pytest.mark.parametrize("text", [SAME, "if x\n"], ids=["exception", "syntax error"])
def test_error_raised_on_all_ranks_is_shown_once(shown: Callable[..., str], text: str) -> None:
    """The report has the traceback; the workers' own copies are hidden."""
    output = shown(text, "--nproc-per-node=4")
    assert output.startswith("relight: ranks 0-3 raised ")
    assert len(re.findall(r"^\w+Error: ", output, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("3.12", marks=pytest.mark.needs_python312),
        pytest.param("3.13", marks=pytest.mark.needs_python313),
        pytest.param("3.14", marks=pytest.mark.needs_python314),
    ],
)
def test_tracebacks_from_other_python_versions_are_recognized(
    shown: Callable[..., str], version: str
) -> None:
    """Since 3.13, Python colours tracebacks on a terminal."""
    variables = {"PYTHON_EXEC": interpreter(version), "NO_COLOR": "", "TERM": "xterm"}
    output = shown(CHAIN, "--nproc-per-node=3", **variables)
    plain = re.sub(r"\x1b\[[\d;]*m", "", output)
    assert plain.startswith("relight: ranks 0-2 raised ValueError: no a\n")
    assert plain.count("\nKeyError: 'a'\n") == plain.count("\nValueError: no a\n") == 1
    assert plain.count("\nDuring handling of the above exception") == 1
    assert "\x1b[35m" in output


def test_two_different_errors_are_shown_once_each(shown: Callable[..., str]) -> None:
    """The error that is not in the report comes first, with its ranks."""
    output = shown(TWO, "--nproc-per-node=4")
    (title,) = re.findall(r"^relight: traceback of (.*)$", output, re.MULTILINE)
    assert title in ("rank 0; rank 2: the same", "rank 1; rank 3: the same")
    assert output.index(title) < output.index("raised")
    assert output.count("Traceback (most recent call last):") == 2
    assert output.count("\nKeyError: 'key'") == 1
    assert output.count("\nValueError: no file") == 1


def test_traceback_from_each_attempt_is_shown(shown: Callable[..., str]) -> None:
    """Earlier tracebacks come before the restart notice, and the last one is in the report."""
    output = shown(SAME, "--nproc-per-node=2", "--max-restarts=1")
    assert output.startswith("relight: traceback of rank 0; rank 1: the same\nTraceback")
    assert output.index("ValueError: no file data.bin\n") < output.index("restart 1 of 1")
    assert output.count("Traceback (most recent call last):") == 2


def test_traceback_shortened_in_report_is_also_shown_in_full(shown: Callable[..., str]) -> None:
    reason = "".join(f"reason {letter}\n" for letter in "abcdefghijklmnopqrstuvwxyz")
    output = shown(f"raise ValueError({reason!r})", "--nproc-per-node=2")
    assert "relight: traceback of rank 0; rank 1: the same\n" in output
    assert output.count(reason) == 1
    assert output.count("\nValueError: reason a\n") == 2


def test_keyboard_interrupt_is_shown_once(
    start: Start, terminal: Terminal, script: Script, tmp_path: Path
) -> None:
    train = script(
        "import os, time\n"
        "from pathlib import Path\n"
        "Path('up' + os.environ['RANK']).touch()\n"
        "time.sleep(1000)\n"
    )
    agent = start("run", "--nproc-per-node=3", train,
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    wait_for(lambda: len(list(tmp_path.glob("up?"))) == 3)
    agent.send_signal(signal.SIGINT)
    output = terminal.read_to_end(agent)
    assert agent.returncode == 128 + signal.SIGINT
    assert len(re.findall(rb"^\S*KeyboardInterrupt", output, re.MULTILINE)) == 1
    assert b"relight: traceback of rank 0; ranks 1-2: the same\r\n" in output


def test_each_node_prints_tracebacks_that_report_omits(
    start: Start, script: Script, tmp_path: Path
) -> None:
    """The report is on both consoles; each adds its own ranks."""
    train = script(
        "import os, time\n"
        "from pathlib import Path\n"
        "rank = os.environ['RANK']\n"
        "Path(f'up{rank}').touch()\n"
        "while not (Path('up0').exists() and Path('up1').exists()):\n"
        "    time.sleep(0.01)\n"
        "raise (ValueError if rank == '0' else ConnectionResetError)(f'bad {rank}')\n"
    )
    terminals = [Terminal(columns=200) for _ in range(2)]
    try:
        agents = [
            start("run", "--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet",
                  "--rdzv-id=job", train, variables={"NO_COLOR": "1"},
                  stdout=terminal.agents_end, stderr=terminal.agents_end)
            for terminal in terminals
        ]  # fmt: skip
        outputs = [t.read_to_end(agent) for t, agent in zip(terminals, agents, strict=True)]
    finally:
        for terminal in terminals:
            terminal.close()
    for output in outputs:
        assert output.count(b"\nValueError: bad 0") == 1
        # This is likely if rank 1 failed slightly earlier, because it may have been connected to
        # rank 0.
        assert re.search(rb"rank 0(: it)? raised ValueError: bad 0", output)
    assert sorted(output.count(b"\nConnectionResetError: bad 1") for output in outputs) in (
        [0, 1],
        [0, 0],  # it was stopped before it reached that point
    )


# Shown immediately.


GOES_ON = """
import logging, os, sys, time, traceback
from pathlib import Path
def work():
    raise ValueError("caught")
try:
    work()
except ValueError:
    {print}
while not Path("seen").exists():
    time.sleep(0.01)
print("goes on", file=sys.stderr)
"""


@pytest.mark.parametrize("printing", ["logging.exception('it failed')", "traceback.print_exc()"])
@pytest.mark.parametrize("runs", [(), ("-m",)], ids=["script", "module"])
def test_traceback_of_caught_exception_is_shown_while_worker_continues(
    start: Start, terminal: Terminal, script: Script, tmp_path: Path, printing: str,
    runs: tuple[str, ...],
) -> None:  # fmt: skip
    """The worker waits until the traceback is on the terminal."""
    path = script(GOES_ON.replace("{print}", printing))
    agent = start("run", "--nproc-per-node=1", *runs, "train" if runs else path,
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    before = terminal.read_until(b"ValueError: caught\r\n")
    (tmp_path / "seen").touch()
    after = terminal.read_to_end(agent)
    assert after[len(before) :] == b"goes on\r\n"
    assert after.count(HEADER) == 1
    assert agent.returncode == 0


def test_traceback_from_child_of_shell_is_shown_while_shell_continues(
    start: Start, terminal: Terminal, tmp_path: Path
) -> None:
    program = f"{sys.executable} -c 'raise ValueError(1)'; echo again; sleep 1000"
    agent = start("run", "--nproc-per-node=1", "--no-python", "sh", "-c", program,
                  variables={"NO_COLOR": "1"},
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    output = terminal.read_until(b"ValueError: 1\r\nagain\r\n")
    assert output.count(HEADER) == 1
    assert agent.poll() is None


def test_traceback_before_clean_exit_is_shown(shown: Callable[..., str]) -> None:
    text = "import sys, traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n" \
           "    traceback.print_exc()\nsys.exit(0)\n"  # fmt: skip
    output = shown(text, "--nproc-per-node=1")
    assert output.endswith("\nZeroDivisionError: division by zero\n")


def test_output_after_last_traceback_is_shown(shown: Callable[..., str]) -> None:
    """Exit functions may print, and finalizers may fail."""
    text = (
        "import atexit, sys\n"
        "def clean():\n"
        "    sys.stderr.write('\\x1b[1mWARNING: not closed\\x1b[0m\\nmore\\n')\n"
        "    raise KeyError('clean')\n"
        "atexit.register(clean)\n"
        "raise ValueError('last')\n"
    )
    output = shown(text, "--nproc-per-node=1")
    assert output.startswith("\x1b[1mWARNING: not closed\x1b[0m\nmore\nException ignored in")
    assert output.count("\nKeyError: 'clean'\n") == 1
    assert output.count("\nValueError: last\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "waits",
    [
        "import atexit, time\natexit.register(time.sleep, 1000)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
    ],
    ids=["exit function", "thread"],
)
def test_traceback_is_shown_if_worker_hangs_at_exit(
    start: Start, terminal: Terminal, script: Script, tmp_path: Path, waits: str
) -> None:
    """The traceback is shown exactly once."""
    train = script(
        f"{waits}\n"
        "import os\n"
        "from pathlib import Path\n"
        "Path('up' + os.environ['RANK']).touch()\n"
        "while len(list(Path().glob('up?'))) < 2:\n"
        "    time.sleep(0.01)\n"
        "raise ValueError('hangs')\n"
    )
    agent = start("run", "--nproc-per-node=2", train, variables={"NO_COLOR": "1"},
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    output = terminal.read_until(b"ValueError: hangs\r\n")
    assert b"relight: traceback of rank 0; rank 1: the same\r\n" in output
    assert output.count(HEADER) == 1
    assert agent.poll() is None


@pytest.mark.slow
def test_traceback_is_shown_before_slow_teardown_ends(
    start: Start, terminal: Terminal, script: Script, tmp_path: Path
) -> None:
    """Other workers may checkpoint for half a minute."""
    train = script(
        "import os, signal, time\n"
        "from pathlib import Path\n"
        "if os.environ['RANK'] == '0':\n"
        "    signal.signal(signal.SIGTERM, lambda *_: Path('asked').touch())\n"
        "    Path('ready').touch()\n"
        "    while True:\n"
        "        time.sleep(0.1)\n"
        "while not Path('ready').exists():\n"
        "    time.sleep(0.01)\n"
        "raise ValueError('first')\n"
    )
    agent = start("run", "--nproc-per-node=2", "--shutdown-timeout=60", train,
                  variables={"NO_COLOR": "1"},
                  stdout=terminal.agents_end, stderr=terminal.agents_end)  # fmt: skip
    wait_for((tmp_path / "asked").exists)
    assert b"relight: traceback of rank 1\r\n" in terminal.read_until(b"ValueError: first\r\n")
    assert agent.poll() is None


# Other consoles and files.


@pytest.mark.parametrize("flags", [("-t2", "--log-dir=logs"), ("-t3", "--log-dir=logs")])
def test_tracebacks_with_tee_are_complete_in_file_and_on_terminal(
    shown: Callable[..., str], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    output = shown(SAME, "--nproc-per-node=2", "--repeated-lines=all", *flags)
    for rank in range(2):
        assert f"[default{rank}]:Traceback (most recent call last):\n" in output
        assert f"[default{rank}]:ValueError: no file data.bin\n" in output
    for log in (tmp_path / "logs").rglob("stderr.log"):
        assert log.read_text().endswith("\nValueError: no file data.bin\n")


def test_tracebacks_of_all_workers_are_written_to_pipe(
    start: Start, script: Script, together: dict[str, str]
) -> None:
    """The report is uncoloured, even if colours are forced."""
    variables = {"FORCE_COLOR": "1", **together}
    agent = start("run", "--nproc-per-node=3", script(SAME), variables=variables)
    _, errors = agent.communicate(timeout=LIMIT_S)
    plain = re.sub(rb"\x1b\[[\d;]*m", b"", errors.partition(b"relight: ranks")[0])
    assert plain.count(HEADER) == 3
    assert b"\x1b" not in errors.partition(b"relight: ranks")[2]


@pytest.mark.parametrize(
    ("variables", "is_coloured"), [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False)]
)
def test_tracebacks_are_coloured_only_if_terminal_supports_colours(
    shown: Callable[..., str], variables: dict[str, str], is_coloured: bool
) -> None:
    output = shown(SAME, "--nproc-per-node=2", NO_COLOR="", **variables)
    assert ("\x1b[1;35mValueError\x1b[0m: \x1b[35mno file data.bin" in output) == is_coloured
    assert ("\x1b" in output) == is_coloured


# Torch.


DDP = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for batch in range(10**6):
    loss = model(torch.ones(1, 4)).sum()
    if batch == 3 and dist.get_rank() == 1:
        raise ValueError("loss is not finite")
    loss.backward()
"""


RECORD = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
open("up" + os.environ["RANK"], "w").close()
while not all(map(os.path.exists, ("up0", "up1"))):
    time.sleep(0.01)
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("recorded")
main()
"""


@pytest.fixture
def shown_warm(warm_torch: WarmTorch) -> Callable[..., str]:
    """Run a script on warm torch workers and a terminal; return the terminal's final content."""

    def run(text: str, *flags: str) -> str:
        terminal = Terminal(columns=200)
        try:
            agent = warm_torch.begin(
                text, *flags, stdout=terminal.agents_end, stderr=terminal.agents_end,
                variables={"NO_COLOR": "1"},
            )  # fmt: skip
            return terminal.read_to_end(agent).decode().replace("\r\n", "\n")
        finally:
            terminal.close()

    return lambda text, *flags: warm_torch.once_warm(lambda: run(text, *flags), str)


@pytest.mark.slow
@pytest.mark.needs_torch
def test_traceback_of_culprit_in_torch_job_is_shown_once(
    shown_warm: Callable[..., str],
) -> None:
    """While Python with torch is finalized, for a second or two, the traceback is held back.
    After five seconds, it would also be shown above the report.
    """
    output = shown_warm(DDP, "--nproc-per-node=3")
    is_late = "relight: traceback of rank 1" in output
    assert output.count("\nValueError: loss is not finite\n") == 1 + is_late
    assert output.count("\nRuntimeError: ") <= 1
    assert "[rank1]: Traceback" not in output
    assert "relight: rank 1 raised ValueError: loss is not finite\n" in output


@pytest.mark.slow
@pytest.mark.needs_torch
def test_exception_recorded_by_torch_is_shown_once(shown_warm: Callable[..., str]) -> None:
    """Torch's error file has different frames from Python's traceback."""
    output = shown_warm(RECORD, "--nproc-per-node=2")
    is_late = "relight: traceback of rank 0; rank 1: the same" in output
    assert output.count("\nValueError: recorded\n") == 1 + is_late
    assert "in wrapper" in output
    assert "in <module>" in output
