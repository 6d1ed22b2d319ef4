"""`relight.run`: a job in a longer-lived program, as a child process and in-process."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start, clean_environment

import relight
from relight import RunSpec
from relight.base.errors import UsageError
from relight.events.event_types import Event, Formed

TRAIN = """
import os, signal, sys, time
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
sys.stdout.write(" ".join(["rank", str(rank), *sys.argv[1:]]) + "\\n")  # print writes in parts
if "fail" in sys.argv and rank == 1 and restart == 0:
    raise ValueError("bad batch")
if "wait" in sys.argv:
    time.sleep(600)
"""
BEGIN = """
import os, resource, signal, sys, threading
import relight
from relight.events import WorkerStarted
from relight.host import linux as system
in_process = sys.argv[1] == "in process"
spec = relight.RunSpec("train.py", nproc_per_node=2, flags=["--shutdown-timeout=3"])
"""
MODES = pytest.mark.parametrize("mode", ["as a child", "in process"])
Caller = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def caller(tmp_path: Path) -> Caller:
    """Run a program that calls relight.run."""
    (tmp_path / "train.py").write_text(TRAIN)

    def run(text: str, mode: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "caller.py").write_text(BEGIN + textwrap.dedent(text))
        return subprocess.run(
            [sys.executable, "caller.py", mode], cwd=tmp_path, timeout=LIMIT_S, text=True,
            check=False, capture_output=True, env=clean_environment(OMP_NUM_THREADS="1"),
        )  # fmt: skip

    return run


@MODES
def test_job_result_has_exit_codes_restarts_and_cause(caller: Caller, mode: str) -> None:
    result = caller(
        """
        import json
        def told(args, **more):
            found = relight.run(spec._replace(args=args, **more), in_process=in_process)
            cause = found.cause
            return [found.exit_code, found.reason, found.exit_codes, found.restarts,
                    cause and [cause.rank, cause.report.type, cause.report.message],
                    [each.rank for each in found.failures if not each.stop_signal],
                    found.report[:1]]
        print(json.dumps(told(["--", "a"])))
        print(json.dumps(told(["fail"], max_restarts=1)))
        print(json.dumps(told(["fail", "wait"])))
        """,
        mode,
    )
    lines = result.stdout.splitlines()
    assert sorted(lines[:2]) == ["rank 0 -- a", "rank 1 -- a"]
    good, again, bad = (json.loads(line) for line in lines if line.startswith("["))
    assert good == [0, "all workers succeeded", {"0": 0, "1": 0}, 0, None, [], []], result.stderr
    assert again == [0, "all workers succeeded", {"0": 0, "1": 0}, 1, None, [], []]
    reason = bad.pop(1)
    assert reason.startswith("rank 1 raised ValueError: bad batch (at /")
    assert bad == [
        1, {"0": -15, "1": 1}, 0, [1, "ValueError", "bad batch"], [1],
        ["rank 1 raised ValueError: bad batch"],
    ]  # fmt: skip


def test_failures_have_timestamps_and_are_ordered_by_time(tmp_path: Path) -> None:
    """`at` counts back from the time of the node's report, so clocks need not agree."""
    (tmp_path / "train.py").write_text(TRAIN)
    began = time.time()
    result = relight.run(RunSpec(str(tmp_path / "train.py"), ["fail", "wait"], nproc_per_node=2))
    assert result.cause is not None
    assert result.cause.at < 0
    first, second = sorted(result.failures, key=lambda each: each.at)
    assert (first.rank, first.stop_signal, second.rank) == (1, 0, 0)
    assert first.at < second.at <= 0
    for each in (result.cause, *result.failures):
        when = datetime.strptime(each.when, "%Y-%m-%d %H:%M:%S%z").timestamp()
        assert began - 1 <= when <= time.time()


