"""Gets stacks from py-spy if it is installed. py-spy is used for Python versions that this package
does not support, and for native stacks.

`py-spy dump --json` prints a list of threads with their frames, innermost first (py-spy 0.4,
src/dump.rs, src/stack_trace.rs). With `--nonblocking`, py-spy doesn't stop the process. In that
mode, py-spy can't match Python threads to system threads, so the main thread is identified by its
name. `--native` stops the process for a moment. In its output, a frame with a module is a C or C++
frame.
"""

import itertools
import json
import os
from typing import Any

from relight.base import env
from relight.core.diagnosis.stack_text import Frame, ThreadStack
from relight.processes import helper
from relight.stacks.process_memory import StackError
from relight.stacks.threads import Task

_LIMIT_S = 20.0
_MAX_NATIVE = 12
_MAX_NATIVE_PART = 100
"""The maximum length of a native function's name. C++ template names can be very long."""
_MAX_THREADS, _MAX_FRAMES, _MAX_CHARACTERS = 1000, 500, 1000


def dump(pid: int, tasks: list[Task]) -> tuple[ThreadStack, ...] | None:
    """Return the threads that py-spy reports for a process, or None if py-spy is not installed.

    Args:
        pid: the process.
        tasks: the process's threads.

    Raises:
        StackError: if py-spy can't read the process either.
    """
    if not is_installed():
        return None
    return parse(pid, _run(pid, "--nonblocking", _LIMIT_S), tasks)


def is_installed() -> bool:
    """Return whether py-spy is on PATH."""
    folders = (env.read().get("PATH") or os.defpath).split(os.pathsep)
    return any(os.access(os.path.join(folder, "py-spy"), os.X_OK) for folder in folders)


def native(pid: int, limit_s: float = _LIMIT_S) -> dict[int, tuple[str, ...]]:
    """Return the C and C++ functions that each thread's Python code is currently calling, innermost
    first. The result is empty if the functions can't be determined. If torch is loaded, the call
    takes seconds. It stops the process for a moment.

    Args:
        pid: the process. py-spy can't report on a process that is stopped.
        limit_s: the time limit.

    Returns:
        The functions, such as `c10d::Work::wait (libtorch_cpu.so)`, by system thread id.
    """
    if not is_installed():
        return {}
    try:
        found = json.loads(_run(pid, "--native", limit_s))[:_MAX_THREADS]
        return {int(each["os_thread_id"] or 0): _native(each["frames"]) for each in found}
    except (StackError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _native(frames: list[dict[str, Any]]) -> tuple[str, ...]:
    outside = itertools.takewhile(lambda frame: frame["module"] is not None, frames)
    named = [
        f"{str(frame['name'])[:_MAX_NATIVE_PART]} ({str(frame['module']).rpartition('/')[2]})"
        for frame in outside
        if not str(frame["name"]).startswith(("0x", "pybind11::"))
    ]
    return tuple(named[:_MAX_NATIVE])


def _run(pid: int, how: str, limit_s: float) -> bytes:
    """Return the output of `py-spy dump`.

    Raises:
        StackError: if py-spy can't read the process.
    """
    command = ["py-spy", "dump", "--json", how, "--pid", str(pid)]
    try:
        done = helper.run(command, env.read().variables, limit_s)
    except OSError as error:
        raise _failed(pid, str(error.strerror)) from None
    if done.exitcode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise _failed(pid, lines[-1][:200])
    return done.stdout


def parse(pid: int, output: bytes, tasks: list[Task]) -> tuple[ThreadStack, ...]:
    """Parse py-spy's output.

    Raises:
        StackError: if the format is unknown.
    """
    try:
        found = json.loads(output)[:_MAX_THREADS]
        return tuple(_thread(each, pid, tasks) for each in found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _failed(pid, "it printed output in an unknown format") from None


def _thread(found: dict[str, Any], pid: int, tasks: list[Task]) -> ThreadStack:
    name = str(found.get("thread_name") or "")
    native_id = int(found.get("os_thread_id") or (pid if name == "MainThread" else 0))
    task = next((task for task in tasks if task.native_id == native_id), None)
    frames = tuple(
        Frame(
            str(frame["filename"])[:_MAX_CHARACTERS],
            int(frame["line"]),
            str(frame["name"])[:_MAX_CHARACTERS],
        )
        for frame in found["frames"][:_MAX_FRAMES]
    )
    return ThreadStack(
        native_id,
        task.name if task else name[:_MAX_CHARACTERS],
        task.waits_in if task else "",
        native_id == pid,
        frames,
    )


def _failed(pid: int, why: str) -> StackError:
    return StackError(
        f"py-spy can't read process {pid}: {why}",
        hint="this requires sudo, CAP_SYS_PTRACE or sysctl kernel.yama.ptrace_scope=0",
    )
