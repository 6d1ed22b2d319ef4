"""examples/elastic.py survives what docs/elastic.md says it does."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIRST_WARM, LIMIT_S, Launch, Start
from differential.recording import free_port
from documentation.blocks import ROOT, blocks

from relight.base.errors import EXIT_PREEMPTED

SCRIPT = ROOT / "examples" / "elastic.py"
PAGE = ROOT / "docs" / "elastic.md"
WARM = "--preload=torch,torch._dynamo"
SLOWLY = ("--steps=100000", "--pause=0.01")

pytestmark = [pytest.mark.slow, pytest.mark.needs_torch]


def test_elastic_page_shows_the_code_of_the_example_script() -> None:
    shown = [block.text for block in blocks(PAGE.read_text()) if block.language == "python"]
    assert len(shown) > 1
    for text in shown:
        assert text in SCRIPT.read_text()


def wait_until(condition: Callable[[], object], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert process.poll() is None, f"it ended with {process.poll()}"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pid_of_rank(rank: int, events: Path) -> int:
    """Return the pid of a rank in the current generation."""
    text = "".join(file.read_text() for file in events.glob("*/events.jsonl"))
    found = re.findall(rf'"WorkerStarted".*"rank": {rank}, "pid": (\d+)', text)
    return int(found[-1])


@pytest.mark.long
def test_training_loses_no_steps_on_kill_preemption_or_resize(
    start: Start, launch: Launch, tmp_path: Path
) -> None:
    """Training resumes from the last checkpoint each time, and ends with the right weights."""
    out, logs = tmp_path / "out", tmp_path / "logs"
    flags = (WARM, f"--keep-warm=while:{os.getpid()}", "--max-restarts=3")
    variables = {"OMP_NUM_THREADS": "1"}
    with out.open("wb") as file:
        agent = start("run", "--nproc-per-node=2", f"--log-dir={logs}", *flags, SCRIPT, *SLOWLY,
                      command=FIRST_WARM, stdout=file, variables=variables)  # fmt: skip
        checkpoint = tmp_path / "elastic.pt"
        wait_until(checkpoint.exists, agent)
        os.kill(pid_of_rank(1, logs), signal.SIGKILL)
        wait_until(lambda: out.read_text().count("2 workers, from step ") == 2, agent)
        saved = checkpoint.stat().st_mtime_ns
        wait_until(lambda: checkpoint.stat().st_mtime_ns > saved, agent)
        agent.terminate()
        assert agent.wait(LIMIT_S) == EXIT_PREEMPTED
    first, restarted, left = map(int, re.findall(r"step (\d+)", out.read_text()))
    assert first == 0 < restarted <= left + 1
    done = launch("run", "--nproc-per-node=1", *flags, SCRIPT, f"--steps={left + 400}", **variables)
    assert f"1 workers, from step {left + 1}\n" in done.stdout, done.stderr
    assert "the largest error of a weight is 0.0" in done.stdout


@pytest.mark.long
def test_training_loses_no_steps_when_a_node_is_replaced(start: Start, tmp_path: Path) -> None:
    """One of two nodes is killed with all its processes, and another one joins."""
    out = tmp_path / "out"
    flags = ("--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=elastic",
             f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-conf=last_call_timeout=2",
             "--membership-change=at-checkpoint", "--max-restarts=0", SCRIPT, *SLOWLY)  # fmt: skip
    variables = {"OMP_NUM_THREADS": "1"}
    with out.open("wb") as file:
        first = start("run", *flags, stdout=file, variables=variables)
        wait_until(lambda: "workers, from step 0" in out.read_text(), first)
        second = start("run", *flags, stdout=file, variables=variables)
        wait_until(lambda: "2 workers, from step " in out.read_text(), first)
        wait_until((tmp_path / "elastic.pt").exists, first)
        second.kill()
        wait_until(lambda: out.read_text().count("1 workers, from step ") >= 2, first)
        start("run", *flags, stdout=file, variables=variables)
        wait_until(lambda: out.read_text().count("2 workers, from step ") == 2, first)
    steps = list(map(int, re.findall(r"workers, from step (\d+)", out.read_text())))
    assert steps == sorted(steps)
