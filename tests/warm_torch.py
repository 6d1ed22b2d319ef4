"""Jobs of torch whose workers are forked from a warm process: importing torch costs more than the
rest of such a job. All jobs of a test file share one process (docs/warm.md).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, PORTABLE, RELIGHT, clean_environment

_MODULES = "torch,torch._dynamo"
_TAKEN = "relight: preload: took the warm process "
_FORKED = "relight: preload: workers start with preloaded modules"
_PATIENT = (
    sys.executable, "-c",
    "from relight.host import warm_processes, warm_spawner\n"
    f"warm_processes.ANSWER_S = warm_spawner.ANSWER_S = {LIMIT_S}\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip
"""relight, which starts cold if a busy machine keeps the warm process from answering in 2 s."""
_MOST_REPEATED = 3

Result = subprocess.CompletedProcess[str]


class WarmTorch:
    """A warm process that has imported torch, for jobs of one script in one directory.

    Where relight has no warm processes, the jobs start cold.

    Args:
        place: the directory.

    Attributes:
        script: the jobs' script, which may have another text in each job.
        command: the beginning of a job's command line, to run in `place`.
        variables: the environment of the jobs.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.script = place / "train.py"
        warm = (*_PATIENT, "run", "-v", f"--preload={_MODULES}")
        self.command = (*RELIGHT, "run") if PORTABLE else warm
        self.variables = clean_environment(TMPDIR=str(place), OMP_NUM_THREADS="1")
        self._repeated = 0
        self.write("")
        self._start()

    def write(self, text: str) -> None:
        """Change the script's text, and remove all else in the directory."""
        for path in self.place.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.script.write_text(text)

    def run(self, text: str, run: Callable[[], list[Result]]) -> list[Result]:
        """Run a job; return the results of its agents, with stderr up to the failure report.

        If its workers were not forked from the warm process, which leaves when memory gets scarce,
        the job runs once more.

        Args:
            text: the script's.
            run: runs the job's agents to their end.
        """
        while True:
            self.write(text)
            results = run()
            if PORTABLE:
                return results
            if all(_TAKEN in result.stderr and _FORKED in result.stderr for result in results):
                return [_up_to_the_report(result) for result in results]
            self._repeated += 1
            said = "\n".join(result.stderr for result in results)
            assert self._repeated <= _MOST_REPEATED, f"the workers do not start warm:\n{said}"
            self._start()

    def stop(self) -> None:
        """End the process."""
        if not PORTABLE:
            self._warm("stop")

    def _start(self) -> None:
        """Start the process if it does not run."""
        if not PORTABLE:
            self._warm(
                "start", f"--keep-warm=while:{os.getpid()}", f"--preload={_MODULES}", self.script
            )

    def _warm(self, *words: str | Path) -> None:
        subprocess.run(
            [*RELIGHT, "warm", *words], cwd=self.place, env=self.variables, check=True,
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=LIMIT_S,
        )  # fmt: skip


def _up_to_the_report(result: Result) -> Result:
    """Remove what `-v` adds after the report."""
    before, exit_code, after = result.stderr.rpartition("\nexit code ")
    result.stderr = before + exit_code + after.partition("\n")[0]
    return result


@pytest.fixture(scope="module")
def warm_torch() -> Iterator[WarmTorch]:
    """One warm process for a test file."""
    with tempfile.TemporaryDirectory(prefix="job-", dir="/tmp") as path:
        torch = WarmTorch(Path(path))
        yield torch
        torch.stop()
