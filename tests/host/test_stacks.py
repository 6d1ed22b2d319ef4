"""Python stacks of real processes, read from outside, for each installed CPython."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S

from relight.base.errors import UsageError
from relight.core.diagnosis.printed_traceback import Program
from relight.core.diagnosis.stack_text import (
    SHUTTING_DOWN,
    Frame,
    ProcessStack,
    ThreadStack,
    main_thread,
    waits_for_children,
)
from relight.host import system
from relight.host.loop import Loop
from relight.stacks import native, rank_processes
from relight.stacks.dump import take, take_all
from relight.stacks.process_memory import StackError
from relight.stacks.sampler import MainThread
from relight.stacks.threads import process_state
from relight.stacks.worker_state import doing, inspect_program, lost_loader, stuck_loader

VERSIONS = Path.home() / ".pyenv" / "versions"
PYTHONS = {
    "3.11": VERSIONS / "3.11.7/bin/python",
    "3.12": VERSIONS / "3.12.1/bin/python",
    "3.13": VERSIONS / "3.13.0/bin/python",
    "3.14": VERSIONS / "3.14.0/bin/python",
    "the system's": Path("/usr/bin/python3.11"),
}
OLD = VERSIONS / "3.10.13/bin/python"

Run = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> Path:
    path = PYTHONS[request.param]
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run a script until it has printed `up`."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(python: Path, text: str, name: str = "script.py", *arguments: str) -> object:
        script = tmp_path / name
        script.write_text(text)
        command = [str(python), "-u", str(script), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield begin  # type: ignore[misc]
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def until(pid: int, holds: Callable[[ProcessStack], bool]) -> ProcessStack:
    """Read a process until its stack fulfils a condition, and return it."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = take(pid)
        if holds(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def main_of(stack: ProcessStack) -> ThreadStack:
    """Return the main thread (always the first)."""
    assert stack.threads[0].is_main
    assert stack.threads[0].native_id == stack.pid
    return stack.threads[0]


def lines(frames: tuple[Frame, ...]) -> list[tuple[str, int, str]]:
    return [(os.path.basename(file), line, function) for file, line, function in frames]


def wait_inside(pid: int, function: str, line: int = 0) -> list[tuple[str, int, str]]:
    """Wait until the main thread's innermost frame is in this function, and on this line if given.
    Return its frames.
    """

    def holds(stack: ProcessStack) -> bool:
        frames = main_of(stack).frames
        return bool(frames) and frames[0].function == function and line in (0, frames[0].line)

    return lines(main_of(until(pid, holds)).frames)


SLEEPS = """\
import time

def rest():
    print("up")
    time.sleep(
        600,
    )

def outer(): rest()

outer()
"""


def test_sleeping_function_is_shown_with_callers_innermost_first(python: Path, run: Run) -> None:
    process = run(python, SLEEPS)
    assert wait_inside(process.pid, "rest", 5) == [
        ("script.py", 5, "rest"),
        ("script.py", 9, "outer"),
        ("script.py", 11, "<module>"),
    ]


POOL = """\
import multiprocessing, os, time

def read(number):
    print("up")
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context("{how}")
    with context.Pool(3) as pool:
        pool.map(read, [1])
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_child_process_that_worker_is_waiting_for_is_shown(
    python: Path, run: Run, how: str
) -> None:
    """The other two children are idle. A forked child has its parent's frames."""
    process = run(python, POOL.format(how=how))
    try:
        until(process.pid, waits_for_children)
        deadline = time.monotonic() + LIMIT_S
        while (
            ", whose child process is in "
            not in (found := doing({0: process.pid}, are_frozen=False)[0]).place
        ):
            assert time.monotonic() < deadline, found
        assert re.fullmatch(
            r" in \w+ \(script\.py:10\), whose child process is in read \(script\.py:5\)",
            found.place,
        )
        assert re.fullmatch(
            r"its loader process \d+ was in read \(script\.py:5\)(, system call \w+)?",
            stuck_loader(process.pid),
        )
        (begin,) = [n for n, line in enumerate(found.stack) if line.startswith("child process ")]
        assert found.stack[-1].endswith('script.py", line 5, in read')
        assert len([line for line in found.stack[begin:] if "script.py" in line]) == 1
    finally:
        process.send_signal(signal.SIGSTOP)  # the pool would replace killed processes
        while process_state(process.pid) not in ("T", "Z"):
            time.sleep(0.001)
        for pid in system.tree(process.pid):
            os.kill(pid, signal.SIGKILL)


LOADERS = """\
import os, sys, time
for name, how in (("other", "_exit"), ("pt_data_worker", sys.argv[1])):
    if not (pid := os.fork()):
        with open("/proc/self/comm", "w") as comm:
            comm.write(name)
        os.kill(os.getpid(), 9) if how == "kill" else os._exit(3 if name == "other" else int(how))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print("up")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("how", "expected"),
    [("kill", "was killed by SIGKILL"), ("3", "exited with code 3"), ("0", "")],
)
def test_dead_loader_process_is_found_until_the_worker_reaps_it(
    run: Run, how: str, expected: str
) -> None:
    process = run(Path(sys.executable), LOADERS, "script.py", how)
    pattern = rf"its DataLoader worker process \d+ {expected}" if expected else ""
    assert re.fullmatch(pattern, lost_loader(process.pid))


UNINTERRUPTIBLE = """\
import ctypes
libc = ctypes.CDLL(None)
stack = ctypes.create_string_buffer(1 << 16)
top = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 15))
print("up")
libc.clone(libc.pause, top, 0x4000 | 17, None)  # CLONE_VFORK, SIGCHLD: as for vfork(2)
"""


def test_system_call_of_uninterruptible_process_is_shown(python: Path, run: Run) -> None:
    """The process's memory may be locked, so it is only read in a separate thread."""
    process = run(python, UNINTERRUPTIBLE)
    deadline = time.monotonic() + LIMIT_S
    while process_state(process.pid) != "D":
        assert time.monotonic() < deadline
    try:
        found = doing({0: process.pid}, are_frozen=False)
        assert found[0].place == " is uninterruptible (state D), system call clone"
        loop, done = Loop(), []
        assert native.add(loop, {0: process.pid}, found, lambda: done.append(True))
        loop.run_until(lambda: bool(done), LIMIT_S)
        assert found[0].place == (
            " is uninterruptible (state D) in <module> (script.py:6), system call clone"
        )
        loop.close()
    finally:
        for pid in system.tree(process.pid):
            os.kill(pid, signal.SIGKILL)


