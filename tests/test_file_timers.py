"""torch.distributed.elastic.timer in a worker, compared with torchrun."""

import subprocess
from pathlib import Path

import pytest
from conftest import TORCHRUN, Launch
from warm_torch import WarmTorch

pytestmark = [pytest.mark.slow, pytest.mark.needs_torch]

SCRIPT = """
import os, time
from torch.distributed.elastic import timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=300):
    print("in time", flush=True)
with timer.expires(after=0.1):
    time.sleep(1000)
print("too late", flush=True)
"""


def variables(folder: Path) -> dict[str, str]:
    return {
        "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
        "TORCHELASTIC_TIMER_FILE": str(folder / "timer"),
    }


def check(found: "subprocess.CompletedProcess[str]") -> None:
    assert found.stdout == "in time\n", found.stderr
    assert found.returncode in (-9, 137)


def test_expired_torch_file_timer_kills_worker(warm_torch: WarmTorch, tmp_path: Path) -> None:
    found = warm_torch.run(SCRIPT, **variables(tmp_path))
    check(found)
    assert "rank 0 was killed by SIGKILL: its timer" in found.stderr
    assert not (tmp_path / "timer").exists()


@pytest.mark.long
def test_exit_code_after_expired_timer_matches_torchrun(launch: Launch, tmp_path: Path) -> None:
    """Torchrun also kills itself; see `late-worker` in docs/differences.md."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    check(launch("--nproc-per-node=1", script, command=TORCHRUN, **variables(tmp_path)))
