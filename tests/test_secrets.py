"""The secrets that authenticate a job's agents to each other are not passed on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIRST_WARM, Launch

LOOK = """
import os, subprocess
child = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
started_with = open("/proc/self/environ").read()
print([text.count("hunter2") for text in (str(dict(os.environ)), started_with, child)])
"""


@pytest.mark.parametrize("flags", [(), ("--preload=json",)], ids=["cold", "warm"])
def test_workers_cannot_see_job_token(
    flags: tuple[str, ...], launch: Launch, script: Callable[[str], Path]
) -> None:
    """RELIGHT_TOKEN is neither in the worker's current environment nor in its initial one."""
    result = launch("run", *flags, "-v", script(LOOK), RELIGHT_TOKEN="hunter2", command=FIRST_WARM)
    assert result.stdout == "[0, 0, 0]\n", result.stderr
    assert ("workers start with preloaded modules" in result.stderr) == bool(flags)
