"""Hangs of real workers: they are noticed from outside, and the report names the odd one out."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from relight.errors import EXIT_HUNG

HANG_S = 3
"""Long enough for a start on a busy machine, where a disk may not answer for two seconds."""

HEAD = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def step():
    dist.all_reduce(torch.ones(4))
"""


def run(
    script: Path, *flags: str, text: str, nproc: int = 3, timeout_s: float = 100
) -> tuple[int, str, str]:
    script.write_text(HEAD + textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-m", "relight", "run", f"--nproc-per-node={nproc}",
         f"--hang-timeout={HANG_S}", *flags, str(script)],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


HANGS = {
    "never reaches the collective": (
        """
        def read():
            time.sleep(1000)
        if rank == 1:
            read()
        step()
        """,
        "rank 1 hangs in read (train.py:10)",
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
        "rank 1 hangs in wait_for_flag (train.py:1",
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
        "rank 2 hangs in write_log (train.py:11)",
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
        "rank 0 hangs in load (train.py:11), system call read",
    ),
    "a collective that one rank leaves out": (
        """
        if rank != 0:
            step()
        dist.barrier()
        """,
        "rank 0 hangs in barrier (train.py:11)",
    ),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_reported_with_the_rank_that_is_elsewhere(name: str, tmp_path: Path) -> None:
    text, expected = HANGS[name]
    code, _, stderr = run(tmp_path / "train.py", text=text)
    lines = stderr.partition("relight: rank")[2].splitlines()
    assert f"rank{lines[0]}".startswith(expected), stderr
    assert f"  no rank has made progress for {HANG_S} s" in lines, stderr
    assert code == EXIT_HUNG
    assert len(lines) <= 25
    assert lines[-1] == "exit code 124; no restarts were allowed (--max-restarts=0)"
    others = lines[lines.index("the others:") + 1 : -1]
    assert len(others) == 1, stderr
    assert "(train.py:7)" in others[0]


def test_a_hang_counts_as_a_failure(tmp_path: Path) -> None:
    text = """
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
        time.sleep(1000)
    step()
    dist.destroy_process_group()
    """
    code, _, stderr = run(tmp_path / "train.py", "--max-restarts=1", text=text)
    assert code == 0, stderr
    assert "rank 1 hangs in <module> (train.py:10)" in stderr
    assert f"no rank has made progress for {HANG_S} s; restart 1 of 1" in stderr


def test_a_job_that_works_is_left_alone(tmp_path: Path) -> None:
    """It computes, then writes, then starts a program, each for longer than the time-out."""
    text = """
    def spend(seconds, act):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            act()
    step()
    spend(4, lambda: sum(range(1000)))
    file = open(os.devnull, "wb", buffering=0)
    spend(4, lambda: (file.write(bytes(4096)), time.sleep(0.01)))
    if rank == 0:
        os.system("i=0; while [ $i -lt 6000000 ]; do i=$((i+1)); done")
    step()
    dist.destroy_process_group()
    """
    code, _, stderr = run(tmp_path / "train.py", text=text)
    assert code == 0, stderr
    assert "has made progress" not in stderr


def test_steps_that_are_reported_are_signs_of_life(tmp_path: Path) -> None:
    text = """
    from relight.worker import progress
    for each in range(16):
        progress(each)
        time.sleep(0.3)
    dist.destroy_process_group()
    """
    code, _, stderr = run(tmp_path / "train.py", text=text, nproc=1)
    assert code == 0, stderr


def test_the_failure_report_has_the_stacks(tmp_path: Path) -> None:
    text = """
    def read():
        time.sleep(1000)
    if rank == 1:
        read()
    step()
    """
    file = tmp_path / "why.json"
    code, _, stderr = run(tmp_path / "train.py", f"--failure-report={file}", text=text)
    report = json.loads(file.read_text())
    assert (code, report["exit_code"]) == (EXIT_HUNG, EXIT_HUNG), stderr
    assert report["reason"] == f"no rank has made progress for {HANG_S} s"
    assert report["cause"]["doing"]["place"].startswith("in read (train.py:10)"), stderr
    assert sorted(each["rank"] for each in report["failures_here"]) == [0, 1, 2]
    assert any("in read" in line for line in report["cause"]["doing"]["stack"])


def test_two_nodes_hang_only_if_both_do(tmp_path: Path) -> None:
    """The workers of one node wait for those of the other, which compute for a while, then hang."""
    script = tmp_path / "train.py"
    script.write_text(HEAD + textwrap.dedent("""
        def compute():
            end = time.monotonic() + 6
            while time.monotonic() < end:
                pass
        def read():
            time.sleep(1000)
        if rank == 3:
            compute()
            read()
        step()
        """))  # fmt: skip
    where = f"--rdzv-endpoint={tmp_path}/where"
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "relight", "run", "--nnodes=2", "--nproc-per-node=2",
             "--rdzv-backend=file", where, "--rdzv-id=hangs",
             f"--hang-timeout={HANG_S}", str(script)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        for agent in agents:
            _, stderr = agent.communicate(timeout=100)
            assert agent.returncode == EXIT_HUNG, stderr
            assert "rank 3 hangs in read (train.py:14)" in stderr
            assert "  ranks 0-2 in all_reduce (train.py:7)" in stderr
            after_s = float(stderr.partition(", after ")[2].partition(" s")[0])
            assert after_s > 6, "the node that computed was alive until then"
    finally:
        for agent in agents:
            agent.send_signal(signal.SIGKILL)
            agent.communicate()


def test_without_the_flag_a_time_out_is_told_with_where_the_others_are(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    timeout = "timeout=__import__('datetime').timedelta(seconds=3)"
    head = HEAD.replace('"gloo")', f'"gloo", {timeout})')
    script.write_text(head + textwrap.dedent("""
        def load_batch():
            time.sleep(1000)
        if rank == 1:
            load_batch()
        step()
        """))  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "relight", "run", "--nproc-per-node=3", str(script)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        "relight: rank 1 in load_batch (train.py:10), system call clock_nanosleep, when "
        in done.stderr
    ), done.stderr
