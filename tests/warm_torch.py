"""Jobs of torch whose workers are forked from a warm process: importing torch costs more than the
rest of such a job. All jobs of a test file share one process (docs/warm.md).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
_QUICK_EXIT = """import atexit, os, sys

def end():
    atexit.unregister(end)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if hasattr(sys, "last_type") else 0)

if hasattr(sys.modules["__main__"], "__file__"):  # not in a process that the script spawns
    atexit.register(end)
"""
"""A module that ends the script when all exit handlers have run, as relight ends the workers of a
function. Python would go on to destroy the modules, which takes as long as to import them.
"""
_MOST_REPEATED = 3

Result = subprocess.CompletedProcess[str]


def run_agents(
    command: tuple[str, ...], number: int, place: Path, variables: dict[str, str]
) -> list[Result]:
    """Run a command several times at once, to the end, in one directory."""
    agents = [
        subprocess.Popen(
            command, cwd=place, env=variables, text=True, errors="surrogateescape",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for _ in range(number)
    ]  # fmt: skip
    try:
        said = [agent.communicate(timeout=LIMIT_S)[1] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()
    return [
        Result(command, agent.returncode, stderr=text)
        for agent, text in zip(agents, said, strict=True)
    ]


class WarmTorch:
    """A warm process that has imported torch, for jobs of one script in one directory.

    Where relight has no warm processes, the jobs start cold.

    Args:
        place: the directory.

    Attributes:
        script: the jobs' script, which may have another text in each job.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.script = place / "train.py"
        warm = (*_PATIENT, "run", "-v", f"--preload={_MODULES}")
        self._command = (*RELIGHT, "run") if PORTABLE else warm
        self._variables = clean_environment(TMPDIR=str(place), OMP_NUM_THREADS="1")
        self._repeated = 0
        self._write("")
        self._start()

    def run(self, text: str, *flags: str, agents: int = 1, quick_exit: bool = True) -> list[Result]:
        """Run a job; return the results of its agents, with stderr up to the failure report.

        If its workers were not forked from the warm process, which leaves when memory gets scarce,
        the job runs once more.

        Args:
            text: the script's.
            flags: those of each agent.
            agents: how many there are.
            quick_exit: end the script as soon as its exit handlers have run. It must not exit with
                a code of its own.
        """
        command = (*self._command, *flags, str(self.script))
        while True:
            self._write(f"import quick_exit; {text}" if quick_exit else text)  # the same lines
            results = run_agents(command, agents, self.place, self._variables)
            if PORTABLE:
                return results
            if all(_TAKEN in result.stderr and _FORKED in result.stderr for result in results):
                return [_up_to_the_report(result) for result in results]
            self._repeated += 1
            said = "\n".join(result.stderr for result in results)
            assert self._repeated <= _MOST_REPEATED, f"the workers do not start warm:\n{said}"
            self._start()

    def stop(self) -> None:
        """End the process, if it has not ended."""
        if not PORTABLE:
            self._warm("stop")

    def _write(self, text: str) -> None:
        """Change the script's text, and remove all else in the directory."""
        for path in self.place.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        (self.place / "quick_exit.py").write_text(_QUICK_EXIT)
        self.script.write_text(text)

    def _start(self) -> None:
        """Start the process if it does not run."""
        if not PORTABLE:
            until = f"--keep-warm=while:{os.getpid()}"
            started = self._warm("start", until, f"--preload={_MODULES}", str(self.script))
            assert started.returncode == 0, started.stderr

    def _warm(self, *words: str) -> Result:
        return subprocess.run(
            [*RELIGHT, "warm", *words], cwd=self.place, env=self._variables, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
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
