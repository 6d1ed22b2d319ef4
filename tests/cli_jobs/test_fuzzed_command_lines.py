"""No generated command line causes an internal error (tests/command_fuzz.py)."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_environment

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("lines", [200, pytest.param(100_000, marks=pytest.mark.long)])
def test_fuzzed_command_lines_cause_no_internal_error(lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.command_fuzz", f"--lines={lines}"],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{lines} lines, " in done.stdout and " 0 went wrong; " in done.stdout
