"""Hangs in real workers are detected from outside, and the report names the outlier rank."""

import json
import re
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, long
from warm_torch import WarmTorch

from relight.base.errors import EXIT_HUNG

pytestmark = pytest.mark.needs_torch

HANG_S = 3
IDLE = r"no rank has made progress for \d+ s"
"""Longer than `HANG_S`, even on a busy machine."""
HANG = f"--hang-timeout={HANG_S}"
STARTING = """
import os, threading
_over = threading.Event()
def _work():
    with open(os.devnull, "wb", buffering=0) as file:
        while not _over.wait(0.05):
            file.write(bytes(4096))
_thread = threading.Thread(target=_work)
_thread.start()
def over():
    _over.set()
    _thread.join()
"""
"""A rank that imports this module stays busy until `over()`, so a slow start is not a hang."""
HEAD = """
import os, signal, sys, threading, time, starting
import torch, torch.distributed as dist
dist.init_process_group("gloo"); dist.barrier(); starting.over()
rank = dist.get_rank()
def step():
    dist.all_reduce(torch.ones(4))
"""
"""Lines 1 to 7; a test's own lines start at line 9."""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(warm_torch: WarmTorch) -> Run:
    """Run a script on 3 warm ranks, with a hang timeout."""

    def run(text: str, *flags: str) -> "subprocess.CompletedProcess[str]":
        (warm_torch.folder / "starting.py").write_text(STARTING)
        return warm_torch.run(HEAD + textwrap.dedent(text), "--nproc-per-node=3", HANG, *flags)

    return run


HANGS = {
    "never reaches the collective": (
        """
        def read():
            time.sleep(1000)
        if rank == 1:
            read()
        step()
        """,
        "probably rank 1 hangs in read (train.py:10)",
    ),
    "an endless loop": (
        """
        def wait_for_flag():
            while True:
                pass
        for each in range(10):
            step()
            if rank == 0:
                print(each, flush=True)
            time.sleep(0.15)
        if rank == 1:
            wait_for_flag()
        step()
        """,
        "probably rank 1 hangs in wait_for_flag (train.py:1",
    ),
    "a deadlocked lock": (
        """
        lock = threading.Lock()
        def write_log():
            with lock, lock:
                pass
        if rank == 2:
            write_log()
        step()
        """,
        "probably rank 2 hangs in write_log (train.py:11)",
    ),
    "stopped by a signal": (
        """
        step()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        step()
        """,
        "rank 2 is stopped (SIGSTOP) in <module> (train.py:11)",
    ),
    "a pipe that nobody fills": (
        """
        reads, writes = os.pipe()
        def load():
            return os.read(reads, 1)
        if rank == 0:
            load()
        step()
        """,
        "probably rank 0 hangs in load (train.py:11), system call read",
    ),
    "a collective that one rank leaves out": (
        """
        if rank != 0:
            step()
        dist.barrier()
        """,
        "ranks are waiting for each other in different calls: rank 0 in barrier (train.py:11), "
        "ranks 1-2",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        long("never reaches the collective"),  # test_failure_report_contains_stacks has the same
        long("an endless loop"),
        long("a deadlocked lock"),
        long("stopped by a signal"),
        long("a pipe that nobody fills"),
        "a collective that one rank leaves out",
    ],
)
def test_hang_report_names_outlier_rank(name: str, run: Run) -> None:
    text, expected = HANGS[name]
    done = run(text)
    lines = re.split("relight: (?=probably rank|rank)", done.stderr, maxsplit=1)[-1].splitlines()
    assert lines[0].startswith(expected), done.stderr
    assert any(re.fullmatch(f"  {IDLE}", line) for line in lines), done.stderr
    assert done.returncode == EXIT_HUNG
    assert len(lines) <= 25
    assert lines[-1] == "exit code 124; no restarts were allowed (--max-restarts=0)"
    others = lines[lines.index("other ranks:") + 1 : -1]
    assert len(others) == 1, done.stderr
    assert "(train.py:7)" in others[0]


