"""The usage and progress of a job's ranks in `relight status --json`."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, Start

from relight.core.status.snapshot import NodeSnapshot
from relight.processes.running_jobs import JobDirectory

pytestmark = pytest.mark.forked

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


TRAINS = """\
import os, sys, time
from relight.worker import progress, report
report(lr=0.1)
for step in range(5000):
    progress(step, total=5000)
    print(f"step {step} loss: {1 / (step + 1):.4f}", flush=True)
    print(f"acc={step}", file=sys.stderr, flush=True)
    time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--redirects=3",)])
def test_status_shows_metrics_reported_or_parsed_from_output(
    start: Start, relight: Command, script: Callable[[str], Path], tmp_path: Path,
    variables: dict[str, str], flags: tuple[str, ...],
) -> None:  # fmt: skip
    start("run", f"--log-dir={tmp_path}/logs", *flags, "--watch-metric=loss: ([0-9.]+)",
          "--watch-metric", "acc=([0-9]+)", script(TRAINS), variables=variables)  # fmt: skip
    deadline = time.monotonic() + LIMIT_S
    found: dict[str, Any] = {}
    while len(found.get("charts", ())) < 4 or not (found["progress"] or {}).get("remaining_s"):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
        text = relight("status", "--json", "train").stdout
        found = json.loads(text) if text else {}
    (rank,) = found["roles"][0]["replicas"]
    assert set(rank["use"]["reported"]) == {"lr", "loss", "acc"}
    assert {each["name"] for each in found["charts"]} == {"steps/s", "lr", "loss", "acc"}
    assert found["progress"]["total"] == 5000
    shown = relight("status", "train").stdout
    assert " of 5000, " in shown and " steps/s, about " in shown and "loss " in shown


ENDS = """\
import os, sys, time
from relight.worker import progress, report
for step in range(40):
    progress(step, total=40)
    report(loss=1 / (step + 1))
    while step == 20 and not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
"""


@pytest.mark.parametrize("is_queried", [False, True])
def test_status_of_ended_job_shows_the_last_reported_step(
    start: Start, relight: Command, script: Callable[[str], Path], variables: dict[str, str],
    tmp_path: Path, is_queried: bool,
) -> None:  # fmt: skip
    go = tmp_path / "go"
    agent = start("run", script(ENDS), go, variables=variables)

    def is_ready() -> bool:
        if not any(Path(variables["XDG_RUNTIME_DIR"]).rglob(f"train-{agent.pid}*")):
            return False  # the job can't be queried yet
        return not is_queried or '"step": 20,' in relight("status", "--json", "train").stdout

    deadline = time.monotonic() + LIMIT_S
    while not is_ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    go.touch()
    assert agent.wait(LIMIT_S) == 0
    found = json.loads(relight("status", "--json", "train").stdout)
    assert (found["progress"]["step"], found["progress"]["total"]) == (39, 40)
    (rank,) = found["roles"][0]["replicas"]
    assert (rank["use"]["step"], rank["use"]["reported"]) == (39, {"loss": 0.025})
    assert (rank["use"]["memory"] is not None) == is_queried


def test_metric_pattern_without_a_match_is_reported_at_job_end(
    launch: Command, script: Callable[[str], Path]
) -> None:
    job = launch("run", "--watch-metric=los: (.+)", script("import time\ntime.sleep(1.2)\n"))
    assert job.returncode == 0
    assert "--watch-metric: no line printed by the workers contained los" in job.stderr


def test_invalid_metric_pattern_is_rejected_before_workers_start(
    launch: Command, script: Callable[[str], Path]
) -> None:
    job = launch("run", "--watch-metric=loss: (", script("print('began')\n"))
    assert (job.returncode, job.stdout) == (2, "")
    assert "--watch-metric=loss: (: not a regular expression" in job.stderr
