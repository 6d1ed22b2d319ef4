"""A node imports the modules while it waits, so that its first workers are warm."""

import json
import signal
import sys
from pathlib import Path

import pytest
from nodes.jobs import AgentOn, Job, OneMachine

pytestmark = pytest.mark.slow

AT_ONCE = (
    sys.executable, "-c",
    "import sys\n"
    "from relight.agent import agent\n"
    "agent._IDLE_S = 0.0\n"
    "from relight.cli.main import entry\n"
    "sys.argv = sys.argv[3:]\n"  # without `python -m`
    "entry()",
)  # fmt: skip
"""Starts an agent that imports modules as soon as it waits, instead of after a second."""


def events(logs: Path, kind: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for path in logs.glob("*/events.jsonl"):
        found += map(json.loads, path.read_text().splitlines())
    return [event for event in found if event["event"] == kind]


class WarmJob(Job):
    """A two-node job on this machine that meets in a directory."""

    def __init__(self, machine: OneMachine, directory: Path) -> None:
        meet = ("--rdzv-backend=file", f"--rdzv-endpoint={directory / 'meet'}", "--rdzv-id=j")
        super().__init__(machine, directory, *meet, "--nnodes=2", "--max-restarts=3")

    def start_warm(self, name: str) -> tuple[AgentOn, Path]:
        logs = self.directory / f"logs-{name}"
        return self.start(name, "--preload=csv", f"--log-dir={logs}", under=AT_ONCE), logs

    def until_warm(self, logs: Path) -> None:
        self.until(lambda: events(logs, "PreloadReady"), f"warm modules, {logs}")


def test_waiting_node_preloads_modules_before_job_starts(tmp_path: Path) -> None:
    with OneMachine() as machine:
        job = WarmJob(machine, tmp_path)
        agent, logs = job.start_warm("first")
        job.until_warm(logs)
        assert not agent.workers
        other = job.start("second")
        job.until_runs([agent, other], 2)
        assert [event["warm"] for event in events(logs, "WorkersForked")] == [True]
        assert job.stop() == [0, 0]


def test_spare_node_with_preloaded_modules_replaces_lost_node(tmp_path: Path) -> None:
    with OneMachine() as machine:
        job = WarmJob(machine, tmp_path)
        agents = [job.start("first"), job.start("second")]
        job.until_runs(agents, 2)
        spare, logs = job.start_warm("spare")
        job.until_says(spare, "kept as a spare")
        job.until_warm(logs)
        job.kill(agents[1], signal.SIGKILL)
        job.until_runs([spare], 2, generation=1)
        assert [event["warm"] for event in events(logs, "WorkersForked")] == [True]
        job.tell("stop")
        assert [agents[0].wait(), spare.wait()] == [0, 0]


@pytest.mark.parametrize("where", ["train.py", "conf.py"])
def test_script_that_sets_variables_starts_cold_after_waiting(tmp_path: Path, where: str) -> None:
    """Nothing is imported while the node waits, because these variables would not be set yet."""
    with OneMachine() as machine:
        job = WarmJob(machine, tmp_path)
        script = tmp_path / "train.py"
        script.write_text(f"import conf\n{script.read_text()}")
        (tmp_path / "conf.py").write_text("import os\n")
        changed = tmp_path / where
        changed.write_text("import os\nos.environ['X'] = '1'\n" + changed.read_text())
        agent, logs = job.start_warm("first")
        job.until_says(agent, "1 of 2 nodes have joined")
        assert not events(logs, "PreloadStarted")
        other = job.start("second")
        job.until_runs([agent, other], 2)
        assert [event["warm"] for event in events(logs, "WorkersForked")] == [False]
        assert job.stop() == [0, 0]


SHOW = """
import os, subprocess, sys
print("hook:", sorted(k for k in os.environ if "HOOK" in k or "PYTHONPATH" in k), flush=True)
child = "import sys; print('finders:', *map(type, sys.meta_path))"
subprocess.run([sys.executable, "-c", child])
"""


def test_workers_of_waiting_node_have_normal_environment(tmp_path: Path) -> None:
    """The environment has nothing from relight, and child processes' imports aren't reported."""
    with OneMachine() as machine:
        job = WarmJob(machine, tmp_path)
        script = tmp_path / "train.py"
        script.write_text(SHOW + script.read_text())
        agent, logs = job.start_warm("first")
        job.until_warm(logs)
        other = job.start("second")
        job.until_runs([agent, other], 2)
        assert [event["warm"] for event in events(logs, "WorkersForked")] == [True]
        assert job.stop() == [0, 0]
        found = [
            [line for line in each.text.splitlines() if line.startswith(("hook:", "finders:"))]
            for each in (agent, other)
        ]
        assert found[0] == found[1] != []