HANDLES = """\
import json, time

class Bad(Exception):
    pass

def numbers():
    yield 1
    print("up")
    time.sleep(600)

def raises(depth):
    if depth:
        raises(depth - 1)
    {how}

try:
    raises(2)
{block}:
    for _ in numbers():
        pass
"""


@pytest.mark.parametrize("block", ["except Exception", "finally"])
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ('raise ValueError("corrupt record 77")', "ValueError: corrupt record 77"),
        ('raise Bad("ä", 7, None)', "Bad: ('ä', 7, …)"),
        ("raise Bad(-5)", "Bad: -5"),
        ("raise Bad", "Bad"),
        ("{}['lr']", "KeyError: 'lr'"),
        ("open('/no/such')", "FileNotFoundError: [Errno 2] No such file or directory: '/no/such'"),
        ('raise Bad("first\\nsecond")', "Bad: first"),
        ("raises(-1)", "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_handled_exception_is_shown_with_its_location(
    python: Path, run: Run, how: str, block: str, expected: str
) -> None:
    process = run(python, HANDLES.format(how=how, block=block))
    wait_inside(process.pid, "numbers", 9)
    found = doing({0: process.pid}, are_frozen=False)[0]
    assert found.handling == expected
    where = "script.py:13" if "Recursion" in expected else "script.py:14"
    assert os.path.basename(found.handling_where) == where


def test_exception_from_library_is_located_at_the_users_call(python: Path, run: Run) -> None:
    process = run(python, HANDLES.format(how='json.loads("{")', block="finally"))
    wait_inside(process.pid, "numbers", 9)
    found = doing({0: process.pid}, are_frozen=False)[0]
    assert found.handling.startswith("JSONDecodeError: Expecting property name")
    assert os.path.basename(found.handling_where) == "script.py:14"