@MODES
def test_job_leaves_nothing_behind_in_calling_program(caller: Caller, mode: str) -> None:
    """No descriptor, thread, child, or handler is left, and no worker is running, whether the job
    succeeds, times out, or is interrupted, or on_event raises.
    """
    result = caller(
        """
        def mine():
            names = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
            descriptors = {os.readlink(name) for name in names if os.path.exists(name)}
            handlers = [signal.getsignal(each) for each in sorted(signal.valid_signals())]
            return (descriptors, handlers, threading.enumerate(), system.children(),
                    system.is_subreaper(), resource.getrlimit(resource.RLIMIT_NOFILE))
        signal.set_wakeup_fd(wakeup := os.pipe2(os.O_NONBLOCK)[1])
        before, pids = mine(), []
        def on_event(event):
            if isinstance(event, WorkerStarted):
                pids.append(event.pid)
                if event.local_rank == 1:
                    act()
        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)
        def fail():
            raise LookupError
        wait = ["wait"]
        for act, args, limit in (
            (bool, [], float("inf")), (bool, wait, 0.5), (interrupt, wait, None), (fail, wait, None)
        ):
            try:
                found = relight.run(spec._replace(args=args), on_event=on_event,
                                    timeout_s=limit, in_process=in_process)
                print(found.exit_code, found.timed_out, found.reason)
            except BaseException as error:
                print(type(error).__name__)
            assert mine() == before, (mine(), before)
        assert signal.set_wakeup_fd(-1) == wakeup
        print(len(pids) >= 6, [pid for pid in pids if system.is_running(pid)])
        """,
        mode,
    )
    assert [line for line in result.stdout.splitlines() if "rank" not in line] == [
        "0 False all workers succeeded",
        "124 True stopped after 0.5 s (timeout_s)",
        "KeyboardInterrupt",
        "LookupError",
        "True []",
    ], result.stderr


@pytest.mark.parametrize("args", [[], ["fail"]], ids=["succeeds", "fails"])
def test_short_in_process_job_leaves_no_status_socket_open(caller: Caller, args: list[str]) -> None:
    """Otherwise, its status socket would stay open in a program that continues."""
    result = caller(
        f"""
        from relight.agent.agent import Agent
        show_end = Agent._show_end
        def ends_slowly(agent, *end):
            show_end(agent, *end)
            agent.loop.run_until(lambda: False, 1.2)
        Agent._show_end = ends_slowly
        def sockets():
            paths = [f"/proc/self/fd/{{each}}" for each in os.listdir("/proc/self/fd")]
            names = [os.readlink(path) for path in paths if os.path.lexists(path)]
            return [name for name in names if name.startswith("socket")]
        before = sockets()
        relight.run(spec._replace(args={args!r}), in_process=True)
        print(sockets() == before)
        """,
        "in process",
    )
    assert result.stdout.endswith("True\n"), result.stderr


def test_signal_handler_of_caller_runs_after_job_has_stopped(caller: Caller) -> None:
    """In-process, the agent handles the signal first, then calls the program's own handler once."""
    result = caller(
        """
        signal.signal(signal.SIGTERM, lambda *_: print("terminated"))
        def on_event(event):
            if isinstance(event, WorkerStarted) and event.local_rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
        spec = spec._replace(args=["wait"])
        print(relight.run(spec, on_event=on_event, in_process=True).exit_code)
        """,
        "in process",
    )
    assert result.stdout.splitlines()[-2:] == ["terminated", "143"], result.stderr


def test_in_process_job_is_rejected_when_unsafe(caller: Caller) -> None:
    """In-process jobs need the main thread, no other threads or children, and no --preload."""
    result = caller(
        """
        import subprocess
        def attempt(**fields):
            try:
                relight.run(spec._replace(**fields), in_process=True)
            except relight.base.errors.UsageError as error:
                print(error, "|", error.hint)
        attempt(flags=["--preload=json"])
        wait = threading.Event()
        for target in (attempt, wait.wait):
            thread = threading.Thread(target=target, name="reader")
            thread.start()
            if target is attempt:
                thread.join()
        attempt()
        wait.set()
        thread.join()
        child = subprocess.Popen(["sleep", "100"])
        attempt()
        child.kill()
        child.wait()
        """,
        "in process",
    )
    hint = "| without it, the agent is a child"
    assert result.stdout.splitlines() == [
        f"in_process=True: the --preload process needs a separate agent {hint}",
        f"in_process=True: only the main thread receives signals {hint}",
        f"in_process=True: this program has threads (reader), and the agent forks {hint}",
        "in_process=True: this program has child processes, which the agent might mistake for "
        "workers " + hint,
    ], result.stderr


