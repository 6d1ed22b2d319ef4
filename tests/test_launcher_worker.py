"""The single-file launcher also provides `relight.worker` if its file is on PYTHONPATH."""

import subprocess
import sys
from pathlib import Path

from relight.job import launcher_file

SCRIPT = """
import os, relight.worker
assert relight.__file__.startswith(os.environ["PYTHONPATH"])
print(relight.worker.should_checkpoint(), relight.worker.membership().requeues)
"""


def test_worker_module_can_be_imported_from_launcher_file(tmp_path: Path) -> None:
    file = tmp_path / "relight"
    file.write_bytes(launcher_file.build())
    result = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT],
        env={"PYTHONPATH": str(file), "RELIGHT_REQUEUES": "2"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.stdout == "False 2\n", result.stderr
