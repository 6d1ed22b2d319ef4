"""A rank that finishes while others are still running is reported before anything fails."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path

from conftest import LIMIT_S, Launch, Start

IMPATIENT = """\
import relight.agent.worker_group
from relight.core.workers import early_exits
relight.agent.worker_group._FINISHED_S = early_exits.MIN_S = 0.5
from relight.__main__ import entry
entry()
"""
"""Relight with a shorter delay."""
WAITS = """\
import os, sys, time
while os.environ["RANK"] != "1" and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


def test_rank_that_finishes_early_is_reported_once(
    start: Start, launch: Launch, script: Callable[[str], Path], tmp_path: Path
) -> None:
    over = tmp_path / "over"
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    agent = start("run", "--nproc-per-node=3", script(WAITS), over, variables=runtime,
                  command=(sys.executable, "-c", IMPATIENT))  # fmt: skip
    assert agent.stderr is not None
    limit = threading.Timer(LIMIT_S, agent.kill)
    limit.daemon = True
    limit.start()
    lines = iter(agent.stderr.readline, b"")
    line = next(text for text in map(bytes.decode, lines) if "finished" in text)
    assert line.startswith("relight: rank 1 finished ")
    assert line.endswith(" s ago with exit code 0; ranks 0, 2 are still running\n")
    while not (shown := launch("status", str(agent.pid), **runtime).stdout):
        assert agent.poll() is None  # commands can see a job after a second
    assert "; rank 1 finished " in shown
    over.touch()
    assert not [text for text in lines if b"finished" in text]
    assert agent.wait(LIMIT_S) == 0
    limit.cancel()
