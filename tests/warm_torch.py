"""Torch jobs whose workers are forked from a warm process: importing torch and finalizing the
interpreter cost more than the rest of such a job (docs/warm.md).
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from conftest import LIMIT_S, PORTABLE, RELIGHT, Launch, Start, clean_environment

_MODULES = "torch,torch._dynamo"
PATIENT = (
    sys.executable, "-c",
    "from relight.warm import warm_processes, warm_spawner\n"
    f"warm_processes.ANSWER_S = warm_spawner.ANSWER_S = {LIMIT_S}\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip
"""Relight that starts cold if, on a busy machine, the warm process doesn't respond within 2 s."""
_TRIES = 3
_COLD = "this worker is cold"
_IS_WARM = f"""import sys

if hasattr(sys.modules["__main__"], "__file__"):  # not in a process that the script spawns
    # Before a warm worker imports torch, its libraries are there.
    assert "libtorch" in open("/proc/self/maps").read(), "{_COLD}"
"""
_QUICK_EXIT = """import atexit, os, sys

def end():
    atexit.unregister(end)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if hasattr(sys, "last_type") else 0)

if hasattr(sys.modules["__main__"], "__file__"):
    atexit.register(end)
"""
"""A module that ends the script once all exit handlers have run, as relight ends workers that run a
function. Otherwise, Python would destroy the modules, which takes as long as importing them.
"""

Result = subprocess.CompletedProcess[str]
T = TypeVar("T")


def run_agents(
    command: tuple[str, ...], number: int, place: Path, variables: dict[str, str]
) -> list[Result]:
    """Run several instances of a command in one directory, and wait for them all."""
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


class TorchProcess:
    """A warm process with torch, one for each test process.

    It serves a single script path in one directory, whatever the script's text. Every script is
    therefore `train.py` in the same folder, empty at the start of each test.

    Args:
        folder: The directory of all jobs.

    Attributes:
        variables: The variables that are set for all of its jobs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
        self._pid = 0

    def start(self) -> None:
        """Start it, unless it is running; it ends when memory becomes scarce."""
        if PORTABLE or (self._pid and Path(f"/proc/{self._pid}").exists()):
            return
        made = subprocess.run(
            [*RELIGHT, "warm", "start", f"--keep-warm=while:{os.getpid()}",
             f"--preload={_MODULES}", "train.py"],
            cwd=self.folder, env=clean_environment(**self.variables), stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        said = re.search(r"pid (\d+)", made.stderr)
        assert made.returncode == 0 and said is not None, made.stderr
        self._pid = int(said[1])

    def forget(self) -> None:
        """Discard the warm process; the next job starts a new one."""
        self._pid = 0

    def clear(self) -> None:
        """Empty the folder, except for an empty script."""
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)  # a killed job may remove it as well
            else:
                entry.unlink(missing_ok=True)
        (self.folder / "train.py").touch()
        (self.folder / "is_warm.py").write_text("" if PORTABLE else _IS_WARM)
        (self.folder / "quick_exit.py").write_text(_QUICK_EXIT)


class WarmTorch:
    """Runs scripts on workers forked from a process with torch, and checks that they are.

    If relight lacks warm processes, the jobs start cold. A script must start with an empty line, a
    comment, or a simple statement.

    Args:
        process: The warm process with torch.
        launch: The fixture `launch`.
        start: The fixture `start`.

    Attributes:
        folder: The directory of all jobs.
    """

    def __init__(self, process: TorchProcess, launch: Launch, start: Start) -> None:
        self.folder = process.folder
        self._process = process
        self._launch = launch
        self._start = start
        process.clear()

    def run(
        self,
        text: str,
        *flags: str | Path,
        arguments: tuple[str, ...] = (),
        quick_exit: bool = True,
        **variables: str,
    ) -> Result:
        """Run a script to its end.

        Args:
            text: The script's text.
            flags: Flags for the agent.
            arguments: Arguments for the script.
            quick_exit: End the script as soon as its exit handlers have run. The script itself must
                not exit with an exit code.
            variables: Environment variables.
        """
        return self.once_warm(lambda: self._launch(
            *self._command(text, *flags, quick_exit=quick_exit), *arguments, command=(),
            cwd=self.folder, **{**self._process.variables, **variables},
        ), lambda result: result.stderr)  # fmt: skip

    def run_agents(
        self, number: int, text: str, *flags: str | Path, quick_exit: bool = True
    ) -> list[Result]:
        """Run a script on several agents until they end."""
        variables = clean_environment(**self._process.variables)

        def run() -> list[Result]:
            command = self._command(text, *flags, quick_exit=quick_exit)
            return run_agents(tuple(map(str, command)), number, self.folder, variables)

        return self.once_warm(run, lambda results: "".join(each.stderr for each in results))

    def once_warm(self, run: Callable[[], T], said: Callable[[T], str]) -> T:
        """Run a job, and repeat it while its workers start cold, because a warm process exits under
        memory pressure.

        Args:
            run: Runs the job.
            said: Returns the job's output, given the result.
        """
        for _ in range(_TRIES):
            result = run()
            if _COLD not in said(result):
                break
            self._process.forget()
        return result

    def begin(
        self,
        text: str,
        *flags: str | Path,
        quick_exit: bool = True,
        command: tuple[str, ...] = PATIENT,
        variables: dict[str, str] | None = None,
        **options: object,
    ) -> "subprocess.Popen[bytes]":
        """Start a script; `relight status` finds agents whose command is `RELIGHT`."""
        words = self._command(text, *flags, quick_exit=quick_exit, relight=command)
        return self._start(
            *words, command=(), cwd=self.folder,
            variables={**self._process.variables, **(variables or {})}, **options,
        )  # fmt: skip

    def _command(
        self,
        text: str,
        *flags: str | Path,
        quick_exit: bool,
        relight: tuple[str, ...] = PATIENT,
    ) -> tuple[str | Path, ...]:
        self._process.start()
        helpers = "is_warm, quick_exit" if quick_exit else "is_warm"
        (self.folder / "train.py").write_text(f"import {helpers}; {text}")  # keeps line numbers
        if PORTABLE:
            return (*RELIGHT, "run", *flags, "train.py")
        return (*relight, "run", f"--preload={_MODULES}", *flags, "train.py")
