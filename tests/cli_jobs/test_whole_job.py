"""A multi-node job looks like a single job, whichever node it is viewed on."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start

from relight.core.status.snapshot import WholeJob
from relight.processes.running_jobs import JobDirectory

pytestmark = pytest.mark.forked

Command = Callable[..., "subprocess.CompletedProcess[str]"]
COUNTS = """\
import os, time
while True:
    print("rank", os.environ["RANK"], "counts", flush=True)
    time.sleep(0.05)
"""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_status_on_any_node_shows_ranks_of_all_nodes(
    start: Start, relight: Command, script: Callable[[str], Path], tmp_path: Path,
    variables: dict[str, str],
) -> None:  # fmt: skip
    """The status includes the ranks' states, last lines and logs. A suspended node is named, and
    doesn't delay the others.
    """
    flags = ("run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=file", "--rdzv-id=whole",
             f"--rdzv-endpoint={tmp_path}/where", "--rdzv-conf=lost_after=5")  # fmt: skip
    path, jobs = script(COUNTS), JobDirectory(variables)
    logged = start(*flags, f"--log-dir={tmp_path}/logs", "--redirects=3", path, variables=variables)
    plain = start(*flags, path, variables=variables)

    def whole(agent: "subprocess.Popen[bytes]") -> WholeJob | None:
        return jobs.find_whole(f"train-{agent.pid}")

    for agent in (logged, plain):
        until(
            lambda agent=agent: (
                (job := whole(agent)) is not None
                and sum(len(node.ranks) for node in job.nodes) == 4
            )
        )
        found = json.loads(relight("status", "--json", str(agent.pid)).stdout)
        replicas = found["roles"][0]["replicas"]
        assert [each["id"] for each in replicas] == [0, 1, 2, 3]
        assert {each["state"] for each in replicas} == {"RUNNING"}
    job = whole(logged)
    assert job is not None
    own, other = job.nodes
    for rank in other.ranks[:1]:  # the other node's view lacks files, and has another agent
        until(
            lambda rank=rank: re.search(
                f"^rank {rank.rank} counts$",
                relight("logs", f"{logged.pid}/default/{rank.rank}").stdout,
                re.MULTILINE,
            )
        )
    for rank in own.ranks[:1]:  # the other agent's files are on this host
        until(
            lambda rank=rank: (
                f"rank {rank.rank} counts"
                in relight("logs", f"{plain.pid}/default/{rank.rank}").stdout
            )
        )
    os.kill(plain.pid, signal.SIGSTOP)
    job = whole(logged)
    assert job is not None
    assert (len(job.nodes), len(job.silent)) in ((1, 1), (1, 0))  # 0: the coordinator
    text = relight("status", str(logged.pid)).stdout
    assert "no response from" in text or "the coordinator is not responding" in text
    os.kill(plain.pid, signal.SIGCONT)
    logged.send_signal(signal.SIGTERM)
    assert logged.wait(LIMIT_S) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_status_shows_network_location_of_each_rank(
    start: Start, relight: Command, script: Callable[[str], Path], tmp_path: Path,
    variables: dict[str, str],
) -> None:  # fmt: skip
    """Each rank is shown with its node's place in the network. `describe` shows the place of its
    own node.
    """
    flags = ("run", "--nnodes=2", "--rdzv-backend=file", "--rdzv-id=order",
             f"--rdzv-endpoint={tmp_path}/where")  # fmt: skip
    path, jobs, agents = script(COUNTS), JobDirectory(variables), []
    for place in ("s1.l10", "s1.l9"):
        env = {**variables, "RELIGHT_TOPOLOGY": place, "RELIGHT_RANK_ORDER": "topology"}
        agents.append(start(*flags, path, variables=env))
    last = agents[0]
    until(
        lambda: (
            (job := jobs.find_whole(f"train-{last.pid}")) is not None
            and sum(len(node.ranks) for node in job.nodes) == 2
        )
    )
    text = relight("status", str(last.pid)).stdout
    rows = [line.split() for line in text.splitlines() if line.startswith("rank ")]
    assert [row[4] for row in rows] == ["s1.l9", "s1.l10"], text
    assert "TOPOLOGY" in text
    replicas = json.loads(relight("status", "--json", str(last.pid)).stdout)["roles"][0]["replicas"]
    assert [each["topology"] for each in replicas] == ["s1.l9", "s1.l10"]
    assert "node 1 of 2, at s1.l10" in relight("describe", str(last.pid)).stdout
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    assert [agent.wait(LIMIT_S) for agent in agents] == [128 + signal.SIGTERM] * 2
