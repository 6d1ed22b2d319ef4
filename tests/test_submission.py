"""`relight.submit` and `relight.map` on this machine: functions as jobs, and their futures."""

import operator
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ALL_COMPLETED, CancelledError, as_completed, wait
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from conftest import LIMIT_S, clean_environment

import relight
from relight.api.function_results import RemoteTraceback
from relight.base.errors import RelightError, UsageError, WorkersFailedError
from relight.host import devices
from relight.job.app import AppState
from relight.runner.runner import Runner

LONG_S = 1000.0
HELPERS = """
    import os, time

    def alone(place):
        os.mkdir(place)
        time.sleep(0.05)
        os.rmdir(place)
        return place

    def meet(own, other):
        open(own, "w").close()
        while not os.path.exists(other):
            time.sleep(0.01)
        return own
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for job records; no job outlives the test."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield tmp_path / "state"
    with Runner() as runner:
        left = [job.handle for job in runner.list("local") if not job.state.is_over]
        for handle in left:
            runner.cancel(handle)
    assert not left


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The functions in HELPERS, in a module that workers can find."""
    (tmp_path / "sweep_helpers.py").write_text(textwrap.dedent(HELPERS))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sweep_helpers", raising=False)
    return __import__("sweep_helpers")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_future_provides_result_and_logs_of_job() -> None:
    future = relight.submit(print, "hello", "world", sep="-")
    assert future.result(LIMIT_S) is None
    assert future.logs() == "hello-world"
    assert future.exception() is None and future.done() and not future.running()
    assert Runner().status(future.handle).state is AppState.SUCCEEDED


def test_results_are_ordered_by_rank() -> None:
    """`result` is the result of rank 0."""
    future = relight.submit(os.getenv, "RANK", nproc_per_node=2)
    assert future.results(LIMIT_S) == ["0", "1"]
    assert future.result() == "0"


def test_worker_exception_is_raised_with_remote_traceback() -> None:
    future = relight.submit(int, "seven")
    with pytest.raises(ValueError, match=r"invalid literal.*seven") as caught:
        future.result(LIMIT_S)
    assert future.exception() is caught.value
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "ValueError: invalid literal" in str(caught.value.__cause__)
    (note,) = caught.value.__notes__
    assert note.startswith(f"{future.handle} FAILED: main/0 failed with exit code 1: rank 0 raised")


def test_killed_job_error_contains_reason() -> None:
    """The message is the headline of the failure report."""
    error = relight.submit(signal.raise_signal, 9).exception(LIMIT_S)
    assert isinstance(error, WorkersFailedError)
    assert "rank 0 was killed by SIGKILL" in error.message
    assert "relight logs local://" in error.hint


def test_rank_that_exits_before_returning_raises_error() -> None:
    error = relight.submit(os._exit, 0).exception(LIMIT_S)
    assert "rank 0 exited with 0 before _exit returned" in str(error)


def test_map_returns_futures_in_order() -> None:
    """`map` accepts iterables and keyword arguments; `as_completed` and `wait` take its futures."""
    futures = relight.map(operator.add, [1, 2, 3], (10, 20, 30), at_once=3)
    assert {each.result() for each in as_completed(futures, LIMIT_S)} == {11, 22, 33}
    assert wait(futures, LIMIT_S, ALL_COMPLETED).not_done == set()
    assert [each.result() for each in futures] == [11, 22, 33]
    assert [each.result(LIMIT_S) for each in relight.map(sorted, ["ab"], reverse=True)] == [
        ["b", "a"]
    ]
    assert relight.map(print, []) == []


def test_job_is_named_after_function() -> None:
    """The function may be a partial with bound arguments."""
    future = relight.submit(partial(partial(pow, 2), exp=5))
    assert future.result(LIMIT_S) == 32
    assert future.handle.startswith("local://relight/pow-")
    assert repr(future) == f"<relight.Future pow {future.handle} SUCCEEDED>"


def test_map_accepts_a_sequence_that_only_has_items() -> None:
    """An example is a map-style Dataset."""

    class Items:
        def __getitem__(self, index: int) -> int:
            return [4, 5][index]

    assert [each.result() for each in relight.map(abs, Items())] == [4, 5]  # type: ignore[arg-type]