REFUSED = {
    "'train.py'": ("takes a RunSpec", "relight.RunSpec("),
    "RunSpec('nowhere.py')": ("no such file: nowhere.py", ""),
    "RunSpec('train.py', flags=['--tea=3'])": ("unknown flag: --tea", "did you mean --tee?"),
    "RunSpec('train.py', flags=['other.py'])": ("'other.py' is not a flag", "script"),
    "RunSpec('train.py', flags='--tee=3')": ("flags='--tee=3'", "flags=['--tee=3']"),
    "RunSpec('train.py', 'a b')": ("args='a b'", "args=['a', 'b']"),
    "RunSpec('train.py', [1])": ("args=[1]: 1 is not a string", "'1'"),
    "RunSpec('train.py', min_nodes=4, max_nodes=2)": ("--nnodes=4:2", "--nnodes=2:4"),
    "RunSpec('train.py', nproc_per_node='two')": ("--nproc-per-node=two", "a number"),
    "RunSpec('train.py', env={'A': 1})": ("env: A=1", "a string"),
    "RunSpec('train.py', env=None)": ("env=None", "a dict of strings"),
    "RunSpec('train.py', env={'A=B': ''})": ("'A=B' is not a variable name",),
    "RunSpec('train.py', env={'A': '\\0'})": ("env: A='\\x00'", "a NUL character"),
    "RunSpec('train.py', flags=[1])": ("flags=[1]: 1 is not a string", "'1'"),
    "RunSpec('train.py', flags=None)": ("flags=None", "a list of strings"),
    "RunSpec('train.py', module='yes')": ("module='yes'", "True or False"),
    "RunSpec('train.py', max_restarts=1.5)": ("--max-restarts=1.5", "a whole number"),
    "RunSpec(5)": ("script=5", "'5'"),
    "RunSpec('train.py'), on_event=3": ("on_event=3", "a function with one argument"),
    "RunSpec('train.py'), timeout_s=0": (
        "timeout_s=0",
        "above 0",
        "use timeout_s=None for no limit",
    ),
    "RunSpec('train.py'), timeout_s=-1": ("timeout_s=-1", "above 0"),
    "RunSpec('train.py'), timeout_s=float('nan')": ("timeout_s=nan", "above 0"),
    "RunSpec('train.py'), timeout_s=float('-inf')": ("timeout_s=-inf", "above 0"),
    "RunSpec('train.py'), timeout_s=1e300": ("timeout_s=1e+300", "at most 2000000"),
    "RunSpec('train.py'), timeout_s='5'": ("timeout_s='5'", "expected seconds"),
    "RunSpec('train.py'), timeout_s=True": ("timeout_s=True", "expected seconds"),
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_invalid_job_spec_is_rejected(arguments: str) -> None:
    """No worker starts, and the message is the same as from `relight run`."""
    with pytest.raises(UsageError) as caught:
        eval(f"run({arguments})", {"run": relight.run, "RunSpec": RunSpec})
    for part in REFUSED[arguments]:
        assert part in "".join(traceback.format_exception_only(caught.value))


def test_two_threads_can_run_two_nodes_of_one_job(tmp_path: Path) -> None:
    """Each gets its own node's events; output goes to sys.stdout, as in a notebook."""
    (tmp_path / "train.py").write_text(TRAIN)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{sock.getsockname()[1]}"
    spec = RunSpec(str(tmp_path / "train.py"), min_nodes=2, max_nodes=4, rdzv_backend="c10d",
                   rdzv_endpoint=endpoint, rdzv_id="two", flags=["--rdzv-conf=last_call_timeout=1"],
                   env={"RELIGHT_TOKEN": "secret", "OMP_NUM_THREADS": "1"})  # fmt: skip
    events: list[list[Event]] = [[], []]
    results: list[relight.RunResult] = []
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        threads = [
            threading.Thread(target=lambda seen=seen: results.append(
                relight.run(spec, on_event=seen.append, timeout_s=LIMIT_S)
            ))
            for seen in events
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(text.getvalue().splitlines()) == ["rank 0", "rank 1"]
    assert sorted(list(result.exit_codes.items()) for result in results) == [[(0, 0)], [(1, 0)]]
    formed = [event for seen in events for event in seen if isinstance(event, Formed)]
    assert {event.world_size for event in formed} == {2}


def test_workers_end_when_caller_is_killed(start: Start, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "caller.py").write_text(
        textwrap.dedent("""
        import relight
        relight.run(relight.RunSpec("train.py", ["wait"]), on_event=lambda event: print(
            getattr(event, "pid", ""), flush=True))
    """)
    )
    program = start("caller.py", command=(sys.executable,))
    assert program.stdout is not None
    pid = 0
    while not pid:
        pid = int(program.stdout.readline().strip() or b"0")
    program.send_signal(signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_job_returns_result_even_if_agent_is_killed(tmp_path: Path) -> None:
    """No exception is raised, and nothing keeps waiting for the agent."""
    (tmp_path / "train.py").write_text(TRAIN)

    def kill(event: Event) -> None:
        if isinstance(event, Formed):
            (agent,) = (
                int(pid)
                for thread in os.listdir("/proc/self/task")
                for pid in Path(f"/proc/self/task/{thread}/children").read_text().split()
                if b"relight.__main__" in Path(f"/proc/{pid}/cmdline").read_bytes()
            )
            os.kill(agent, signal.SIGKILL)

    result = relight.run(RunSpec(str(tmp_path / "train.py"), ["wait"]), on_event=kill)
    assert result.exit_code == 137
    assert result.reason.endswith("was killed by SIGKILL")


def test_caller_with_closed_stdout_gets_result(tmp_path: Path) -> None:
    """A daemon's stdout is closed; worker output is then discarded."""
    (tmp_path / "train.py").write_text("print('trained')")
    program = (
        "import os, sys, relight\n"
        "os.close(1)\n"
        "sys.stderr.write(str(relight.run(relight.RunSpec('train.py')).exit_code))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "0"), done.stderr


def test_write_errors_on_sys_stdout_do_not_disturb_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output is still read, even if there is more than a pipe holds."""
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint('x' * 1_000_000)\nsys.exit(5)")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    assert relight.run(relight.RunSpec(str(script))).exit_code == 5


def test_failed_in_process_job_leaks_no_file_descriptors(caller: Caller) -> None:
    """Descriptors are closed even if the garbage collector never runs."""
    result = caller(
        """
        import gc
        gc.disable()
        print(relight.run(spec._replace(args=["fail", "wait"]), in_process=True).exit_code)
        before = os.listdir("/proc/self/fd")
        relight.run(spec._replace(args=["fail", "wait"]), in_process=True)
        print(os.listdir("/proc/self/fd") == before)
        """,
        "in process",
    )
    assert [x for x in result.stdout.splitlines() if x in ("1", "True")] == ["1", "True"], result


REAPS = """
import os, signal, sys
import relight
if sys.argv[1] == "ignores":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
else:
    def reap(*_):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
    signal.signal(signal.SIGCHLD, reap)
def fails():
    raise ValueError("on purpose")
result = relight.run(relight.RunSpec("fails.py", nproc_per_node=1))
print(result.exit_code, result.exit_codes)
print(relight.run(relight.RunSpec("ends.py", nproc_per_node=1)).exit_code)
try:
    relight.launch(fails, nproc_per_node=1)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["ignores", "reaps"])
def test_failure_is_detected_whatever_caller_does_with_sigchld(tmp_path: Path, how: str) -> None:
    """Otherwise, `subprocess` would report exit code 0 for each child."""
    (tmp_path / "fails.py").write_text("import sys; sys.exit(3)\n")
    (tmp_path / "ends.py").write_text("")
    (tmp_path / "program.py").write_text(REAPS)
    result = subprocess.run(
        [sys.executable, "program.py", how], cwd=tmp_path, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert result.stdout.splitlines() == ["3 {0: 3}", "0", "on purpose"], result.stderr


BUSY = """
import os, relight, signal, subprocess, time

class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        while not os.path.exists("pid"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
subprocess.Popen = Popen

def work():
    open("new", "w").write(str(os.getpid()))
    os.rename("new", "pid")
    time.sleep(600)

if __name__ == "__main__":
    try:
        if {is_function}:
            relight.launch(work, nproc_per_node=1)
        else:
            relight.run(relight.RunSpec("work.py"))
    except KeyboardInterrupt:
        print(os.path.exists("/proc/" + open("pid").read()))
"""
"""Simulates a machine so busy that workers run before the caller knows the agent has started."""


@pytest.mark.parametrize("is_function", [False, True], ids=["run", "launch"])
def test_ctrl_c_while_agent_is_starting_stops_workers(tmp_path: Path, is_function: bool) -> None:
    (tmp_path / "busy.py").write_text(BUSY.format(is_function=is_function))
    (tmp_path / "work.py").write_text("import busy\nbusy.work()\n")
    result = subprocess.run(
        [sys.executable, "busy.py"], cwd=tmp_path, env=clean_environment(), text=True,
        capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert result.stdout == "False\n", result.stderr
