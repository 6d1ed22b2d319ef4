"""C and C++ functions in stacks, if py-spy is available."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Launch

from relight.base.errors import EXIT_HUNG
from relight.stacks import py_spy as spy


def frame(name: str, module: str | None) -> dict[str, object]:
    """Return a frame as printed by py-spy 0.4.3."""
    return {
        "name": name, "filename": module or "/home/u/train.py", "module": module,
        "short_filename": "", "line": 0, "locals": None, "is_entry": True, "is_shim_entry": True,
    }  # fmt: skip


FRAMES = [
    frame("0x7f8db824524a", "/usr/lib/libc.so.6"),
    frame("pthread_cond_wait", "/usr/lib/libc.so.6"),
    frame("c10d::Work::wait", "/env/torch/lib/libtorch_cpu.so"),
    frame("pybind11::cpp_function::dispatcher", "/env/torch/lib/libtorch_python.so"),
    frame("all_reduce", None),
    frame("main", "/usr/lib/libc.so.6"),
]
NATIVE = ("pthread_cond_wait (libc.so.6)", "c10d::Work::wait (libtorch_cpu.so)")


@pytest.fixture
def py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a shell script named py-spy, with these lines, on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def write(text: str) -> None:
        (tmp_path / "py-spy").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "py-spy").chmod(0o755)

    return write


def dump_script(pid: str) -> str:
    threads = json.dumps([{"os_thread_id": "PID", "thread_name": "MainThread", "frames": FRAMES}])
    return f"""echo '{threads.replace('"PID"', "'" + pid + "'")}'"""


def test_native_frames_below_innermost_python_code_are_shown(
    py_spy: Callable[[str], None],
) -> None:
    py_spy(dump_script("$5"))
    assert spy.native(4711) == {4711: NATIVE}


@pytest.mark.parametrize(
    "text",
    ["exit 1", "echo", "echo '[{}]'", "echo 3", "exec sleep 60", """echo '[{"frames": [{}]}]'"""],
)
def test_unusable_py_spy_output_is_omitted(py_spy: Callable[[str], None], text: str) -> None:
    py_spy(text)
    assert spy.native(4711, limit_s=0.5) == {}


def test_native_frames_are_omitted_without_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert spy.native(os.getpid()) == {}


def test_hang_report_includes_native_frames(
    launch: Launch, script: Callable[[str], Path], py_spy: Callable[[str], None]
) -> None:
    py_spy(dump_script("$5"))
    path = script("import time\ntime.sleep(1000)\n")
    done = launch("run", "--hang-timeout=1", path, PATH=os.environ["PATH"])
    assert done.returncode == EXIT_HUNG, done.stderr
    lines = [line.strip() for line in done.stderr.splitlines()]
    first = lines.index(f'File "{path}", line 2, in <module>')
    assert lines[first + 1 : first + 3] == [f"in {each}" for each in reversed(NATIVE)]


def test_stacks_command_shows_native_frames_on_request(
    launch: Launch, py_spy: Callable[[str], None]
) -> None:
    py_spy(dump_script("$5"))
    command = [sys.executable, "-c", "print(flush=True)\nimport time; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            pid = str(process.pid)
            shown = launch("stacks", "--native", pid, PATH=os.environ["PATH"])
            plain = launch("stacks", pid, PATH=os.environ["PATH"])
            none = launch("stacks", "--native", pid, PATH="/usr/bin:/bin")
        finally:
            process.kill()
    assert f"    in {NATIVE[0]}\n" in shown.stdout, shown.stderr
    assert NATIVE[0] not in plain.stdout
    assert "py-spy is not on PATH" in none.stderr
    assert none.returncode == 0
