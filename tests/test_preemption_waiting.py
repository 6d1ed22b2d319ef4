"""Nodes of a job that are told of the same end one after the other."""

import signal
from collections.abc import Callable
from pathlib import Path

from conftest import Start

TRAINS = """
import os, sys, time
from relight.worker import should_checkpoint
should_checkpoint()
os.write(1, b"up\\n")
while not should_checkpoint():
    time.sleep(0.002)
"""


def test_an_agent_whose_workers_have_saved_asks_to_be_started_again_too(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """It gets the signal while it waits for the node that was preempted first."""
    path = script(TRAINS)
    words = ("--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet", "--rdzv-id=j")
    first, second = (start("run", *words, path) for _ in range(2))
    for agent in (first, second):
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 75
    assert second.stderr is not None
    for line in second.stderr:
        if b"waiting for 1 more" in line:  # whichever of the two coordinated the group
            break
    second.send_signal(signal.SIGTERM)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 75
    assert b"the workers had saved and left before; exit code 75" in err
