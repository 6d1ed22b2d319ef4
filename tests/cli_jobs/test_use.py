"""The use and progress of a job's ranks in `relight status --json`."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start

from relight.core.status.snapshot import NodeSnapshot
from relight.processes.running_jobs import JobDirectory

Command = Callable[..., "subprocess.CompletedProcess[str]"]
COMPUTES = """\
import os, subprocess, sys, time
from relight.worker import progress
if os.environ["RANK"] == "0":
    progress(7)
    program = "data = bytearray(200 << 20)\\nwhile True: 1"
    started = subprocess.Popen([sys.executable, "-c", program])
    print("last line in a file", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_rank_usage_includes_child_processes(
    start: Start, relight: Command, script: Callable[[str], Path], tmp_path: Path,
    variables: dict[str, str],
) -> None:  # fmt: skip
    agent = start("run", "--nproc-per-node=2", f"--log-dir={tmp_path}/logs", "--redirects=3",
                  script(COMPUTES), variables=variables)  # fmt: skip

    def computes(job: NodeSnapshot | None) -> bool:
        use = job.ranks[0].use if job is not None and job.ranks else None
        return use is not None and use.cpu_s > 0.5 and use.memory > 200 << 20

    deadline = time.monotonic() + LIMIT_S
    while not computes(JobDirectory(variables).find(f"train-{agent.pid}")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first, second = json.loads(relight("status", "--json", "train").stdout)["roles"][0]["replicas"]
    assert (first["use"]["step"], second["use"]["step"]) == (7, None)
    assert first["use"]["step_age_s"] > 0
    assert second["use"]["memory"] < 100 << 20
    assert first["last_line"] == "last line in a file"