def test_previously_handled_exception_is_not_shown(python: Path, run: Run) -> None:
    text = "try:\n    {}['lr']\nexcept KeyError:\n    pass\n"
    process = run(python, text + SLEEPS)
    wait_inside(process.pid, "rest")
    assert doing({0: process.pid}, are_frozen=False)[0].handling == ""


def look(pid: int) -> tuple[str, str]:
    """Return a process's state and its main thread's location, as seen in the second of two quick
    checks.
    """
    thread = MainThread(pid)
    thread.look()
    state, frames = thread.look()
    thread.close()
    return state, frames[0].function


def test_quick_stack_check_agrees_with_full_stack(python: Path, run: Run) -> None:
    process = run(python, SLEEPS)
    wait_inside(process.pid, "rest", 5)
    assert look(process.pid) == ("S", "rest")


def test_system_call_of_waiting_thread_is_shown(python: Path, run: Run) -> None:
    process = run(python, SLEEPS)
    found = until(process.pid, lambda stack: main_of(stack).waits_in != "")
    assert (found.state, main_of(found).waits_in) in [("S", "clock_nanosleep"), ("S", "select")]
    assert main_of(found).name.startswith("python")


def test_stack_across_two_files_shows_both_files(python: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text(
        "import time\nclass Loader:\n    def get(self, function):\n        function()\n"
    )
    text = "import part, time\ndef wait():\n    print('up')\n    time.sleep(600)\n\n"
    process = run(python, text + "part.Loader().get(wait)\n")
    assert wait_inside(process.pid, "wait", 4) == [
        ("script.py", 4, "wait"),
        ("part.py", 4, "Loader.get"),
        ("script.py", 6, "<module>"),
    ]


def test_stack_includes_generators(python: Path, run: Run) -> None:
    text = """\
import time
def numbers():
    yield 1
    print("up")
    time.sleep(600)
def more():
    yield from numbers()
for number in more():
    pass
"""
    process = run(python, text)
    assert wait_inside(process.pid, "numbers", 5) == [
        ("script.py", 5, "numbers"),
        ("script.py", 7, "more"),
        ("script.py", 8, "<module>"),
    ]


def test_stack_includes_coroutines(python: Path, run: Run) -> None:
    text = """\
import asyncio, time
async def inner():
    await asyncio.sleep(0)
    print("up")
    time.sleep(600)
async def outer():
    await inner()
asyncio.run(outer())
"""
    found = wait_inside(run(python, text).pid, "inner", 5)
    assert found[:2] == [("script.py", 5, "inner"), ("script.py", 7, "outer")]
    assert found[-1] == ("script.py", 8, "<module>")
    assert any(file == "base_events.py" for file, _, _ in found)


def test_thread_blocked_on_lock_is_shown_alongside_main_thread(python: Path, run: Run) -> None:
    text = """\
import threading, time
lock = threading.Lock()
lock.acquire()
def blocked():
    print("up")
    with lock:
        pass
threading.Thread(target=blocked).start()
lock.acquire()
"""
    process = run(python, text)
    found = until(
        process.pid,
        lambda stack: (
            {lines(t.frames)[0] for t in stack.threads if t.frames}
            == {("script.py", 6, "blocked"), ("script.py", 9, "<module>")}
        ),
    )
    assert lines(main_of(found).frames) == [("script.py", 9, "<module>")]
    (other,) = found.threads[1:]
    assert other.native_id != process.pid
    assert other.frames[-1].function == "Thread._bootstrap"


def test_stack_of_stopped_process_is_readable_and_marked_stopped(python: Path, run: Run) -> None:
    process = run(python, SLEEPS)
    wait_inside(process.pid, "rest", 5)
    process.send_signal(signal.SIGSTOP)
    found = until(process.pid, lambda stack: stack.state == "T")
    assert lines(main_of(found).frames)[0] == ("script.py", 5, "rest")


def test_stack_of_process_blocked_on_a_pipe_is_readable(python: Path, run: Run) -> None:
    text = "import os\ndef load(fd):\n    return os.read(fd, 1)\nprint('up')\nload(0)\n"
    process = run(python, text)
    assert wait_inside(process.pid, "load", 3) == [
        ("script.py", 3, "load"),
        ("script.py", 5, "<module>"),
    ]
    assert until(process.pid, lambda stack: main_of(stack).waits_in == "read")


def test_stack_of_process_holding_gil_in_c_code_is_readable(python: Path, run: Run) -> None:
    text = "def total():\n    return sum(range(10**15))\nprint('up')\ntotal()\n"
    process = run(python, text)
    assert wait_inside(process.pid, "total", 2) == [
        ("script.py", 2, "total"),
        ("script.py", 4, "<module>"),
    ]


def test_stack_of_running_process_is_readable(python: Path, run: Run) -> None:
    """Its frames change while they are being read."""
    text = """\
def leaf(n):
    return n * 2
def branch(n):
    return leaf(n) + leaf(n + 1)
def loop():
    while True:
        branch(1)
print("up")
loop()
"""
    process = run(python, text)
    wait_inside(process.pid, "leaf")
    known = {"leaf", "branch", "loop", "<module>"}
    for _ in range(100):
        functions = [frame.function for frame in main_of(take(process.pid)).frames]
        assert set(functions) <= known
        assert functions[-1] == "<module>"


def test_main_thread_appears_once_while_other_threads_start(python: Path, run: Run) -> None:
    """In 3.11, a thread that is about to start has the id of the thread that starts it."""
    text = """\
import threading
def loop():
    while True:
        thread = threading.Thread(target=len, args=("x",))
        thread.start()
        thread.join()
print("up")
loop()
"""
    process = run(python, text)
    until(process.pid, lambda stack: any(f.function == "loop" for f in main_of(stack).frames))
    for _ in range(100):
        found = take(process.pid)
        assert main_of(found).frames[-1].function == "<module>"
        assert not any(thread.is_main for thread in found.threads[1:])


@pytest.mark.parametrize("letter", ["é", "λ", "𐐀"], ids=["latin-1", "2 bytes", "4 bytes"])
def test_non_ascii_function_names_are_decoded(python: Path, run: Run, letter: str) -> None:
    """In PEP 393, a str uses 1, 2 or 4 bytes per character."""
    name = letter
    text = f"import time\ndef {name}():\n    print('up')\n    time.sleep(600)\n{name}()\n"
    process = run(python, text, f"{letter}.py")
    assert wait_inside(process.pid, name, 4) == [
        (f"{letter}.py", 4, name),
        (f"{letter}.py", 5, "<module>"),
    ]


def test_deep_stack_is_truncated_after_500_frames(python: Path, run: Run) -> None:
    text = """\
import sys, time
sys.setrecursionlimit(5000)
def down(n):
    if n:
        down(n - 1)
    print("up")
    time.sleep(600)
down(2000)
"""
    process = run(python, text)
    found = wait_inside(process.pid, "down", 7)
    assert found == [("script.py", 7, "down")] + [("script.py", 5, "down")] * 499


def test_forked_process_has_its_own_stack_and_main_thread(python: Path, run: Run) -> None:
    text = """\
import os, time
def child():
    print("up")
    time.sleep(600)
if os.fork() == 0:
    child()
os.wait()
"""
    process = run(python, text)
    (pid,) = [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children")
              .read_text().split()]  # fmt: skip
    try:
        assert wait_inside(pid, "child", 4)[0] == ("script.py", 4, "child")
        assert look(pid) == ("S", "child")
    finally:
        os.kill(pid, signal.SIGKILL)


def test_correct_line_is_shown_in_long_function(python: Path, run: Run) -> None:
    """Its lines are far apart, go backwards, or span several rows (locations.md)."""
    filler = "\n" * 5000
    text = f"""\
import time
def far(seconds):
    a = [
        number
        for number in range(3)]
    {filler}
    if a: print(
        "up")
    for _ in a: {filler and ""}
        time.sleep(
            seconds)
far(600)
"""
    process = run(python, text)
    expected = text.splitlines().index("        time.sleep(") + 1
    assert wait_inside(process.pid, "far", expected)[1] == ("script.py", expected + 2, "<module>")


def test_zombie_has_no_threads() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        deadline = time.monotonic() + LIMIT_S
        while (found := None if _state(process.pid) != "Z" else take(process.pid)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert found == ProcessStack(process.pid, "Z", ())


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_exited_process_raises_stack_error() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(StackError, match=f"process {process.pid} has ended"):
        take(process.pid)


def test_process_exiting_during_read_yields_stack_or_stack_error() -> None:
    for _ in range(10):
        with subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(0.02)"]) as process:
            while process.poll() is None:
                try:
                    take(process.pid)
                except StackError as error:
                    assert str(process.pid) in error.message


def test_non_python_process_raises_stack_error() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            with pytest.raises(StackError, match="is not a Python process") as raised:
                take(process.pid)
            assert raised.value.hint
        finally:
            process.kill()


@pytest.mark.skipif(not OLD.exists(), reason=f"{OLD} is not installed")
def test_error_states_unsupported_python_version(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")  # no py-spy
    process = run(OLD, SLEEPS)
    with pytest.raises(StackError, match=r"older than 3\.11") as raised:
        take(process.pid)
    assert "pip install py-spy" in raised.value.hint


@pytest.mark.parametrize("pid", [0, -1, 1 << 31, 1 << 80])
def test_invalid_pid_raises_stack_error(pid: int) -> None:
    with pytest.raises(StackError, match="is not the pid"):
        take(pid)


AS_NOBODY = """
import os, sys
from relight.stacks.dump import take, StackError
os.setgid(65534)
os.setuid(65534)
try:
    take(int(sys.argv[1]))
except StackError as error:
    print(error.message, "|", error.hint)
"""


@pytest.mark.needs_root
def test_permission_error_suggests_a_remedy(run: Run) -> None:
    process = run(Path(sys.executable), SLEEPS)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(process.pid)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},  # without py-spy
    )
    assert (
        f"not permitted to read the memory of process {process.pid}: Permission denied"
        in done.stdout
    )
    assert "kernel.yama.ptrace_scope" in done.stdout
    assert "CAP_SYS_PTRACE" in done.stdout


def test_unreadable_ranks_are_reported_with_a_reason(run: Run) -> None:
    process = run(Path(sys.executable), SLEEPS)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    found = take_all({0: process.pid, 7: ended.pid})
    assert isinstance(found[0], ProcessStack)
    reason = found[7]
    assert isinstance(reason, str)
    assert f"process {ended.pid} has ended" in reason


SPY = """#!/bin/sh
echo '[{"pid": 1, "thread_id": 2, "thread_name": "Thread-1", "os_thread_id": null,
"active": true, "owns_gil": false, "frames": []},
{"pid": 1, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": null,
"active": true, "owns_gil": false, "frames": [{"name": "rest", "filename": "script.py",
"module": null, "short_filename": "script.py", "line": 5, "locals": null, "is_entry": true,
"is_shim_entry": false}]}]'
"""


@pytest.mark.skipif(not OLD.exists(), reason=f"{OLD} is not installed")
def test_py_spy_is_used_for_unknown_python_versions(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample output is from py-spy 0.4.1."""
    (tmp_path / "py-spy").write_text(SPY)
    (tmp_path / "py-spy").chmod(0o755)
    process = run(OLD, SLEEPS)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = take(process.pid)
    assert main_of(found).frames == (Frame("script.py", 5, "rest"),)


@pytest.mark.parametrize("output", ["", "[", "{}", "[1]", '[{"frames": [{}]}]', "null"])
@pytest.mark.skipif(not OLD.exists(), reason=f"{OLD} is not installed")
def test_unexpected_py_spy_output_raises_stack_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    (tmp_path / "py-spy").write_text(f"#!/bin/sh\necho '{output}'\n")
    (tmp_path / "py-spy").chmod(0o755)
    process = run(OLD, SLEEPS)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match="py-spy can't read"):
        take(process.pid)


RANKS = """
import os, subprocess, sys, time
children = []
for rank in ("0", "3"):
    command = [sys.executable, "-c", '''
import subprocess, sys, time
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
time.sleep(600)
''']
    if rank == "3":
        command = ["sh", "-c", '"$@"; true', "sh", *command]
    child = subprocess.Popen(command, env={**os.environ, "RANK": rank}, stdout=subprocess.PIPE)
    child.stdout.readline()
    children.append(child)
print("up", flush=True)
time.sleep(600)
"""


def test_python_process_inside_shell_wrapper_is_found_as_rank(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank's child processes also have RANK in their environment."""
    monkeypatch.delenv("RANK", raising=False)
    process = run(Path(sys.executable), RANKS)
    try:
        found = rank_processes.below(process.pid)
        assert sorted(found) == [0, 3]
        assert system.parent_pid(found[0]) == process.pid
        shell = system.parent_pid(found[3])
        assert system.parent_pid(shell) == process.pid
    finally:
        for pid in system.tree(process.pid):
            os.kill(pid, signal.SIGKILL)


def test_job_with_duplicate_ranks_requires_an_agent_pid(run: Run) -> None:
    """Each of a job's roles has its own ranks."""
    text = """\
import os, subprocess, sys, time
command = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"]
variables = {**os.environ, "RANK": "0", "RELIGHT_JOB_ID": "local://relight/roles-1"}
for _ in range(2):
    child = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE)
    child.stdout.readline()
print("up")
time.sleep(600)
"""
    process = run(Path(sys.executable), text)
    try:
        with pytest.raises(UsageError, match="are both rank 0") as raised:
            rank_processes.find_job_ranks("local://relight/roles-1")
        assert "pass an agent's pid" in raised.value.hint
        assert rank_processes.find_job_ranks("local://relight/roles-2") == {}
    finally:
        for pid in system.tree(process.pid):
            os.kill(pid, signal.SIGKILL)


ENDS = """\
import atexit, sys, threading, time
def slow():
    print("up")
    time.sleep(600)
{how}
raise ValueError("last")
"""


@pytest.mark.parametrize(
    "how",
    [
        "atexit.register(slow)",
        "threading.Thread(target=slow).start()",
        "sys.excepthook = lambda *_: slow()",
    ],
)
def test_worker_waiting_at_exit_counts_as_shutting_down(python: Path, run: Run, how: str) -> None:
    """This includes waiting for threads, and for whatever prints the exception."""
    process = run(python, ENDS.format(how=how))
    # A stack that was read while it changed may lack the frame of the module.
    until(process.pid, lambda _: inspect_program(process.pid) is Program.ENDS)


AFTER_PYTHON = """\
import ctypes
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.pause, None, None)
print("up")
"""


def test_worker_counts_as_shutting_down_after_interpreter_shutdown(python: Path, run: Run) -> None:
    """It may still be running the destructors of C++ libraries."""
    process = run(python, AFTER_PYTHON)
    until(process.pid, lambda stack: stack.is_finalizing and not main_thread(stack))
    assert doing({0: process.pid}, are_frozen=False)[0].place == SHUTTING_DOWN


def test_running_worker_is_not_finalizing(python: Path, run: Run) -> None:
    process = run(python, SLEEPS)
    wait_inside(process.pid, "rest")
    assert not take(process.pid).is_finalizing


def test_worker_importing_site_does_not_count_as_shutting_down(
    python: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('up', flush=True)\ninput()\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(
        [python, "-c", ""], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        state = doing({0: process.pid}, are_frozen=False)[0]
        process.kill()
    assert state.in_program


@pytest.mark.parametrize("name", ["script.py", "__main__.py"])
def test_worker_running_its_program_does_not_count_as_shutting_down(
    python: Path, run: Run, name: str
) -> None:
    process = run(python, SLEEPS, name)
    wait_inside(process.pid, "rest")
    assert inspect_program(process.pid) is Program.RUNS


def test_state_of_non_python_worker_is_unknown_until_it_exits() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        assert inspect_program(process.pid) is Program.UNSEEN
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert inspect_program(process.pid) is Program.LEFT
    finally:
        process.kill()
        process.wait()
    assert inspect_program(process.pid) is Program.LEFT


def test_worker_state_is_unknown_without_proc_filesystem(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS, none of those paths exists."""
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert inspect_program(gone.pid) is Program.UNSEEN


def test_no_ranks_are_found_for_job_id_with_undecodable_bytes() -> None:
    """A command line may contain any bytes, which used to cause an internal error."""
    assert rank_processes.find_job_ranks("local://relight/\udcff") == {}
