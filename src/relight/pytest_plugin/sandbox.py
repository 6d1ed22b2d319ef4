"""Implements the fixture `relight_sandbox`, used by tests to run a script on several hosts and
inject faults.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from relight.api.function import check_list, check_texts, time_limit
from relight.base import env as environment
from relight.base.errors import MachineError, UsageError
from relight.sandbox import access
from relight.sandbox.faults import read
from relight.sandbox.lab import lab_unavailable

_SHOWN = 5000


class SandboxResult(NamedTuple):
    """The result of a sandbox job. Each line of output begins with the name of the host that
    printed it.
    """

    exit_code: int
    stdout: str
    stderr: str


class SandboxRunner:
    """The callable that the fixture returns.

    Args:
        directory: the test's directory, where the faults file is written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(
        self,
        hosts: int,
        script: str | Path,
        *arguments: str | Path,
        flags: Sequence[str] = (),
        faults: Sequence[str] = (),
        timeout: float | None = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> SandboxResult:
        """Run a script on several hosts until the job ends, and return the result.

        Args:
            hosts: number of hosts.
            script: the training script, or a module or program if `flags` says so.
            arguments: the script's arguments.
            flags: `relight run` flags, such as `--max-restarts=3`.
            faults: lines in the format of a `--faults` file.
            timeout: the number of seconds after which the job is killed and the test fails, or None
                for no limit.
            env: additional variables for the job.

        Raises:
            UsageError: if an argument or a fault is invalid.
        """
        __tracebackhide__ = True
        limit_s = time_limit("timeout", timeout)
        if isinstance(hosts, bool) or not isinstance(hosts, int) or hosts < 1:
            raise UsageError(f"hosts={hosts!r}: expected the number of hosts, at least 1")
        check_list("faults", faults)
        check_texts(flags, {} if env is None else env)
        path = self._directory / "faults.txt"
        text = "\n".join(faults)
        read(text, "faults", hosts)  # a typo must not count as a failure of the job
        path.write_text(text, encoding="utf-8")
        words = [os.fspath(word) for word in (script, *arguments)]
        command = [sys.executable, "-m", "relight", "sandbox", str(hosts), f"--faults={path}",
                   *flags, "--", *words]  # fmt: skip
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**environment.read().variables, **(env or {})},
            start_new_session=True,  # on Ctrl-C, leaving this block stops the job
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=limit_s)
            except BaseException as error:
                process.kill()  # its hosts exit with it
                stdout, stderr = process.communicate()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                said = f"{stdout[-_SHOWN:]}\n{stderr[-_SHOWN:]}"
                pytest.fail(f"the job did not end within {limit_s:g} s\n{said}", pytrace=False)
        return SandboxResult(process.returncode, stdout, stderr)


def unavailable() -> str:
    """Return the reason why this machine doesn't support sandboxes, or an empty string if it
    does.
    """
    try:
        return "" if access.prefix() else lab_unavailable()
    except MachineError as error:
        return error.message
