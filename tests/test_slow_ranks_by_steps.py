"""Slow ranks without collectives are found by comparing the steps that they report."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start

STEPS = """
import os, time
from relight import worker
step = 0
while True:
    time.sleep(0.08 if os.environ["RANK"] == "2" else 0.05)
    step += 1
    worker.progress(step)
"""


@pytest.mark.long
def test_status_names_rank_that_takes_fewer_steps(
    start: Start, launch: Launch, script: Callable[[str], Path]
) -> None:
    """The test takes a little longer than twice the shortest comparison interval."""
    agent = start("run", "--nproc-per-node=4", "--watch-slow-ranks=10", script(STEPS))
    deadline, told = time.monotonic() + LIMIT_S, list[str]()
    while not told:
        assert agent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
        shown = launch("status", "--json", str(agent.pid)).stdout
        told = json.loads(shown)["slow_ranks"] if shown else []
    (text,) = told
    assert text.startswith("rank 2 on ")
    assert " slower than the others" in text
    assert f"  {text}\n" in launch("status", str(agent.pid)).stdout
    agent.send_signal(signal.SIGTERM)
    agent.wait(LIMIT_S)