def test_map_runs_at_most_requested_number_of_jobs_at_once(helpers: Any, tmp_path: Path) -> None:
    place = str(tmp_path / "place")
    futures = relight.map(helpers.alone, [place] * 2, at_once=1)
    assert [each.result(LIMIT_S) for each in futures] == [place] * 2


def test_map_runs_requested_number_of_jobs_in_parallel(helpers: Any, tmp_path: Path) -> None:
    """The first two can only end together, and the third starts when one of them has ended."""
    one, two, three = (str(tmp_path / name) for name in ("one", "two", "three"))
    futures = relight.map(helpers.meet, [one, two, three], [two, one, three], at_once=2)
    assert [each.result(LIMIT_S) for each in futures] == [one, two, three]


def test_running_job_can_be_cancelled() -> None:
    future = relight.submit(time.sleep, LONG_S)
    until(future.running)
    assert future.cancel() and future.cancelled() and not future.running()
    assert Runner().status(future.handle).state is AppState.CANCELLED
    with pytest.raises(CancelledError):
        future.result(LIMIT_S)
    assert list(as_completed([future], LIMIT_S)) == [future]
    assert future.cancel()


def test_finished_job_cannot_be_cancelled() -> None:
    future = relight.submit(abs, -1)
    assert future.result(LIMIT_S) == 1
    assert not future.cancel() and not future.cancelled()


def test_queued_call_can_be_cancelled_before_it_starts() -> None:
    """The next call takes its slot."""
    first, second, third = relight.map(time.sleep, [LONG_S, LONG_S, 0], at_once=1)
    assert (second.handle, second.logs()) == ("", "")
    assert second.cancel() and second.cancelled() and second.handle == ""
    assert first.cancel()
    assert third.result(LIMIT_S) is None


def test_job_cancelled_by_another_process_raises_error() -> None:
    future = relight.submit(time.sleep, LONG_S)
    Runner().cancel(future.handle)
    with pytest.raises(WorkersFailedError, match="CANCELLED: it was cancelled"):
        future.result(LIMIT_S)


def test_result_of_deleted_job_raises_error() -> None:
    future = relight.submit(time.sleep, LONG_S)
    Runner().delete(future.handle)
    assert isinstance(future.exception(LIMIT_S), RelightError)


def test_concurrent_jobs_get_separate_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of GPUs limits the jobs if nothing else does."""
    monkeypatch.setattr(devices, "gpu_names", lambda _: ["0", "1", "2", "3", "4"])
    names = ["CUDA_VISIBLE_DEVICES"] * 2
    futures = relight.map(os.getenv, names, resources={"gpu": 2})
    assert sorted(each.result(LIMIT_S) for each in futures) == ["0,1", "2,3"]
    with pytest.raises(UsageError, match="at_once=3 needs 6 GPUs, but there are only 5"):
        relight.map(os.getenv, names, resources={"gpu": 2}, at_once=3)


def test_future_created_from_handle_has_result() -> None:
    """Another session, for example, only has the handle."""
    handle = relight.submit(abs, -7).handle
    assert relight.attach(handle).result(LIMIT_S) == 7
    assert relight.attach(handle).result(LIMIT_S) == 7
    with pytest.raises(UsageError, match="was not started with relight"):
        relight.attach("local://relight/other-x7")


SESSION = """
    import time, relight
    if __name__ == "__main__":
        futures = relight.map(time.sleep, [1000, 1000], at_once=1, cfg={cfg})
        while not futures[0].running():
            time.sleep(0.02)
        print(futures[0].handle)
