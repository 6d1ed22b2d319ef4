"""A real job's goodput account: scripts sleep for known times in each phase."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, Launch

pytestmark = pytest.mark.forked

PHASES = """\
import os, signal, socket, sys, time
from relight.worker import progress

rank, restart = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
scale = float(sys.argv[1])

def mark(name):
    with open(f"marks-{name}-{restart}-{rank}", "w") as file:
        file.write(repr(time.monotonic()))

def end(*_):
    time.sleep(2 * scale)
    mark("end")
    os._exit(0)

signal.signal(signal.SIGTERM, end)
mark("begin")
time.sleep(2 * scale)
if rank:
    time.sleep(scale)  # init_process_group waits for the last one
mark("connect")
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
time.sleep((2 - rank) * scale)
progress(0)
mark("first")
time.sleep(3 * scale)
if not rank:
    mark("saved")
    os.rename(f"marks-saved-{restart}-0", f"saved-{restart}")
else:
    while not os.path.exists(f"saved-{restart}"):
        time.sleep(0.01)
time.sleep(2 * scale)
mark("done")
if rank and restart == "0":
    os._exit(7)
if not rank and restart == "0":
    time.sleep(600)
"""


def run(
    launch: Launch, folder: Path, scale: float, *flags: str
) -> "subprocess.CompletedProcess[str]":
    (folder / "phases.py").write_text(PHASES)
    return launch("run", "--nproc-per-node=2", "--max-restarts=1", "--checkpoints=saved-*",
                  "--log-dir=logs", *flags, "phases.py", str(scale), cwd=folder)  # fmt: skip


def account(folder: Path) -> dict[str, Any]:
    """Return the account that is derived from the event log."""
    from relight.base.fields import plain
    from relight.core.status.goodput import Ledger
    from relight.events import event_lines

    (path,) = folder.glob("logs/*/events.jsonl")
    lines = [event_lines.read(text) for text in path.read_text().splitlines()]
    told = [(event_lines.parse_event(line), line) for line in lines if line is not None]
    ledger = Ledger(told[0][1].t, knows_checkpoints=True)
    for event, line in told:
        assert event is not None
        ledger.step(event, line.t, line.time)
    found: dict[str, Any] = plain(ledger.account(0.0))
    return found


def marked(folder: Path, name: str, restart: int, rank: int) -> float:
    path = folder / (f"saved-{restart}" if name == "saved" else f"marks-{name}-{restart}-{rank}")
    return float(path.read_text())


@pytest.mark.slow
def test_restarted_job_prints_goodput(launch: Launch, tmp_path: Path) -> None:
    done = run(launch, tmp_path, 0.05)
    assert done.returncode == 0, done.stderr
    text = done.stderr[done.stderr.index("relight: goodput") :]
    assert re.match(r"relight: goodput \d+% over [\d.]+ s\n  time: .*productive [\d.]+ s", text)
    assert "  1 failure, MTTR" in text
    assert "lost since the last checkpoint" in text
    phases = account(tmp_path)["latest"][0]["phases"]
    assert all(phases[name] is not None for name in phases)
    assert phases["unknown"] == 0


def test_job_without_restart_prints_no_goodput(launch: Launch) -> None:
    done = launch("run", "--no-python", "sleep", "1.2")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_goodput_is_accurate_within_2_percent(launch: Launch, tmp_path: Path) -> None:
    """All times come from the script and from the clock that all processes on a machine share;
    whatever precedes its first line counts as imports.
    """
    scale = 1.5
    assert run(launch, tmp_path, scale).returncode == 0
    for restart, found in enumerate(account(tmp_path)["latest"]):
        phases = found["phases"]

        def at(name: str, rank: int, restart: int = restart) -> float:
            return marked(tmp_path, name, restart, rank)

        known = {
            "imports": 2 * scale,
            "init": at("connect", 1) - at("connect", 0),
            "first_step": min(at("first", 0), at("first", 1)) - at("connect", 1),
        }
        if restart == 0:
            known["lost"] = at("done", 1) - at("saved", 0)
            known["productive"] = at("saved", 0) - min(at("first", 0), at("first", 1))
            known["teardown"] = at("end", 0) - at("done", 1)
        else:
            known["productive"] = at("done", 0) - min(at("first", 0), at("first", 1))
        wall = sum(seconds or 0.0 for seconds in phases.values())
        wrong = {
            name: (phases[name], seconds)
            for name, seconds in known.items()
            if abs(phases[name] - seconds) > 0.02 * wall
        }
        assert not wrong, (restart, wall, phases)


@pytest.mark.long
def test_slow_restart_is_reported_with_remedy(launch: Launch, tmp_path: Path) -> None:
    done = run(launch, tmp_path, 1.6)
    assert done.returncode == 0
    assert re.search(
        r"relight: the restart took \d+ s, 3 s of it between worker start and "
        r"init_process_group; --preload=auto saves the imports", done.stderr
    ), done.stderr  # fmt: skip


@pytest.mark.long
def test_slow_restart_reports_why_modules_were_not_preloaded(
    launch: Launch, tmp_path: Path
) -> None:
    done = run(launch, tmp_path, 1.6, "--preload=auto")
    assert done.returncode == 0
    assert re.search(
        r"relight: the restart took \d+ s, 3 s of it spent importing before "
        r"init_process_group: the script's imports", done.stderr
    ), done.stderr  # fmt: skip


@pytest.mark.slow
def test_status_shows_goodput_of_running_job(
    start: Callable[..., Any], launch: Launch, tmp_path: Path
) -> None:
    variables = {"XDG_RUNTIME_DIR": str(tmp_path), "RELIGHT_STATE_DIR": str(tmp_path / "state")}
    script = tmp_path / "steps.py"
    script.write_text(
        "import time\nfrom relight.worker import progress\n"
        "for step in range(10_000):\n    progress(step)\n    time.sleep(0.01)\n"
    )
    start("run", script, variables=variables)
    deadline = time.monotonic() + LIMIT_S
    found = None
    while found is None or not found["goodput"]:
        assert time.monotonic() < deadline, found
        status = launch("status", "--json", "steps", **variables)
        found = json.loads(status.stdout)["goodput"] if status.returncode == 0 else None
    assert found["total"]["productive"] > 0
    assert (found["failures"], found["total"]["imports"]) == (0, None)
    assert "goodput " in launch("status", "steps", **variables).stdout