def test_hang_counts_as_failure(run: Run) -> None:
    text = """
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
        time.sleep(1000)
    step()
    dist.barrier()
    os._exit(0)  # the shutdown of Python takes a second with torch
    """
    done = run(text, "--max-restarts=1")
    assert done.returncode == 0, done.stderr
    assert "rank 1 hangs in <module> (train.py:10)" in done.stderr
    assert re.search(f"{IDLE}; restart 1 of 1", done.stderr), done.stderr


WORKS = """
import os, subprocess, sys, threading, time
from relight.worker import progress
def spend(seconds, act):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        act()
        time.sleep(0.02)
if os.environ["RANK"] == "0":
    spend(4, lambda: sum(range(300_000)))
    file = open(os.devnull, "wb", buffering=0)
    spend(4, lambda: file.write(bytes(4096)))
    subprocess.run([sys.executable, "-c", "import time\\nend = time.monotonic() + 4\\n"
                    "while time.monotonic() < end: sum(range(300_000)); time.sleep(0.02)"])
    for step in range(16):
        progress(step)
        time.sleep(0.3)
    open("over", "w").close()
else:
    while not os.path.exists("over"):
        time.sleep(0.3)
"""


@pytest.mark.forked
def test_busy_job_is_not_reported_hung(launch: Launch, script: Callable[[str], Path]) -> None:
    """A rank computes, writes, waits for a program, and reports steps, each for longer than the
    timeout, while the other rank waits for it.
    """
    done = launch("run", "--nproc-per-node=2", HANG, script(WORKS))
    assert done.returncode == 0, done.stderr
    assert "has made progress" not in done.stderr


def test_failure_report_contains_stacks(run: Run, tmp_path: Path) -> None:
    text = """
    def read():
        time.sleep(1000)
    if rank == 1:
        read()
    step()
    """
    file = tmp_path / "why.json"
    done = run(text, f"--failure-report={file}")
    report = json.loads(file.read_text())
    assert (done.returncode, report["exit_code"]) == (EXIT_HUNG, EXIT_HUNG), done.stderr
    assert re.fullmatch(IDLE, report["reason"])
    assert report["cause"]["doing"]["place"].startswith("in read (train.py:10)"), done.stderr
    assert sorted(each["rank"] for each in report["failures_here"]) == [0, 1, 2]
    assert any("in read" in line for line in report["cause"]["doing"]["stack"])


def test_job_counts_as_hung_only_if_both_nodes_are_idle(
    warm_torch: WarmTorch, tmp_path: Path
) -> None:
    """One node's workers wait for those on the other, which compute for a while, then hang."""
    text = HEAD + textwrap.dedent("""
        def compute():
            end = time.monotonic() + 4
            while time.monotonic() < end:
                pass
        def read():
            time.sleep(1000)
        if rank == 3:
            compute()
            read()
        step()
        """)
    (warm_torch.folder / "starting.py").write_text(STARTING)
    agents = [
        warm_torch.begin(
            text, "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=file",
            f"--rdzv-endpoint={tmp_path}/where", "--rdzv-id=hangs", HANG,
        )
        for _ in range(2)
    ]  # fmt: skip
    for agent in agents:
        stderr = agent.communicate(timeout=LIMIT_S)[1].decode()
        assert agent.returncode == EXIT_HUNG, stderr
        assert "rank 3 hangs in read (train.py:14)" in stderr
        assert "  ranks 0-2 in all_reduce (train.py:7)" in stderr
        after_s = float(stderr.partition(", after ")[2].partition(" s")[0])
        assert after_s > 4, "the node that computed was alive until then"


def test_collective_timeout_report_shows_stack_of_missing_rank(warm_torch: WarmTorch) -> None:
    """The timeout only becomes short once all ranks have arrived."""
    text = HEAD.replace(", starting", "").replace("; starting.over()", "") + textwrap.dedent("""
        def load_batch():
            time.sleep(1000)
        from datetime import timedelta
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))
        if rank == 1:
            load_batch()
        step()
        """)
    done = warm_torch.run(text, "--nproc-per-node=3")
    assert done.returncode == 1
    assert (
        "relight: probably rank 1: it was in load_batch (train.py:10), "
        "system call clock_nanosleep, when " in done.stderr
    ), done.stderr