"""


@pytest.mark.parametrize("is_detached", [False, True])
def test_local_jobs_end_with_python_session_unless_detached(
    tmp_path: Path, *, is_detached: bool
) -> None:
    """Detached jobs continue; waiting calls never start."""
    path = tmp_path / "session.py"
    path.write_text(textwrap.dedent(SESSION.format(cfg={"detach": True} if is_detached else {})))
    result = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    with Runner() as runner:
        assert [job.handle for job in runner.list("local")] == [result.stdout.strip()]
        if is_detached:
            future = relight.attach(result.stdout.strip())
            until(future.running)
            assert future.cancel()
        assert runner.wait(result.stdout.strip(), LIMIT_S).state is AppState.CANCELLED


REFUSED = {
    "submit(abs, -1, 2)": ("abs", "takes exactly one|too many"),
    "submit('train.py')": ("", "can't be called"),
    "submit(abs, -1, nproc_per_nod=2)": ("abs", "nproc_per_nod"),
    "submit(abs, -1, nproc_per_node='x')": ("nproc-per-node=x", "expected a number"),
    "submit(abs, -1, max_restarts=-1)": ("max-restarts=-1", ""),
    "submit(abs, -1, max_retries=-1)": ("max_retries=-1", "at least 0"),
    "submit(abs, -1, nnodes=2)": ("nnodes=2", "scheduler=local has only one node"),
    "submit(abs, -1, env={'A': 1})": ("A=1", "expected a string"),
    "submit(abs, -1, flags=['--tea=3'])": ("--tea", "--tee"),
    "submit(abs, -1, flags=['x.py'])": ("x.py", "not a flag"),
    "submit(abs, -1, resources={'gpus': 1})": ("gpus", "did you mean gpu"),
    "submit(abs, -1, resources={'gpu': 'a'})": ("gpu", "expected a number"),
    "submit(abs, -1, resources='gpu.smal')": ("gpu.smal", ""),
    "submit(abs, -1, cfg='time=60')": ("cfg=", "a dict"),
    "submit(abs, -1, cfg={'tim': 1})": ("tim", "no option"),
    "submit(abs, -1, cfg={'workspace': '/'})": ("workspace", "can't use"),
    "submit(abs, -1, scheduler='slurm', cfg={'array': '0-9'})": ("array", "relight.map"),
    "submit(abs, -1, scheduler='slum')": ("slum", "slurm"),
    "submit(abs, -1, scheduler='aws_batch', cfg={'queue': 'q'})": (
        "aws_batch",
        "local, slurm, ssh",
    ),
    "submit(abs, -1, scheduler='slurm', hosts=['a'])": ("hosts", "slurm takes no hosts"),
    "submit(abs, -1, scheduler='ssh')": ("ssh", "needs hosts"),
    "submit(abs, -1, nnodes='1:2')": ("nnodes='1:2'", "a fixed number"),
    "submit(abs, -1, hosts='a,b')": ("hosts", "expected a list"),
    "submit(print, lock)": ("print", "can't be sent"),
    "map(abs)": ("equal length", ""),
    "map(max, [1], [2, 3])": ("equal length", "1, 2"),
    "map(abs, 5)": ("relight.map: 5 is not iterable", "pass a list"),
    "attach('unknown')": (
        "relight.attach: no such job: unknown",
        "pass future.handle; see relight list",
    ),
    "attach(5)": ("relight.attach: 5 is not a string", "pass future.handle"),
    "map(abs, [1], at_once=0)": ("at_once=0", "at least 1"),
    "map(abs, [1], at_once=2, hosts=['a'])": ("at_once=2 needs 2 hosts", "only 1"),
    "map(abs, [1, lock])": ("abs", "can't be sent"),
}


@pytest.mark.parametrize("call", REFUSED)
def test_error_names_invalid_argument(call: str, state: Path) -> None:
    """Nothing is started."""
    with pytest.raises(UsageError) as caught:
        eval(
            call,
            {
                "submit": relight.submit,
                "map": relight.map,
                "attach": relight.attach,
                "lock": Lock(),
            },
        )
    said = f"{caught.value.message} {caught.value.hint}"
    name, meaning = REFUSED[call]
    assert name in said
    assert any(each in said for each in meaning.split("|")), said
    assert not list(state.rglob("call"))


def test_job_that_fails_to_start_leaves_nothing_behind(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise UsageError("no")

    monkeypatch.setattr(Runner, "submit", fail)
    with pytest.raises(UsageError, match="no"):
        relight.map(abs, [1, 2])
    assert not any(path.is_file() for path in state.rglob("*"))
