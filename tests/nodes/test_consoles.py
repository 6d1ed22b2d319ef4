"""Other nodes don't wait for a node whose console accepts no more output."""

import fcntl
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import BinaryIO

import pytest
from conftest import LIMIT_S, RELIGHT, clean_environment

from nodes.jobs import Job, OneMachine

pytestmark = pytest.mark.slow

LOUD = """
import os, sys, time
first, rank = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", os.environ["RANK"]
written, line = 0, b"x" * 999 + b"\\n"
while first and "LOUD" in os.environ:  # until the pipe is full
    written += os.write(1, line)
    open("written", "w").write(str(written))
open(f"began.{os.environ['TORCHELASTIC_RESTART_COUNT']}.{rank}", "w").close()
while not (first and os.path.exists("fail")):
    time.sleep(0.02)
sys.exit(3)
"""


def is_full(stuck: "subprocess.Popen[bytes]", path: Path) -> bool:
    """Return whether an agent's output pipe is full and no worker can write any more."""
    assert stuck.stdout is not None
    size = fcntl.fcntl(stuck.stdout, fcntl.F_GETPIPE_SZ)
    (held,) = struct.unpack("i", fcntl.ioctl(stuck.stdout, termios.FIONREAD, bytes(4)))
    is_old = path.exists() and time.time() - path.stat().st_mtime > 1
    return is_old and held > size - 2 * 4096


def start_stuck(here: OneMachine, job: Job, stderr: BinaryIO) -> "subprocess.Popen[bytes]":
    """Start an agent whose stdout is a pipe that nobody reads."""
    return here.start(
        [*RELIGHT, "run", *job.flags, "loud.py"],
        cwd=job.directory,
        env=clean_environment(LOUD="1", TMPDIR=str(job.directory)),
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


def test_node_with_blocked_console_can_still_restart_and_stop(tmp_path: Path) -> None:
    """The job restarts after a worker on another node fails, and one signal ends the stuck node."""
    meet = ("--rdzv-backend=file", f"--rdzv-endpoint={tmp_path / 'meet'}", "--rdzv-id=j")
    (tmp_path / "loud.py").write_text(LOUD)
    with OneMachine() as here, (tmp_path / "stderr").open("wb") as stderr:
        job = Job(here, tmp_path, *meet, "--nnodes=2", "--max-restarts=1")
        agent = job.start("node1", script=("loud.py",))
        stuck = start_stuck(here, job, stderr)
        job.until(lambda: is_full(stuck, tmp_path / "written"), "a full pipe")
        job.tell("fail")
        job.until_says(agent, "generation 1: 2 workers on 2 nodes")
        job.until(lambda: len(list(tmp_path.glob("began.1.*"))) == 2, "both workers")
        stuck.send_signal(signal.SIGTERM)
        assert stuck.wait(LIMIT_S) == 128 + signal.SIGTERM
        assert stuck.stdout is not None
        shown = stuck.stdout.read().splitlines()
        stuck.stdout.close()
        assert set(shown[:-1]) == {b"x" * 999}
        said = (tmp_path / "stderr").read_text()
        assert re.search(
            r"\d{6} bytes of worker output were not shown: the console is blocked", said
        )


@pytest.mark.parametrize("coordinates", ["stuck", "other"])
def test_node_with_blocked_console_does_not_join_another_run(
    tmp_path: Path, coordinates: str
) -> None:
    """After the job has failed, the other agent exits immediately. A new agent with the same id
    does not get the stuck node into its group, in which no workers would ever start.
    """
    register = tmp_path / "meet"
    meet = ("--rdzv-backend=file", f"--rdzv-endpoint={register}", "--rdzv-id=j")
    (tmp_path / "loud.py").write_text(LOUD)
    with OneMachine() as here, (tmp_path / "stderr").open("wb") as stderr:
        job = Job(here, tmp_path, *meet, "--nnodes=2")
        if coordinates == "other":
            agent = job.start("node1", script=("loud.py",))
            job.until_says(agent, "this node coordinates the group now")
            stuck = start_stuck(here, job, stderr)
        else:
            stuck = start_stuck(here, job, stderr)
            job.until((register / "j").exists, "the record of the stuck node")
            agent = job.start("node1", script=("loud.py",))
        job.until(lambda: is_full(stuck, tmp_path / "written"), "a full pipe")
        job.tell("fail")
        assert agent.process.wait(LIMIT_S) == 3  # like its worker, without waiting for the console
        assert "relight doctor" not in agent.text
        job.until(lambda: not (register / "j").exists(), "no coordinator")
        late = job.start("node2", script=("loud.py",))
        job.until_says(late, "1 of 2 nodes have joined")
        assert "generation" not in late.text
        late.process.send_signal(signal.SIGTERM)
        assert late.wait() == 128 + signal.SIGTERM
        assert "lost the coordinator" not in (tmp_path / "stderr").read_text()
        stuck.send_signal(signal.SIGTERM)
        assert stuck.wait(LIMIT_S) == 128 + signal.SIGTERM
        assert stuck.stdout is not None
        stuck.stdout.close()
