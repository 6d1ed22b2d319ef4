"""Facts about a failed worker that are not in its report: `relight.RunResult.failures`."""

import shlex
import signal
from functools import partial
from pathlib import Path

import pytest
from conftest import FIRST_WARM, RELIGHT, Launch

import relight
from relight import RunSpec
from relight.core.diagnosis.failure_text import diagnose
from relight.core.failure import Failure

pytestmark = pytest.mark.forked


def failure_of(folder: Path, text: str, *flags: str, rank: int = 0, count: int = 1) -> Failure:
    """Return how a worker with this script ended."""
    script = folder / "train.py"
    script.write_text(f"import os, sys, time, traceback\n{text}")
    result = relight.run(RunSpec(str(script), nproc_per_node=count, flags=list(flags)))
    return next(failure for failure in result.failures if failure.rank == rank)


WAYS = pytest.mark.parametrize(
    "flags",
    [(), ("-r3",), ("-t3",), ("-t3", "--local-ranks-filter=1")],
    ids=["pipe", "file", "tee'd", "hidden"],
)


@WAYS
def test_failure_records_when_fatal_traceback_was_printed(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    text = "import atexit\natexit.register(time.sleep, 1)\nraise ValueError('bad')\n"
    found = failure_of(tmp_path, text, *flags)
    assert found.printed_s is not None
    assert found.printed_s >= 0.9
    assert found.went_on is False


@WAYS
def test_failure_records_whether_program_continued_after_traceback(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    text = "try: {}['x']\nexcept KeyError: traceback.print_exc()\ntime.sleep(1)\nsys.exit(1)\n"
    found = failure_of(tmp_path, text, *flags)
    assert found.printed_s is not None
    assert found.printed_s >= 0.9
    assert found.went_on is True


def test_exception_ignored_at_exit_does_not_hide_the_reason(tmp_path: Path) -> None:
    text = (
        "class Reader:\n    def __del__(self): self.process.kill()\n"
        "reader = Reader()\nprint('ERROR: 3 of 8 shards are empty', file=sys.stderr)\nsys.exit(4)\n"
    )
    found = failure_of(tmp_path, text)
    assert found.words == "ERROR: 3 of 8 shards are empty"
    assert "Exception ignored" not in diagnose([found]).headline()


@pytest.mark.parametrize("flags", [(), ("-r3",)], ids=["pipe", "file"])
def test_exception_with_huge_message_keeps_type_and_location(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    more = (*flags, f"--log-dir={tmp_path / 'logs'}") if flags else ()
    found = failure_of(tmp_path, "raise RuntimeError('size ' + 'x' * 300_000)\n", *more)
    assert found.report is not None
    assert (found.report.type, found.report.message[:6]) == ("RuntimeError", "size x")
    assert found.report.where.endswith("train.py:2")


@pytest.mark.parametrize("is_own", [True, False])
def test_only_cython_files_of_the_user_are_the_users_code(tmp_path: Path, is_own: bool) -> None:
    """Their paths in tracebacks are relative to the directory in which they were compiled."""
    (tmp_path / "ops").mkdir()
    file = tmp_path / "ops" / "loss.pyx"
    if is_own:
        file.write_text("raise ValueError('bad mask')\n")
    text = """exec(compile("raise ValueError('bad mask')", "ops/loss.pyx", "exec"))\n"""
    found = failure_of(tmp_path, text)
    assert found.report is not None
    assert found.report.where == (f"{file}:1" if is_own else f"{tmp_path / 'train.py'}:2")


def test_failure_report_names_missing_shebang_interpreter(tmp_path: Path) -> None:
    program = tmp_path / "train"
    program.write_text("#!/no/such/python\n")
    program.chmod(0o755)
    result = relight.run(RunSpec(str(program), flags=["--no-python"]))
    assert result.failures[0].evidence == (
        f"the program could not be started: the interpreter on the first line of {program}, "
        "/no/such/python, does not exist"
    )


def test_failure_report_names_exceeded_cpu_time_limit(tmp_path: Path) -> None:
    text = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 20))\nwhile True: pass\n"
    found = failure_of(tmp_path, text)
    assert found.evidence.startswith("it used up its CPU time limit (ulimit -t")


def test_broken_pipe_is_attributed_to_closed_reader(tmp_path: Path, launch: Launch) -> None:
    """The usual case is `relight run | head`."""
    script = tmp_path / "train.py"
    script.write_text("while True: print('x' * 1000)\n")
    command = f"{shlex.join([*RELIGHT, 'run', str(script)])} 2>{tmp_path}/stderr | head -n1"
    launch("-c", command, command=("sh",))
    assert (
        "the process reading the launcher's output has exited" in (tmp_path / "stderr").read_text()
    )


@pytest.mark.parametrize("flags", [(), ("-r3",)], ids=["pipe", "file"])
def test_last_line_on_stdout_can_be_failure_reason(tmp_path: Path, flags: tuple[str, ...]) -> None:
    text = "print('accuracy 0.31 is too low, giving up', flush=True)\nsys.exit(1)\n"
    more = (*flags, f"--log-dir={tmp_path / 'logs'}") if flags else ()
    assert failure_of(tmp_path, text, *more).words == "accuracy 0.31 is too low, giving up"


MEET = """
open(f"{sys.argv[0]}.{rank}", "w").close()
while not all(os.path.exists(f"{sys.argv[0]}.{each}") for each in (0, 1)):
    time.sleep(0.01)
"""
SEGFAULTS = """
import logging, signal, threading
rank = int(os.environ["RANK"])
def record():
    raise OSError("metrics server is gone")
{before}
if rank == 1:
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("if rank: print('kernel: block size 0', file=sys.stderr)", "kernel: block size 0"),
        ("logging.error('no GPU found; training on the CPU')", ""),
        ("print('ERROR: no GPU found')", ""),
        ("logging.error('rank %d has no tracker', rank)", ""),
        ("try: record()\nexcept OSError: logging.exception('offline')", ""),
        ("if rank: threading.Thread(target=record).start(); time.sleep(1.2)", ""),
    ],
)
def test_error_unrelated_to_a_crash_is_not_quoted(
    tmp_path: Path, before: str, expected: str
) -> None:
    synchronized = f"{before}\nsys.stdout.flush()\n{MEET}"
    found = failure_of(tmp_path, SEGFAULTS.format(before=synchronized), rank=1, count=2)
    assert found.exitcode == -signal.SIGSEGV
    assert found.words == expected


CLEANS_UP = """
ready = sys.argv[1]
if os.environ["RANK"] == "1":
    try:
        raise ValueError("corrupt record 77")
    finally:
        open(ready, "w").close()
        time.sleep(600)
while not os.path.exists(ready):
    time.sleep(0.01)
try:
    raise ConnectionResetError("Connection closed by peer")
except OSError as error:
    raise RuntimeError("step 5 failed") from error
"""


def test_rank_stopped_during_cleanup_still_reports_its_exception(tmp_path: Path) -> None:
    """The rank is stopped because another rank has lost its connection to it."""
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys, time\n{CLEANS_UP}")
    ready = str(tmp_path / "ready")
    result = relight.run(RunSpec(str(script), [ready], nproc_per_node=2))
    (found,) = [failure for failure in result.failures if failure.rank == 1]
    assert found.doing is not None
    assert found.doing.handling == "ValueError: corrupt record 77"
    assert found.doing.handling_where == f"{script}:6"


CRASHES = """
import subprocess, sys
ask = "import faulthandler as f, os; print(f.is_enabled(), 'PYTHONFAULTHANDLER' in os.environ)"
print(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout)
import faulthandler
print(faulthandler.is_enabled(), sys._xoptions, flush=True)
"""


@pytest.mark.parametrize("flags", [(), ("--preload=json",)], ids=["cold", "preloaded"])
def test_faulthandler_is_enabled_in_workers_but_not_their_children(
    launch: Launch, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(CRASHES)
    launch = partial(launch, command=FIRST_WARM if flags else RELIGHT)
    result = launch("run", "-v", *flags, script)
    assert ("workers start with preloaded modules" in result.stderr) == bool(flags)
    assert result.stdout.split("\n")[:3] == ["False False", "", "True {'faulthandler': True}"]
    result = launch("run", *flags, script, PYTHONFAULTHANDLER="")
    assert result.stdout.split("\n")[:3] == ["False True", "", "False {}"]
