"""Another user can't hide or stop jobs by creating /tmp/relight-UID first."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start

pytestmark = pytest.mark.forked

WITH_SHARED = (
    sys.executable, "-c",
    "import os\nfrom relight.host import user_sockets\n"
    "user_sockets._SHARED = os.environ['TMPDIR']\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip
"""Runs relight with another directory in place of /tmp."""
SLEEPS = "import time\nprint('printed', flush=True)\ntime.sleep(600)"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Replace /tmp with a directory that already contains the usual name."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o1777)
    (folder / f"relight-{os.getuid()}").symlink_to("/")
    return folder


def test_commands_find_job_in_fallback_runtime_directory(
    start: Start, launch: Launch, script: Callable[[str], Path], shared: Path
) -> None:
    variables = {"XDG_RUNTIME_DIR": "", "TMPDIR": str(shared)}
    agent = start(
        "run", "--tee=3", "--name=mine", script(SLEEPS), command=WITH_SHARED, variables=variables
    )
    assert agent.stderr is not None
    text = ""
    own, taken = shared / f"relight-{os.getuid()}-1", f"relight-{os.getuid()} belongs to another"
    while f"the socket for this job is in {own}\n" not in text:
        line = agent.stderr.readline().decode()
        assert line, text
        text += line
    assert re.search(rf"writing logs to {own}/.*: {shared}/{taken} user", text), text
    assert own.stat().st_mode & 0o777 == 0o700
    for words in (("list",), ("status", "mine"), ("logs", "mine"), ("stacks", "mine")):
        result = launch(*words, command=WITH_SHARED, **variables)
        assert result.returncode == 0, result.stderr
        assert "relight-" not in result.stderr
    assert "printed" in launch("logs", "mine", command=WITH_SHARED, **variables).stdout
    assert launch("cancel", "mine", command=WITH_SHARED, **variables).returncode == 0
    agent.communicate(timeout=LIMIT_S)
    assert "CANCELLED" in launch("status", "mine", command=WITH_SHARED, **variables).stdout
    assert launch("warm", command=WITH_SHARED, **variables).returncode == 0
