"""`relight debug` on a process that has not called breakpoint() explains the requirements."""

import subprocess
import sys

from conftest import Launch

from relight.base.errors import EXIT_MACHINE


def test_hint_for_debug_mentions_breakpoint_and_required_python_version(launch: Launch) -> None:
    command = [sys.executable, "-c", "print(flush=True)\nimport time; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            done = launch("debug", str(process.pid))
        finally:
            process.kill()
    assert done.returncode == EXIT_MACHINE
    assert "hint: put breakpoint() in the script" in done.stderr
    can_attach = sys.version_info >= (3, 14)
    assert ("python -m pdb -p PID" if can_attach else "requires Python 3.14") in done.stderr
