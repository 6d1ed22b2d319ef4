"""torch.distributed.elastic.timer in a worker, beside torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """\
import os, time
from torch.distributed.elastic import timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=30):
    print("in time", flush=True)
with timer.expires(after=0.1):
    time.sleep(60)
print("too late", flush=True)
"""


@pytest.mark.parametrize("launcher", ["torch.distributed.run", "relight run"])
def test_a_worker_is_killed_when_the_timer_of_torch_expires(launcher: str, tmp_path: Path) -> None:
    """The exit code is the same, though torchrun kills itself too: see `late-worker` in
    docs/differences.md.
    """
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    env = {
        **os.environ,
        "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
        "TORCHELASTIC_TIMER_FILE": str(tmp_path / "timer"),
    }
    found = subprocess.run(
        [sys.executable, "-m", *launcher.split(), "--nproc-per-node=1", str(script)],
        env=env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert found.stdout == "in time\n", found.stderr
    assert found.returncode in (-9, 137)
    if launcher == "relight run":
        assert "rank 0 was killed by SIGKILL: its timer" in found.stderr
        assert not (tmp_path / "timer").exists()
