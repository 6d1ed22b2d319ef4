"""`relight.launch`: run a function on every worker, and return results and exceptions."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start, clean_environment

import relight
from relight.api.function import check_call
from relight.api.function_hosts import append_result
from relight.base.errors import UsageError, WorkersFailedError

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
            timeout=LIMIT_S,
            check=False,
        )

    return run


Call = Callable[..., "subprocess.CompletedProcess[str]"]


def test_results_are_ordered_by_rank(call: Call) -> None:
    """Each rank receives the arguments."""
    result = call("""
        import os, relight
        factor = 10
        def work(a, *, b):
            return int(os.environ["RANK"]) * factor + a, b, os.environ["WORLD_SIZE"]
        print(relight.launch(work, 1, b="x", nproc_per_node=3))
    """)
    assert result.stdout == "[(1, 'x', '3'), (11, 'x', '3'), (21, 'x', '3')]\n", result.stderr


@pytest.mark.slow
def test_workers_on_two_agents_form_one_group(call: Call) -> None:
    """Both agents run on this machine."""
    result = call("""
        import os, relight
        def work():
            names = ("RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_PORT")
            return [os.environ[name] for name in names]
        first, second = relight.launch(work, nproc_per_node=1, nnodes=2)
        print(first[:3], second[:3], first[3] == second[3])
    """)
    said = "['0', '2', '2'] ['1', '2', '2'] True"
    assert result.stdout.splitlines()[-1] == said, result.stderr


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.needs_torch
def test_torch_workers_on_two_agents_form_one_group(call: Call) -> None:
    """Both agents run on this machine."""
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
            print(relight.launch(work, nproc_per_node=1, nnodes=2))
    """)
    assert result.stdout.splitlines()[-1] == "[1, 1]", result.stderr


