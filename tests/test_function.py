"""`relight.launch`: a function on every worker, results and exceptions back in the caller."""

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Start, clean_environment

Script = Callable[..., Path]


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run a script that uses relight.launch."""

    def run(text: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        path = tmp_path / "caller.py"
        path.write_text(textwrap.dedent(text))
        return subprocess.run(
            [sys.executable, path],
            cwd=tmp_path,
            env=clean_environment(OMP_NUM_THREADS="1", **variables),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


Call = Callable[..., "subprocess.CompletedProcess[str]"]


def test_results_by_rank(call: Call) -> None:
    """What each rank returns comes back in the order of ranks; arguments reach it."""
    result = call("""
        import os, relight
        factor = 10
        def work(a, *, b):
            return int(os.environ["RANK"]) * factor + a, b, os.environ["WORLD_SIZE"]
        print(relight.launch(work, 1, b="x", nproc_per_node=3))
    """)
    assert result.stdout == "[(1, 'x', '3'), (11, 'x', '3'), (21, 'x', '3')]\n", result.stderr


@pytest.mark.slow
def test_torch_workers_of_two_nodes(call: Call) -> None:
    """Workers of two agents on this machine are one group."""
    result = call("""
        import relight
        def work():
            import torch, torch.distributed as dist
            dist.init_process_group("gloo")
            x = torch.tensor([dist.get_rank()])
            dist.all_reduce(x)
            dist.destroy_process_group()
            return x.item()
        if __name__ == "__main__":
            print(relight.launch(work, nproc_per_node=2, nnodes=2))
    """)
    assert result.stdout.splitlines()[-1] == "[6, 6, 6, 6]", result.stderr


def test_an_exception_is_raised_in_the_caller(call: Call) -> None:
    """The exception of the rank that failed first, with its remote traceback as the cause."""
    result = call("""
        import os, time, relight
        class MyError(Exception):
            pass
        def inner(rank):
            if rank == 1:
                raise MyError("bad batch", 7)
            time.sleep(100)
        def work():
            inner(int(os.environ["RANK"]))
        try:
            relight.launch(work, nproc_per_node=2)
        except MyError as error:
            print(error.args, "in inner" in str(error.__cause__), flush=True)
            raise
    """)
    assert result.stdout == "('bad batch', 7) True\n"
    assert result.returncode == 1
    assert "RemoteTraceback" in result.stderr
    assert "caller.py" in result.stderr


def test_a_restart_counts_from_its_last_attempt(call: Call) -> None:
    """After a restart that succeeds there are results; otherwise the last attempt's exception."""
    result = call("""
        import os, relight
        def work(limit):
            count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            if count < limit:
                raise ValueError(count)
            return count
        print(relight.launch(work, 1, max_restarts=1))
        try:
            relight.launch(work, 9, max_restarts=2)
        except ValueError as error:
            print(error)
    """)
    assert result.stdout == "[1]\n2\n", result.stderr


def test_a_worker_that_is_killed(call: Call) -> None:
    """A worker that leaves no exception is an error of its own."""
    result = call("""
        import os, relight
        from relight.errors import WorkersFailedError
        try:
            relight.launch(os.kill, 0, 9, nproc_per_node=1)
        except WorkersFailedError as error:
            print("failed:", error)
    """)
    assert result.stdout.startswith("failed: relight run ended with exit code 137"), result.stderr


def test_what_can_not_travel(call: Call) -> None:
    """An argument that can't be pickled is refused before anything starts."""
    result = call("""
        import threading, relight
        from relight.errors import UsageError
        try:
            relight.launch(print, threading.Lock())
        except UsageError as error:
            print(error.message, "|", error.hint)
    """)
    assert "can't be sent to workers" in result.stdout
    assert "relight[notebook]" in result.stdout


def test_output_goes_to_the_streams_of_the_caller(call: Call) -> None:
    """As in a notebook, where sys.stdout is no file."""
    result = call("""
        import contextlib, io, relight
        with contextlib.redirect_stdout(io.StringIO()) as text:
            relight.launch(print, "hello", nproc_per_node=2)
        print(repr(text.getvalue()))
    """)
    assert result.stdout == "'hello\\nhello\\n'\n", result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_caller(number: int, start: Start, script: Script) -> None:
    """Ctrl-C, or kill -9 of the caller, ends the workers."""
    path = script("""
import os, time, relight
def work():
    open("pid", "w").write(str(os.getpid()))
    os.rename("pid", "pid.whole")
    time.sleep(100)
relight.launch(work)
""")
    caller = start(path, command=(sys.executable,))
    whole = path.parent / "pid.whole"
    wait(whole.exists)
    pid = int(whole.read_text())
    caller.send_signal(number)
    caller.wait(30)
    wait(lambda: not Path(f"/proc/{pid}").exists() or "Z" in state(pid))


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_importing_relight_costs_nothing() -> None:
    """`relight.launch` is loaded when it is used."""
    text = "import sys, relight; print('relight.function' in sys.modules, 'pickle' in sys.modules)"
    result = subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, check=True)
    assert result.stdout == b"False False\n"
