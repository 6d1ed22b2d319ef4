"""Stacks on request: the page and `relight stacks JOB` show the ranks of all nodes."""

import os
import pty
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start

from .conftest import read_link

WAITS = """\
import os, time

def late():
    time.sleep(600)

def others():
    os.read(read_end, 1)

read_end, write_end = os.pipe()
if os.environ["RANK"] == "2":
    late()
others()
"""


@pytest.mark.slow
def test_stacks_of_all_nodes_are_shown_and_missing_replies_reported(
    start: Start, launch: Launch, script: Callable[[str], Path], tmp_path: Path
) -> None:
    flags = ("run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=file", "--rdzv-id=stacked",
             f"--rdzv-endpoint={tmp_path}/where", "--rdzv-conf=lost_after=20")  # fmt: skip
    program = script(WAITS)
    agents = [start(*flags, program) for _ in range(2)]

    def stacks(pid: int) -> str:
        return str(launch("stacks", f"run://relight/train-{pid}").stdout)

    expected = r"rank 2 on \S+( #2)? in late \(train.py:4\).*\nranks 0-1, 3 in others"
    deadline = time.monotonic() + LIMIT_S
    while not re.match(expected, stacks(agents[0].pid)):
        assert time.monotonic() < deadline
        time.sleep(0.1)

    leader, follower = pty.openpty()
    start("status", "--web", str(agents[0].pid), stdout=follower)
    os.close(follower)
    page = read_link(leader)
    text = page.act("stacks")
    assert re.match(expected, text)
    assert {": ranks 0-1", ": ranks 2-3"} == {
        line[line.rindex(": ranks") :] for line in text.splitlines()[-2:]
    }
    assert (
        len(re.findall(r'^  File ".*train.py", line \d+, in (?:late|others)$', text, re.MULTILINE))
        == 2
    )
    os.kill(agents[1].pid, signal.SIGSTOP)
    text = page.act("stacks")
    # The stopped node may be the coordinator.
    assert re.search(
        r": no response within 1 s$|only 1 of 2 nodes could be queried", text, re.MULTILINE
    )
    assert re.search(r"no stack for ranks (0-1|2-3)$", text)
    os.kill(agents[1].pid, signal.SIGCONT)
    os.close(leader)