def test_worker_exception_is_raised_in_caller(call: Call) -> None:
    """The exception is that of the first failed rank, with its remote traceback as the cause."""
    result = call("""
        import os, time, relight
        class MyError(Exception):
            pass
        def inner(rank):
            if rank == 1:
                raise MyError("bad batch", 7)
            time.sleep(1000)
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


def test_only_outcome_of_last_attempt_counts(call: Call) -> None:
    """A successful restart returns results; otherwise, the last attempt's exception is raised."""
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


def test_killed_worker_raises_workers_failed_error(call: Call) -> None:
    result = call("""
        import os, relight
        from relight.base.errors import WorkersFailedError
        try:
            relight.launch(os.kill, 0, 9, nproc_per_node=1)
        except WorkersFailedError as error:
            print("failed:", error)
    """)
    assert result.stdout.startswith("failed: relight run exited with code 137"), result.stderr


def test_unpicklable_argument_is_rejected_before_start(call: Call) -> None:
    result = call("""
        import threading, relight
        from relight.base.errors import UsageError
        try:
            relight.launch(print, threading.Lock())
        except UsageError as error:
            print(error.message, "|", error.hint)
    """)
    assert "can't be sent to workers" in result.stdout
    assert "pip install cloudpickle" in result.stdout


@pytest.fixture
def no_cloudpickle(tmp_path: Path) -> str:
    """A PYTHONPATH on which cloudpickle can't be imported, as if it weren't installed."""
    path = tmp_path / "no_cloudpickle"
    path.mkdir()
    (path / "cloudpickle.py").write_text("raise ModuleNotFoundError('no cloudpickle')")
    return str(path)


@pytest.mark.parametrize("installed", [True, False], ids=["cloudpickle", "no cloudpickle"])
def test_unpicklable_result_is_reported_on_one_line(
    call: Call, installed: bool, no_cloudpickle: str
) -> None:
    """The error names the rank and the reason, without one of relight's own tracebacks."""
    text = """
        import relight, threading
        from relight.base.errors import WorkersFailedError
        try:
            relight.launch(threading.Lock)
        except WorkersFailedError as error:
            print("caught", error, error.__cause__)
    """
    result = call(text, PYTHONPATH="" if installed else no_cloudpickle)
    assert result.stdout == (
        "caught what the function returned on rank 0 can't be sent: "
        "TypeError: cannot pickle '_thread.lock' object None\n"
    )
    assert "Traceback" not in result.stderr
    assert "cloudpickle" not in result.stderr


SCRIPT = """
import argparse, dataclasses, os, sys
import relight
@dataclasses.dataclass
class Point:
    x: int
class Lost(Exception):
    pass
def train(point):
    if point.x > 1:
        raise Lost(point)
    return Point(int(os.environ["RANK"]) + point.x), __name__, given.sum
parser = argparse.ArgumentParser()
parser.add_argument("--sum", type=int)
given = parser.parse_args()
if __name__ == "__main__":
    print(relight.launch(train, Point(1), nproc_per_node=2))
    try:
        relight.launch(train, Point(2))
    except Lost as error:
        print("lost", error)
"""


def test_functions_defined_in_script_need_no_cloudpickle(
    tmp_path: Path, no_cloudpickle: str
) -> None:
    """The arguments, results, and exceptions may use classes from the script. Workers import it as
    multiprocessing does, with the same command-line arguments.
    """
    (tmp_path / "package").mkdir()
    for name in ("caller", "package/__main__"):
        (tmp_path / f"{name}.py").write_text(SCRIPT)
    for how in (["caller.py"], ["-m", "package"]):
        result = subprocess.run([sys.executable, *how, "--sum=5"], cwd=tmp_path, text=True,
                                env=clean_environment(PYTHONPATH=no_cloudpickle), timeout=LIMIT_S,
                                capture_output=True, check=False)  # fmt: skip
        assert result.stdout.splitlines() == [
            "[(Point(x=1), '__mp_main__', 5), (Point(x=2), '__mp_main__', 5)]",
            "lost Point(x=2)",
        ], result.stderr


def test_unimportable_function_is_reported_on_one_line(
    call: Call, tmp_path: Path, no_cloudpickle: str
) -> None:
    """Scripts may lack a main guard, define functions below it, or not be files."""
    unguarded = """
        import relight
        def train(): ...
        relight.launch(train, nproc_per_node=2)
    """
    below = """
        import relight
        if __name__ == "__main__":
            def train(): ...
            relight.launch(train)
    """
    path = tmp_path / "caller.py"
    for text, said, hint in (
        (unguarded, f"{path} calls relight.launch when a worker imports it", "move the call"),
        (below, f"train is missing from {path} when a worker imports it", "define it above"),
    ):
        result = call(text, PYTHONPATH=no_cloudpickle)
        *_, error, what_to_do = result.stderr.splitlines()
        assert error == f"relight.base.errors.UsageError: {said}"
        assert what_to_do.startswith(f"hint: {hint}")
        assert "cloudpickle" in what_to_do
        assert result.stderr.count("Traceback") == 1
    for how in (["-c", textwrap.dedent(unguarded)], ["-"]):
        result = subprocess.run([sys.executable, *how], input=textwrap.dedent(unguarded), text=True,
                                env=clean_environment(PYTHONPATH=no_cloudpickle), timeout=LIMIT_S,
                                capture_output=True, check=False)  # fmt: skip
        assert "UsageError: train is defined in __main__, which workers can't" in result.stderr
        assert "hint: pip install cloudpickle" in result.stderr
        assert "exit code" not in result.stderr


def test_worker_output_goes_to_streams_of_caller(call: Call) -> None:
    """A notebook, for example, has a sys.stdout that isn't a file."""
    result = call("""
        import contextlib, io, relight
        with contextlib.redirect_stdout(io.StringIO()) as text:
            relight.launch(print, "hello", nproc_per_node=2)
        print(repr(text.getvalue()))
    """)
    assert result.stdout == "'hello\\nhello\\n'\n", result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_or_directory_outlives_caller(
    number: int, start: Start, script: Script, launch: Launch, tmp_path: Path
) -> None:
    """Ctrl-C or killing the caller ends the workers, and no directory is left. While the caller is
    alive, no other job removes its directory as abandoned.
    """
    path = script("""
import os, time, relight
def work():
    open("pid", "w").write(str(os.getpid()))
    os.rename("pid", "pid.whole")
    time.sleep(1000)
relight.launch(work)
""")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    caller = start(path, command=(sys.executable,), variables={"TMPDIR": str(scratch)})
    whole = path.parent / "pid.whole"
    wait(whole.exists)
    pid = int(whole.read_text())
    launch("run", "--no-python", "true", TMPDIR=str(scratch))
    assert list(scratch.glob("relight_*/call/0.begun"))
    caller.send_signal(number)
    caller.wait(LIMIT_S)
    wait(lambda: not Path(f"/proc/{pid}").exists() or "Z" in state(pid))
    wait(lambda: not list(scratch.iterdir()))


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_importing_relight_does_not_load_launch_function() -> None:
    """`relight.launch` is loaded on first use."""
    text = (
        "import sys, relight; print('relight.api.function' in sys.modules, 'pickle' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, check=True)
    assert result.stdout == b"False False\n"


def test_error_names_rank_that_exits_before_returning(call: Call) -> None:
    """The results of other ranks are never returned in its place. A rank that exits with 0 before
    the function returns is named, even if the function returned in an earlier attempt.
    """
    result = call("""
        import os, sys, relight
        from relight.base.errors import WorkersFailedError
        rank = lambda: int(os.environ["RANK"])
        def leaves(who, how):
            if rank() in who:
                how(0)
            return rank()
        def leaves_later():
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                if rank() == 1:
                    import time
                    while not any(name.startswith("0.result") for name in kept()):
                        time.sleep(0.01)
                    raise ValueError("again")
            elif rank() == 0:
                os._exit(0)
            return rank()
        def kept():
            return os.listdir(sys.orig_argv[-1])
        def fails_after():
            if rank() == 0:
                sys.exit(0)
            import time; time.sleep(0.5)
            raise KeyError("the cause")
        def attempt(*args, **flags):
            try:
                print(relight.launch(*args, nproc_per_node=2, **flags))
            except BaseException as error:
                cause = str(error.__cause__).strip().splitlines()[-1:]
                print(type(error).__name__, *error.args, cause)
        attempt(leaves, [0], os._exit)
        attempt(leaves, [0, 1], sys.exit)
        attempt(leaves_later, max_restarts=1)
        attempt(fails_after)
        attempt(leaves, [], None)
    """)
    assert result.stdout.splitlines() == [
        "WorkersFailedError rank 0 exited with 0 before leaves returned ['None']",
        "WorkersFailedError ranks 0 and 1 exited with 0 before leaves returned ['SystemExit: 0']",
        "WorkersFailedError rank 0 exited with 0 before leaves_later returned ['None']",
        "KeyError the cause [\"KeyError: 'the cause'\"]",
        "[0, 1]",
    ], result.stderr


REFUSED = {
    "nproc_per_nod=2": ("train takes no nproc_per_nod", "did you mean nproc_per_node?"),
    "timeout=2": ("train takes no timeout", "relight.launch takes: "),
    "rdzv_backend='c10d'": ("train takes no rdzv_backend", "flags=['--rdzv-backend=…']"),
    "1, 2, 3": ("too many positional arguments", ""),
    "": ("train: missing a required argument: 'lr'", ""),
    "1, nnodes='1:2'": ("nnodes='1:2'", "a fixed number of nodes"),
    "1, nnodes=0": ("nnodes=0", "at least 1"),
    "1, nnodes=2.0": ("nnodes=2.0", "a number"),
    "1, max_restarts='x'": ("max_restarts='x'", "a number"),
    "1, nproc_per_node='two'": ("nproc_per_node='two'", "expected a number"),
    "1, nproc_per_node=0": ("nproc_per_node=0", "at least 1 worker"),
    "1, flags='--tee=3'": ("flags='--tee=3'", "flags=['--tee=3']"),
    "1, hosts='a,b'": ("hosts='a,b'", "hosts=['a', 'b']"),
    "1, env={'A': 1}": ("env: A=1", "a string"),
    "1, env=['A']": ("env=['A']", "a dict of strings"),
    "1, env={1: 'a'}": ("1 is not a variable name",),
    "1, flags=None": ("flags=None", "a list of strings"),
    "1, flags=[1]": ("flags=[1]: 1 is not a string",),
    "1, hosts=[1]": ("hosts=[1]: 1 is not a string",),
    "1, hosts=5": ("hosts=5", "a list of strings"),
    "1, ssh=5": ("ssh=5", "a dict of options"),
    "1, nnodes=float('inf')": ("nnodes=inf", "a number"),
    "1, max_restarts=float('nan')": ("max_restarts=nan", "a number"),
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_invalid_argument_is_rejected(arguments: str) -> None:
    """The error names the argument and suggests a correction, before anything starts."""

    def train(lr: float, epochs: int = 1) -> None:
        raise AssertionError

    with pytest.raises(UsageError) as caught:
        eval(f"launch(train, {arguments})", {"launch": relight.launch, "train": train})
    for part in REFUSED[arguments]:
        assert part in "".join(traceback.format_exception_only(caught.value))


def test_usage_error_is_raised_instead_of_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The exception contains the error and the remedy, and nothing is printed. A worker that exits
    with 2 is not treated as a usage error.
    """
    with pytest.raises(UsageError) as caught:
        relight.launch(print, flags=["--tea=3"])
    said = "".join(traceback.format_exception_only(caught.value))
    assert "unknown flag: --tea" in said
    assert "\nhint: did you mean --tee?" in said
    assert capsys.readouterr().err == ""
    with pytest.raises(WorkersFailedError, match="relight run exited with code 2"):
        relight.launch(os._exit, 2)


def test_misspelled_launch_options_are_rejected_despite_kwargs() -> None:
    """A function with **options receives them all, except near misses of relight.launch's own
    names. For a decorated function, the decorator's parameters count.
    """

    def free(**options: object) -> None: ...

    def device_first(device: str, lr: float) -> None: ...

    @functools.wraps(device_first)
    def wrapped(*args: object, **options: object) -> None: ...

    check_call(free, (), {"timeout": 2, "role": "x", "max_retries": 1})
    check_call(wrapped, (0.1,), {})
    check_call(functools.partial(free, host="x"), (), {})
    check_call(print, ("a",), {"end": ""})
    for name, meant in (("nproc_per_nod", "nproc_per_node"), ("host", "hosts")):
        with pytest.raises(UsageError, match=f"{name} would be passed to free") as caught:
            check_call(free, (), {name: 2})
        assert f"did you mean {meant}?" in caught.value.hint
        assert "functools.partial" in caught.value.hint
    with pytest.raises(UsageError, match="can't be called"):
        relight.launch("train.py")  # type: ignore[arg-type]


def test_remote_host_cannot_write_outside_job_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only files with the names of results are kept, whatever a host sends."""
    here = tmp_path / "job" / "0"
    (tmp_path / "job").mkdir()
    names = ("../escaped", "../../escaped", "/tmp/x", "1.result/../../x", "1.result\n", "",
             "call.pickle", "1.pickle", "-1.result", "1.results", "9999999999.result")  # fmt: skip
    for name in names:
        append_result(str(here), name, "QQ==")
    append_result(str(here), "1.result", "no base64")
    assert [path.name for path in tmp_path.rglob("*")] == ["job"]
    assert (
        capsys.readouterr().err.count("from a host, because it is not a result") == len(names) + 1
    )
    append_result(str(here), "1.result", "QQ==")
    append_result(str(here), "1.result", "Qg==")
    assert (here / "1.result").read_bytes() == b"AB"
