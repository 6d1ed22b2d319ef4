"""A job that may restart imports its workers' modules in the background, without any flag."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start

from relight.core.status.preload_status import IMPORTING, READY, PreloadStatus
from relight.processes.running_jobs import JobDirectory

Script = Callable[[str], Path]
_SOON = """
import sys
from relight.core.workers import import_ahead
from relight.host import free_memory
import_ahead.LEARN_S, import_ahead.QUIET_S = 0.3, 0.3
if sys.argv[1] == "scarce":
    def why_scarce():
        open("asked", "w").close()
        return "only 7 MiB of memory available"
    free_memory.why_scarce = why_scarce
del sys.argv[1]
from relight.cli.main import entry
entry()
"""
_TRAIN = """
import csv, os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists("go"):
        time.sleep(0.01)
    sys.exit(1)
print("csv" in {*before, *getattr(sys.meta_path[0], "_hidden", ())})
"""
_HELD = """
import os, sys, time
import slow
open("hold", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
sys.exit(int(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"))
"""
_SLOW = """
import os, time
while os.path.exists("hold"):
    time.sleep(0.01)
"""
_BEFORE = "import sys\nbefore = set(sys.modules)\n"
_HOOK = "print(b'RELIGHT_HOOK' in open('/proc/self/environ', 'rb').read())\n"


def _events(logs: Path) -> list[dict[str, object]]:
    texts = [path.read_text() for path in logs.glob("*/events.jsonl")]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def _run(
    start: Start, path: Path, memory: str, is_over: Callable[[], bool], **variables: str
) -> Path:
    """Run a script whose first generation fails when `is_over`; return the log directory."""
    logs = path.parent / "logs"
    agent = start(
        "run", "--max-restarts=1", f"--log-dir={logs}", "-r1", path,
        command=(sys.executable, "-c", _SOON, memory), variables=variables,
    )  # fmt: skip
    deadline = time.monotonic() + LIMIT_S
    while not is_over():
        assert time.monotonic() < deadline
        assert agent.poll() is None
        time.sleep(0.02)
    (path.parent / "go").touch()
    assert agent.wait(LIMIT_S) == 0
    return logs


def test_workers_restart_warm_even_without_preload_flag(
    start: Start, script: Script, tmp_path: Path
) -> None:
    def is_ready() -> bool:
        files = (tmp_path / "logs").glob("*/events.jsonl")
        return any('"PreloadReady"' in path.read_text() for path in files)

    logs = _run(start, script(_BEFORE + _TRAIN), "free", is_ready)
    assert [each["warm"] for each in _events(logs) if each["event"] == "WorkersForked"] == [True]
    assert next(logs.glob("*/attempt_1/0/stdout.log")).read_text() == "True\n"


def test_no_module_is_preloaded_if_memory_is_low(
    start: Start, script: Script, tmp_path: Path
) -> None:
    logs = _run(start, script(_BEFORE + _TRAIN), "scarce", (tmp_path / "asked").exists)
    found = {str(each["event"]): each for each in _events(logs)}
    assert "PreloadStarted" not in found
    assert found["WorkersForked"]["reason"] == "only 7 MiB of memory available"
    assert next(logs.glob("*/attempt_1/0/stdout.log")).read_text() == "False\n"


@pytest.mark.parametrize(
    ("flags", "variables", "is_watched"),
    [
        (["--max-restarts=1"], {}, True),
        (["--max-restarts=0"], {}, False),
        (["--max-restarts=1", "--preload=off"], {}, False),
        (["--max-restarts=1"], {"RELIGHT_PRELOAD": "off"}, False),
        (["--max-restarts=1", "--run-path"], {}, False),
    ],
)
def test_worker_imports_are_traced_only_if_restarts_can_benefit(
    start: Start, script: Script, flags: list[str], variables: dict[str, str], is_watched: bool
) -> None:
    agent = start("run", *flags, script(_HOOK), variables=variables)
    out, _ = agent.communicate(timeout=LIMIT_S)
    assert out.decode().strip() == str(is_watched)


def test_status_shows_progress_of_background_import(
    start: Start, script: Script, tmp_path: Path
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "slow.py").write_text(_SLOW)
    variables = {
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(packages)]),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    jobs = JobDirectory(variables)
    seen: list[PreloadStatus] = []

    def is_ready() -> bool:
        seen.extend(job.preload for job in jobs.running() if job.preload is not None)
        if seen and seen[-1].importing == "slow":
            (tmp_path / "hold").unlink(missing_ok=True)
        return bool(seen) and seen[-1].state == READY

    _run(start, script(_HELD), "free", is_ready, **variables)
    held = next(each for each in seen if each.importing == "slow")
    assert held.state == IMPORTING
    assert 0 <= held.imported < held.modules == seen[-1].modules
