"""Slow ranks among real workers are identified from outside, on all consoles and in the status."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, RELIGHT, Launch, Start
from test_slow_ranks_by_steps import STEPS
from warm_torch import WarmTorch

pytestmark = pytest.mark.forked

TRAIN = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
node = int(os.environ["GROUP_RANK"])
model = DistributedDataParallel(torch.nn.Linear(8, 8))
end = time.monotonic() + float(os.environ.get("TRAIN_S", "600"))
while True:
    over = torch.tensor([float(time.monotonic() > end)])
    time.sleep(0.24 if node == 1 and "SLOW" in os.environ else 0.15)
    model(torch.ones(2, 8)).sum().backward()
    dist.all_reduce(over)
    if over > 0:
        break
dist.barrier()
os._exit(0)  # a thread of torch that still runs would abort the shutdown of Python
"""


def wait_for_slow_ranks(log: Path, agent: "subprocess.Popen[bytes]") -> dict[str, object]:
    """Return the first slow-ranks event in an agent's output."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        lines = log.read_text(errors="replace").splitlines()
        for line in lines:
            if line.startswith('{"v"') and json.loads(line)["event"] == "RanksSlow":
                return dict(json.loads(line))
        assert agent.poll() is None, lines
        assert time.monotonic() < deadline, lines
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.needs_torch
def test_slow_node_is_reported_on_all_nodes_and_in_status(
    warm_torch: WarmTorch, launch: Launch, tmp_path: Path
) -> None:
    agents, logs = [], [tmp_path / "log0", tmp_path / "log1"]
    for log in logs:
        with open(log, "wb") as stderr:
            agents.append(
                warm_torch.begin(
                    TRAIN, "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=file",
                    f"--rdzv-endpoint={tmp_path}/where", "--rdzv-id=slow",
                    "--watch-slow-ranks=10", "--event-log-handler=console",
                    variables={"SLOW": "1"}, stderr=stderr, command=RELIGHT,
                )
            )  # fmt: skip
    for agent, log in zip(agents, logs, strict=True):
        event = wait_for_slow_ranks(log, agent)
        assert event["ranks"] == [2, 3]
        text = str(event["text"])
        assert text.startswith(f"all ranks on {event['hosts'][0]} are ")  # type: ignore[index]
        assert " slower than the others: they wait for them " in text
        assert f"relight: {text}\n" in log.read_text()
    status = launch("status")
    assert f"{agents[0].pid}: all ranks on " in status.stdout
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    for agent in agents:
        agent.wait(LIMIT_S)


@pytest.mark.slow
@pytest.mark.long
def test_slow_rank_is_not_reported_without_the_flag(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    with open(tmp_path / "log", "wb") as stderr:
        agent = start("run", "--nproc-per-node=4", "--event-log-handler=console", script(STEPS),
                      stderr=stderr)  # fmt: skip
    time.sleep(30)  # three times the shortest interval between checks
    assert agent.poll() is None
    agent.send_signal(signal.SIGTERM)
    agent.wait(LIMIT_S)
    text = (tmp_path / "log").read_text()
    assert "WorkerStarted" in text
    assert "RanksSlow" not in text
    assert "slower than" not in text


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.long
def test_equally_fast_ranks_cause_no_straggler_warning(warm_torch: WarmTorch) -> None:
    flags = ("--nproc-per-node=3", "--event-log-handler=console", "--watch-slow-ranks=10")
    done = warm_torch.run(TRAIN, *flags, TRAIN_S="24")
    assert done.returncode == 0, done.stderr
    assert "slow" not in done.stderr


@pytest.mark.slow
def test_workers_whose_stacks_cannot_be_read_are_reported(launch: Launch) -> None:
    done = launch("run", "--no-python", "--nproc-per-node=2", "--watch-slow-ranks=10", "sleep", "4")
    assert done.returncode == 0
    assert done.stderr.count("can't see whether ranks are slow: process ") == 1
    assert "is not a Python process" in done.stderr


def test_too_short_straggler_check_interval_is_rejected(launch: Launch) -> None:
    done = launch("run", "--watch-slow-ranks=1", "train.py")
    assert done.returncode == 2
    assert "at least 10 seconds" in done.stderr
