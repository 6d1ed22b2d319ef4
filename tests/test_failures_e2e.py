"""The failure report on real processes: its first lines give the reason for each failure."""

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import RELIGHT, TORCHRUN, Launch, long
from warm_torch import WarmTorch

pytestmark = pytest.mark.forked

Script = Callable[[str], Path]
FAULTS = Path(__file__).parent / "faults"
ROWS, COLUMNS = 25, 80


def report_of(stderr: str) -> list[str]:
    """Return the report: relight's last lines, except the goodput of a job that took a minute."""
    begins = re.finditer(r"^relight: (?:probably |the |no )?ranks? ", stderr, re.MULTILINE)
    begin = max((match.start() for match in begins), default=0)
    return stderr[begin:].partition("\nrelight: goodput ")[0].strip("\n").split("\n")


def find_line(path: Path, mark: str = "# here") -> int:
    lines = path.read_text().split("\n")
    return next((n for n, line in enumerate(lines, 1) if line.endswith(mark)), 0)


def check_form(report: list[str]) -> None:
    """Check that a report fits on a terminal, and does not change how the terminal behaves."""
    rows = sum(max(1, -(-len(line) // COLUMNS)) for line in report)
    assert rows <= ROWS, "\n".join(report)
    for line in report:
        assert line.isprintable(), repr(line)
    assert "relight/host" not in "\n".join(report)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path length is fixed, because reports are cut to terminal size."""
    with tempfile.TemporaryDirectory(prefix="job-", dir="/tmp") as path:
        yield Path(path)


def normalized(report: list[str], place: Path) -> str:
    """Return the report with a fixed directory, host, process, and time.

    The marks below a source line are removed, because they vary between Python versions.
    """
    text = "".join(f"{line}\n" for line in report if line.strip(" |^~") or not line)
    text = text.replace(str(place), "/job")
    text = re.sub(
        r"on \S+: local rank (\d), pid \d+; (first error )?\S+ \S+, after [\d.]+ s",
        r"on node1: local rank \1, pid 4711; \g<2>2026-01-31 12:00:00+0000, after 0.1 s",
        text,
    )
    return re.sub(r"(ranks? [-, 0-9]+: )[\d.]+ s later, ", r"\1", text)


def matches(text: str, expected: str) -> bool:
    """Return whether a report matches the expected one; `...` matches anything."""
    parts = (re.escape(part) for part in expected.split("..."))
    return re.fullmatch(".*?".join(parts), text, re.DOTALL) is not None


@pytest.mark.parametrize(
    "expected",
    sorted(FAULTS.rglob("*.txt")),
    ids=lambda path: str(path.relative_to(FAULTS).with_suffix("")),
)
def test_failure_report_matches_expected_text(expected: Path, launch: Launch, place: Path) -> None:
    """Who, what, and where come first; the exit code is the culprit's; victims are not blamed.

    The expected file's first line is the command. It runs in a copy of the folder with the same
    name, or next to a copy of the script that it names. REWRITE_REPORTS=1 rewrites reports that
    differ.
    """
    command, _, wanted = expected.read_text().partition("\n")
    words = shlex.split(command.removeprefix("$ "))
    start = words.index("relight")
    if (folder := expected.with_suffix("")).is_dir():
        shutil.copytree(folder, place, dirs_exist_ok=True)
    for script in expected.parent.glob("*.py"):
        if script.name in words:
            shutil.copy(script, place)
    result = launch(
        *words[start + 1 :],
        cwd=place,
        TMPDIR=str(place),
        PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        **dict(word.split("=", 1) for word in words[:start]),
    )
    report = report_of(result.stderr)
    check_form(report)
    assert report[-1].startswith(f"exit code {result.returncode}; no restarts were allowed")
    text = normalized(report, place)
    if not matches(text, wanted):
        if "REWRITE_REPORTS" in os.environ:
            expected.write_text(f"{command}\n{text}")
        assert text == wanted


def test_restart_reason_is_printed_on_one_line(launch: Launch, script: Script) -> None:
    """The line names the rank, the exception, and the line in the script."""
    path = script("""
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("bad batch\\nin shard 3")  # here
""")
    result = launch("run", "--max-restarts=1", path)
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.split("\n") if line.startswith("relight: rank")]
    assert len(said) == 1
    assert said[0].startswith(
        f"relight: rank 0 raised ValueError: bad batch at {path}:{find_line(path)} (pid "
    )
    assert said[0].endswith("; restart 1 of 1")


def test_traceback_printed_by_successful_program_is_not_a_failure(
    launch: Launch, script: Script
) -> None:
    path = script("import traceback\ntry:\n    1 / 0\nexcept ArithmeticError:\n"
                  "    traceback.print_exc()\n")  # fmt: skip
    result = launch("run", "--nproc-per-node=2", path)
    assert result.returncode == 0
    assert result.stderr.count("ZeroDivisionError") == 2
    assert "relight: rank" not in result.stderr


INSPECTED = (
    sys.executable, "-c",
    "import pathlib\n"
    "from relight.core.diagnosis import printed_traceback\n"
    "from relight.output.traceback_stream import TracebackInspector\n"
    "printed_traceback._TRIES = 1000\n"
    "look = TracebackInspector.look\n"
    "def look_and_tell(self):\n"
    "    ends = look(self)\n"
    "    if ends is not None:\n"
    "        pathlib.Path('inspected').touch()\n"
    "    return ends\n"
    "TracebackInspector.look = look_and_tell\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip
"""Relight that creates a file when it has inspected a worker that has printed a traceback."""


def test_later_line_of_an_exit_handler_is_not_the_cause(launch: Launch, script: Script) -> None:
    path = script("""
import atexit, os, sys, time
def report():
    while not os.path.exists("inspected"):
        time.sleep(0.01)
    print("report error: no summary", file=sys.stderr)
atexit.register(report)
{}["a"]  # here
""")
    result = launch("run", path, command=INSPECTED)
    report = report_of(result.stderr)
    assert "report error: no summary" in result.stderr
    assert report[0] == "relight: rank 0 raised KeyError: 'a'"
    assert not any("no summary" in line for line in report)


def test_failure_report_stays_short(launch: Launch, script: Script) -> None:
    """Long paths, long messages, and a different failure on each rank still fit on a terminal."""
    folder = "a-directory-with-quite-a-long-name/" * 4
    path = script("", "x")
    deep = path.parent / folder / "train.py"
    deep.parent.mkdir(parents=True)
    deep.write_text("import os, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
                    "rank = int(os.environ['RANK'])\nopen(f'ready{rank}', 'w').close()\n"
                    "while len([f for f in os.listdir() if f.startswith('ready')]) < 8:\n"
                    "    time.sleep(0.01)\n"
                    "def f(n):\n    return f(n - 1) if n else g()\n"
                    "def g():\n    raise ValueError(chr(97 + rank) + 'long message ' * 9)  # here\n"
                    "time.sleep(rank / 20)\nf(30)\n")  # fmt: skip
    result = launch("run", "--nproc-per-node=8", "-r", "2", deep, TMPDIR=str(path.parent))
    report = report_of(result.stderr)
    assert report[0].startswith("relight: rank 0 raised ValueError: along message long message")
    assert report[1].startswith("  …")
    assert report[1].endswith(
        f"/a-directory-with-quite-a-long-name/train.py:{find_line(deep)} in g"
    )
    assert "other ranks:" in report
    check_form(report)


GLOO = """\
import os, signal, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(4)
dist.all_reduce(tensor)
"""
REDUCE = """
for _ in range(1000):
    dist.all_reduce(tensor)
"""
DDP = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(100):
    inputs = torch.ones(2, 5 if rank == 1 and step == 3 else 4)
    model(inputs).sum().backward()  # here
"""
TIMEOUT = """\
import datetime, os, time
import torch.distributed as dist
if os.environ["RANK"] == "1":
    time.sleep(60)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))  # here
"""
LOADER = """\
import os
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        raise ValueError(f"bad row {index}")  # here
if __name__ == "__main__":
    for batch in DataLoader(Rows(), num_workers=1):
        pass
"""
RECORDED = """\
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("bad batch")  # here
    sys.stdin.read()
    import time
    time.sleep(60)
main()
"""
PEER_IS_GONE = "raised RuntimeError: "


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("text", "first", "exit_code", "says"),
    [
        (
            f"{GLOO}if rank == 1:\n    raise ValueError('bad batch')  # here\n{REDUCE}",
            "rank 1 raised ValueError: bad batch",
            1,
            "other ranks:\n",
        ),
        long(
            f"{GLOO}try:\n    if rank == 1:\n        raise ValueError('bad batch')  # here\n"
            f"    while True:\n        dist.all_reduce(tensor)\nfinally:\n"
            "    dist.destroy_process_group()\n",
            "rank 1 raised ValueError: bad batch",
            1,
            "other ranks:\n",
        ),
        (
            f"{GLOO}if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n{REDUCE}",
            "rank 1 was killed by SIGKILL",
            137,
            "other ranks:\n",
        ),
        long(GLOO + DDP, "rank 1 raised RuntimeError: mat1 and mat2", 1, "of torch …"),
        (
            TIMEOUT,
            r"probably rank 1: it was in <module> \(train.py:4\), system call \w+, "
            "when ranks? (0|2|0, 2) raised DistStoreError: wait timeout after 2000ms",
            1,
            "perhaps late, or waiting for something",
        ),
        (LOADER, "ranks? [-, 0-2]+ raised ValueError: bad row 0", 1, ""),
        long(RECORDED, "rank 1 raised ValueError: bad batch", 1, "other ranks:\n"),
    ],
    ids=["raise", "destroy first", "kill", "ddp", "timeout", "loader", "record"],
)
@pytest.mark.parametrize("workers", ["warm", long("cold")])
def test_torch_job_failure_report_names_culprit_instead_of_peers(
    text: str,
    first: str,
    exit_code: int,
    says: str,
    workers: str,
    warm_torch: WarmTorch,
    launch: Launch,
    script: Script,
) -> None:
    """The peers lose their connection to the culprit."""
    if workers == "warm":
        path = warm_torch.folder / "train.py"
        result = warm_torch.run(text, "--nproc-per-node=3")
    else:
        path = script(text)
        result = launch("run", "--nproc-per-node=3", path)
    report = report_of(result.stderr)
    shown = "\n".join(report)
    assert re.match(f"relight: {first}", shown), result.stderr
    assert result.returncode == exit_code, result.stderr
    if line := find_line(path):
        assert re.match(rf"  (rank \d+ at )?{re.escape(str(path))}:{line}\b", report[1]), shown
    assert says in shown, shown
    check_form(report)


RAISES = "import os\nif os.environ['RANK'] == '0':\n    raise ValueError('bad batch')\n"


FAILS_AND_DAWDLES = """
import os, signal, time
if os.environ["RANK"] == "0":
    while not os.path.exists("waits"):
        time.sleep(0.01)
    print(time.time(), file=open("ended", "w"))
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(4), os._exit(0)))
open("waits", "w")
time.sleep(1000)
"""


def test_error_file_contains_time_of_failure(
    launch: Launch, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job itself ends later, after other processes have ended."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "error.json"
    path = script(FAILS_AND_DAWDLES)
    launch("run", "--nproc-per-node=2", path, TORCHELASTIC_ERROR_FILE=str(file))
    found = int(json.loads(file.read_text())["message"]["extraInfo"]["timestamp"])
    ended = float((tmp_path / "ended").read_text())
    assert ended - 1 <= found <= ended + 2


def test_error_file_has_same_schema_as_in_torch(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """The script needs no decorator."""
    file = tmp_path / "made" / "error.json"
    launch("run", "--nproc-per-node=2", script(RAISES), TORCHELASTIC_ERROR_FILE=str(file))
    record = json.loads(file.read_text())
    assert set(record) == {"message"}
    message = record["message"]
    assert set(message) == {"message", "extraInfo", "errorCode"}
    assert message["message"] == "ValueError: bad batch"
    assert message["errorCode"] == 1
    assert set(message["extraInfo"]) == {"py_callstack", "timestamp"}
    assert message["extraInfo"]["py_callstack"].startswith("Traceback (most recent call last):\n")
    assert int(message["extraInfo"]["timestamp"]) > 1e9
    path = script("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    launch("run", path, TORCHELASTIC_ERROR_FILE=str(file))  # the file is replaced
    message = json.loads(file.read_text())["message"]
    assert message["message"].startswith("rank 0 was killed by SIGKILL")
    assert message["errorCode"] == -9
    assert os.listdir(file.parent) == ["error.json"]


def test_unwritable_error_file_does_not_affect_report_or_exit_code(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """The report and the exit code stay the same, and nothing is left behind."""
    taken = tmp_path / "taken"
    taken.mkdir()
    result = launch("run", script(RAISES), TORCHELASTIC_ERROR_FILE=str(taken))
    assert result.returncode == 1
    assert report_of(result.stderr)[0] == "relight: rank 0 raised ValueError: bad batch"
    assert sorted(os.listdir(tmp_path)) == ["taken", "train.py"]


TEXT_RECORD = """\
import json, os, sys
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": "GPU 3 fell off the bus", "timestamp": 1}, file)
sys.exit(3)
"""


WITHOUT_TORCH_ELSEWHERE = """\
import os, signal
if os.environ["RANK"] != "1":
    signal.pause()
"""


@pytest.mark.long  # as cases of tests/differential, which don't start torchrun
@pytest.mark.needs_torch
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(WITHOUT_TORCH_ELSEWHERE + RECORDED, id="record"),
        pytest.param(TEXT_RECORD, id="text"),
    ],
)
def test_error_file_matches_one_written_by_torchrun(
    text: str, launch: Launch, script: Script, tmp_path: Path
) -> None:
    path = script(text)
    records = {}
    for name, command in {"torchrun": TORCHRUN, "relight": (*RELIGHT, "run")}.items():
        file = tmp_path / f"{name}.json"
        launch(
            "--nproc-per-node=2", path, command=command,
            TORCHELASTIC_ERROR_FILE=str(file), PET_SHUTDOWN_TIMEOUT="1",
        )  # fmt: skip
        records[name] = json.loads(file.read_text())
        if isinstance(records[name]["message"], dict):
            del records[name]["message"]["extraInfo"]["timestamp"]
    assert records["relight"] == records["torchrun"]
