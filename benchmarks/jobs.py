"""Samples whole jobs on this machine, for relight and for torchrun alike.

Every function takes a launcher's name and returns one number. Each job runs in its own directory,
and has ended when the function returns.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LAUNCHERS = {
    "relight": [sys.executable, "-m", "relight", "run"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}
WORKER = str(Path(__file__).with_name("worker.py"))
LINES = 250_000
"""The number of lines from each of the 4 workers, in the tee benchmark."""
IDLE_S = 20
_TICK = os.sysconf("SC_CLK_TCK")


def launch_s(launcher: str) -> float:
    """Return the seconds from the start of a job to its end, with 2 workers that do nothing."""
    with _job(launcher, ["--nproc-per-node=2"], "end") as (process, begin):
        process.communicate()
        return time.monotonic() - begin


def first_line_s(launcher: str) -> float:
    """Return the seconds from the start of such a job to a worker's first line on the console."""
    with _job(launcher, ["--nproc-per-node=2"], "stay") as (process, begin):
        _line(process)
        return time.monotonic() - begin


def memory_mib(launcher: str) -> float:
    """Return the MiB that the launcher's processes use while 2 workers are running (sum of the
    PSS).
    """
    with _job(launcher, ["--nproc-per-node=2"], "stay") as (process, _):
        workers = {int(_line(process).split()[2]) for _ in range(2)}
        time.sleep(2)  # launching has finished, and relight loads more modules a second later
        return sum(pss(pid) for pid in family(process.pid) - workers) / 1024


def idle_cpu(launcher: str) -> float:
    """Return the CPU usage of the launcher's processes, in percent, while 2 workers are idle."""
    with _job(launcher, ["--nproc-per-node=2"], "stay") as (process, _):
        workers = {int(_line(process).split()[2]) for _ in range(2)}
        time.sleep(1)  # launching has finished
        pids = family(process.pid) - workers
        before, begin = sum(map(_busy_s, pids)), time.monotonic()
        time.sleep(IDLE_S)
        busy = sum(map(_busy_s, pids)) - before
        return 100 * busy / (time.monotonic() - begin)


def tee_lines_per_s(launcher: str) -> float:
    """Return the lines per second from 4 workers that reach the console and files with `--tee
    3`.
    """
    flags = ["--nproc-per-node=4", "--tee=3", "--log-dir=logs"]
    with _job(launcher, flags, "lines", str(LINES)) as (process, _):
        assert process.stdout is not None
        count = os.read(process.stdout.fileno(), 1 << 20).count(b"\n")
        begin = time.monotonic()
        while chunk := os.read(process.stdout.fileno(), 1 << 20):
            count += chunk.count(b"\n")
        seconds = time.monotonic() - begin
    expected = 4 * (LINES + 1)
    if count != expected:
        raise RuntimeError(f"{launcher}: {count} of {expected} lines reached the console")
    return count / seconds


def restart_s(launcher: str, after_s: float = 0.0) -> float:
    """Return the seconds from kill -9 of a worker to the first line from the replacement workers.
    The worker is killed `after_s` seconds after its own first line.
    """
    with _job(launcher, ["--nproc-per-node=2", "--max-restarts=1"], "stay") as (process, _):
        pids = [int(_line(process).split()[2]) for _ in range(2)]
        time.sleep(after_s)
        begin = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        while _line(process).split()[0] != b"1":
            pass
        return time.monotonic() - begin


@contextlib.contextmanager
def _job(
    launcher: str, flags: list[str], *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """Start a job, yield it with its start time, and end it."""
    directory = tempfile.mkdtemp(prefix="relight-bench-")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin = time.monotonic()
    process = subprocess.Popen(
        [*LAUNCHERS[launcher], *flags, WORKER, *arguments],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, begin
        Path(directory, "stop").touch()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate(timeout=60)
        if process.returncode:
            raise RuntimeError(f"{launcher} ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the job ended before it should")
    return line


def family(pid: int) -> set[int]:
    """Return the pids of a process and all its descendants."""
    found = {pid}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found |= family(int(child))
    return found


def pss(pid: int) -> int:
    """Return a process's memory in KiB, with its share of shared pages (proc(5), smaps_rollup)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise RuntimeError(f"no Pss of process {pid}")


def _busy_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK
