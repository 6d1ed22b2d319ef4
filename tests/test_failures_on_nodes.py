"""The failure report of jobs on four nodes: each names the right rank first, on all consoles.

Each script of tests/faults_on_nodes runs on four agents with a worker each; the text beside it is
the report that all of them print. The agents are on one machine, so all have one clock; where that
matters is tested in tests/core/test_failures.py. The scripts in `second` were written by somebody
who did not know how causes are found (docs/decisions/0007-root-cause.md).
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import RELIGHT
from test_failures_e2e import as_everywhere, check_form, matches, report_of

FAULTS = Path(__file__).parent / "faults_on_nodes"
NODES = 4
PATIENCE = "--rdzv-conf=keep_alive_interval=5"
"""No node is lost here: on a busy machine none must be frozen."""
FLAGS = "# relight run "


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is as long everywhere."""
    with tempfile.TemporaryDirectory(prefix="job-", dir="/tmp") as path:
        yield Path(path)


def run(script: Path, place: Path) -> tuple[int, list[str]]:
    """Return the exit code that all agents have, and the report that each prints."""
    copied = Path(shutil.copy(script, place))
    first_line = script.read_text().partition("\n")[0]
    flags = first_line.removeprefix(FLAGS).split() if first_line.startswith(FLAGS) else []
    command = [
        *RELIGHT, "run", f"--nnodes={NODES}", "--rdzv-backend=file",
        f"--rdzv-endpoint={place}/meet", "--rdzv-id=faults", PATIENCE, *flags, str(copied),
    ]  # fmt: skip
    env = {**os.environ, "TMPDIR": str(place)}
    agents = [
        subprocess.Popen(
            command, cwd=place, env=env, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for _ in range(NODES)
    ]  # fmt: skip
    try:
        reports = [report_of(agent.communicate(timeout=100)[1]) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()
    for report in reports:
        check_form(report)
    codes = {agent.returncode for agent in agents}
    assert len(codes) == 1, (codes, reports)
    return codes.pop(), [as_everywhere(report, place) for report in reports]


@pytest.mark.parametrize(
    "script",
    [
        *(
            pytest.param(path, marks=[pytest.mark.slow] if path.stem.startswith("torch") else [])
            for path in sorted(FAULTS.glob("*.py"))
        ),
        *(
            pytest.param(path, marks=pytest.mark.long)
            for path in sorted(FAULTS.glob("second/*.py"))
        ),
    ],
    ids=lambda path: path.stem,
)
def test_all_nodes_report_the_right_rank_first(script: Path, place: Path) -> None:
    """REWRITE_REPORTS=1 writes the reports that differ."""
    code, reports = run(script, place)
    assert len(set(reports)) == 1, "\n".join(reports)
    assert reports[0].rstrip().splitlines()[-1].startswith(f"exit code {code}; ")
    expected = script.with_suffix(".txt")
    wanted = expected.read_text() if expected.exists() else ""
    if not matches(reports[0], wanted):
        if "REWRITE_REPORTS" in os.environ:
            expected.write_text(reports[0])
        assert reports[0] == wanted
