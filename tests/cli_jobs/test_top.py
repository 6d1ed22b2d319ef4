"""`relight top`: its view of jobs, and its keys."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, RELIGHT, Start, clean_environment
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, RichLog, Static

from relight.base.errors import MachineError, UsageError
from relight.cli import inspect as cli
from relight.cli.inspect import top as command
from relight.cli.inspect import top_view
from relight.cli.inspect.top_view import _LOOKING, ConfirmScreen, OutputScreen, TopView
from relight.core.status.charts import Progress
from relight.core.status.snapshot import Chart, RankUse
from relight.inspect import gpus, top_rows
from relight.inspect.top_rows import JobLook, Row, SampleHistory
from relight.job.app import AppState
from relight.job.handles import Handle, to_handle
from relight.job.status import AppStatus, ReplicaStatus

from .conftest import Command


def replica(
    rank: int, use: RankUse | None = None, *, host: str = "a", line: str = "", **others: Any
) -> ReplicaStatus:
    state = others.pop("state", AppState.RUNNING)
    return ReplicaStatus("default", rank, state, host, last_line=line, use=use, **others)


def job(*replicas: ReplicaStatus, name: str = "train-1", **others: Any) -> JobLook:
    status = AppStatus(others.pop("state", AppState.RUNNING), replicas=replicas, **others)
    return JobLook(f"run://relight/{name}", status)


def rates(*uses: RankUse) -> list[tuple[float | None, float | None]]:
    """Return the steps per second and CPUs shown after each sample."""
    looks = SampleHistory()
    rows = [looks.rows([job(replica(0, use))])[0] for use in uses]
    return [(row.rate, row.cpu) for row in rows]


# The view.


def test_rates_are_unknown_until_the_second_sample() -> None:
    looks = RankUse(10.0, 5.0, 0, 100, 0.0), RankUse(12.0, 8.0, 0, 120, 0.0)
    assert rates(*looks) == [(None, None), (10.0, 1.5)]


def test_step_rate_is_measured_between_step_completions() -> None:
    """A step takes 4 s and is sampled every 3 s. What counts is when the steps end, not when they
    are sampled.
    """
    looks = [RankUse(at, 0.0, 0, int(at // 4), at % 4) for at in (9.0, 12.0, 15.0)]
    assert [rate for rate, _ in rates(*looks)] == [None, 0.25, 0.25]


def test_step_rate_of_stalled_rank_drops_to_zero() -> None:
    looks = [RankUse(float(at), 0.0, 0, min(at, 5), max(0.0, at - 5.0)) for at in range(40)]
    assert rates(*looks)[-1][0] == 0.0


@pytest.mark.parametrize("later", [RankUse(12.0, 1.0, 0, 120), RankUse(12.0, 6.0, 0, 3)])
def test_restart_resets_measured_rates(later: RankUse) -> None:
    assert rates(RankUse(10.0, 5.0, 0, 100), later)[-1] == (None, None)


def test_rank_without_reported_steps_has_no_step_rate() -> None:
    assert rates(RankUse(10.0, 5.0, 0), RankUse(12.0, 6.0, 0))[-1] == (None, 0.5)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("rank", [0, 1, 2, 10]),
        ("state", [10, 0, 1, 2]),
        ("host", [2, 0, 1, 10]),
        ("step", [2, 1, 0, 10]),
        ("rate", [1, 2, 0, 10]),
        ("cpu", [0, 2, 1, 10]),
        ("memory", [1, 0, 2, 10]),
    ],
)
def test_every_sort_order_lists_most_notable_ranks_first(order: str, expected: list[int]) -> None:
    def row(rank: int, host: str, state: str, *values: Any) -> Row:
        return Row("run://relight/x-1", "default", rank, host, state, *values, "")

    rows = [
        row(10, "b", "FAILED", None, None, None, None),
        row(0, "b", "RUNNING", 30, 3.0, 2.0, 200),
        row(1, "b", "RUNNING", 20, 1.0, 0.5, 300),
        row(2, "a", "RUNNING", 10, 2.0, 1.0, 100),
    ]
    assert [row.rank for row in top_rows.ordered(rows, order)] == expected
    known = [rank for rank in expected if rank != 10]
    if order in ("step", "rate", "cpu", "memory"):  # unknown values stay last
        reverse = top_rows.ordered(rows, order, reverse=True)
        assert [row.rank for row in reverse] == [*known[::-1], 10]


def test_columns_without_values_are_omitted() -> None:
    rows = SampleHistory().rows([job(replica(0, line="hello"))])
    assert top_rows.table(rows) == (
        ["REPLICA", "HOST", "STATE", "LAST LINE"],
        [["rank 0", "a", "RUNNING", "hello"]],
    )


def test_pending_job_has_one_row_and_running_job_one_per_rank() -> None:
    use = RankUse(1.0, 1.0, 3 << 30, 7, 0.0)
    waits = job(name="wait-2", state=AppState.PENDING, message="waiting for a group")
    rows = SampleHistory().rows([job(replica(0, use)), waits])
    assert top_rows.table(rows) == (
        ["JOB", "REPLICA", "HOST", "STATE", "STEP", "MEMORY", "LAST LINE"],
        [
            ["train-1", "rank 0", "a", "RUNNING", "7", "3 GiB", ""],
            ["wait-2", "", "", "PENDING", "", "", "waiting for a group"],
        ],
    )
    assert top_rows.totals(rows) == "2 jobs, 1 node, 1 rank: 1 RUNNING"


def test_job_column_shows_id_and_name_if_they_differ() -> None:
    running = AppStatus(AppState.RUNNING, replicas=(replica(0),))
    jobs = JobLook("slurm://relight/7", running, "train"), job(replica(0))._replace(name="train")
    assert [row.cells()[0] for row in SampleHistory().rows(jobs)] == ["7 train", "train-1"]


def test_top_sanitizes_worker_output_and_shows_exit_code() -> None:
    looked = job(replica(0, line="\x1b[2J[red]x"), replica(1, exitcode=7, state=AppState.FAILED))
    cells = [row.cells()[-1] for row in SampleHistory().rows([looked])]
    assert cells == ["\ufffd[2J[red]x", "exit code 7"]


def test_filter_words_match_text_in_any_cell() -> None:
    rows = SampleHistory().rows(
        [job(replica(0, host="gpu-01", line="Loss"), replica(1, host="gpu-02"))]
    )
    assert [row.rank for row in top_rows.matching(rows, "GPU-0 loss")] == [0]
    assert len(top_rows.matching(rows, "")) == 2
    assert not top_rows.matching(rows, "gpu-03")


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (
            "GPU-a, 0, NVIDIA H100, 97, 62641, 81559\nGPU-b, 1, NVIDIA H100, 0, 4, 81559\n",
            "GPUs here (NVIDIA H100): 0: 97% 61/80 GiB, 1: 0% 0/80 GiB",
        ),
        (
            "GPU-a, 0, A, 97, 62641, 81559\nGPU-b, 1, B, 0, 4, 81559\n",
            "GPUs here: 0 (A): 97% 61/80 GiB, 1 (B): 0% 0/80 GiB",
        ),
        ("GPU-a, 0, A, [N/A], 512, 81559\n", "GPUs here (A): 0: 0/80 GiB"),
        ("GPU-a, 0, A, 3, [N/A], [N/A]\n", "GPUs here (A): 0: 3%"),
        ("No devices were found\n", ""),
        ("GPU-a, 0, 97\n\n", ""),
    ],
)
def test_top_shows_local_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str, shown: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert top_rows.gpus_line(gpus.Gpus().look()) == shown


def test_rank_row_shows_gpu_usage_of_its_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The usage covers this machine only, and includes child processes such as data loaders."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"""#!/bin/sh
case "$1" in
*compute-apps*) printf 'GPU-b, {os.getpid()}, 4096\\nGPU-b, 1, 100\\nGPU-a, 1, [N/A]\\n' ;;
*) printf 'GPU-a, 0, A, 10, 1, 81559\\nGPU-b, 1, A, 97, 2, 81559\\n' ;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    here = gpus.Gpus().look()
    assert gpus.gpu_use(here, os.getpid()) == gpus.GpuUse(0.97, 4 << 30)
    looked = job(replica(0, pid=os.getpid()), replica(1, host="b"))
    heads, lines = top_rows.table(SampleHistory().rows([looked], partial(gpus.gpu_use, here)))
    assert heads == ["REPLICA", "HOST", "STATE", "GPU", "GPU MEMORY"]
    assert [line[3:] for line in lines] == [["97%", "4 GiB"], ["", ""]]


def test_headline_shows_progress_and_metrics_over_time() -> None:
    charts = Chart("steps/s", 0.0, 1.0, (1.0, 2.0)), Chart("loss", 0.0, 1.0, (3.0, 0.25))
    looked = job(progress=Progress(6, 100, 2.0, 46.5), charts=charts)
    assert top_rows.headline(looked)[1:] == [
        "  step 6 of 100, 2 steps/s, about 46 s left", "  steps/s ▁█ 2   loss █▁ 0.25",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["exit 9", "exec sleep 60", None])
def test_failing_nvidia_smi_is_run_only_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    """The program fails, hangs or is missing."""
    program, calls = tmp_path / "nvidia-smi", tmp_path / "calls"
    if text is not None:
        program.write_text(f"#!/bin/sh\necho call >> {calls}\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(gpus, "_LIMIT_S", 0.5)
    here = gpus.Gpus()
    assert [here.look() for _ in range(3)] == [[], [], []]
    assert text is None or calls.read_text() == "call\n"


@pytest.mark.parametrize(
    ("reported", "shown"),
    [("loss=nan", "▁█   nan"), ("loss=inf", "▁█   inf"), ("lr=1", "▁█   0.5")],
)
def test_latest_value_that_is_not_a_number_is_shown_after_chart(reported: str, shown: str) -> None:
    """The chart has a gap."""
    use = RankUse(1.0, 1.0, 1, reported=(reported,))
    status = AppStatus(
        AppState.RUNNING,
        replicas=[ReplicaStatus("main", 0, use=use), ReplicaStatus("main", 1)],
        charts=(Chart("loss", 0.0, 1.0, (0.25, 0.5, None, None)),),
    )
    assert top_rows.number_lines(status) == [f"loss {shown}"]


def test_table_waits_for_second_sample_of_agents(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Agents of submitted jobs save a sample only every two seconds."""
    monkeypatch.setattr(command, "_BETWEEN_S", 0.0)
    uses = [RankUse(at, at, 1, step=int(10 * at)) for at in (1.0, 1.0, 1.0, 3.0)]

    def look() -> list[JobLook]:
        replica = ReplicaStatus("main", 0, AppState.RUNNING, use=uses.pop(0))
        return [JobLook("local://relight/a-1", AppStatus(AppState.RUNNING, replicas=[replica]))]

    assert command._print_once(look, "rank", "") == 0
    heads, row = capsys.readouterr().out.splitlines()[-2:]
    assert heads.split()[:4] == ["REPLICA", "STATE", "STEP", "STEP/S"]
    assert row.split()[:4] == ["main/0", "RUNNING", "30", "10"]


# The jobs that are shown.


class FakeRunner:
    """A runner whose jobs end when the test says so."""

    def __init__(self, **jobs: AppStatus) -> None:
        self.jobs = {f"run://relight/{name}": status for name, status in jobs.items()}
        self.error = ""

    def find(self, text: str) -> Handle:
        return to_handle(text)

    def list(self, scheduler: str) -> list[Any]:
        return [self._listed(handle, status) for handle, status in self.jobs.items()]

    def scheduler(self, name: str) -> "FakeRunner":
        return self

    def status(self, wanted: Any) -> Any:
        if self.error:
            raise MachineError(self.error)
        if isinstance(wanted, list):
            return {
                each: self.jobs[f"run://relight/{each}"]
                for each in wanted
                if f"run://relight/{each}" in self.jobs
            }
        if str(wanted) not in self.jobs:
            raise UsageError(f"no such job: {wanted}")
        return self.jobs[str(wanted)]

    @staticmethod
    def _listed(handle: str, status: AppStatus) -> Any:
        from relight.runner.runner import Job

        return Job(handle, handle, status.state, "")


def watched(runner: FakeRunner, name: str = "", scheduler: str = "") -> command.WatchedJobs:
    return command.WatchedJobs(runner, name, scheduler)  # type: ignore[arg-type]


def states(jobs: list[JobLook]) -> dict[str, list[str]]:
    return {
        each.handle.rpartition("/")[2]: [
            each.status.state.name,
            *(one.state.name for one in each.status.replicas),
        ]
        for each in jobs
    }


@pytest.mark.parametrize("name", ["", "run://relight/train"])
def test_job_with_killed_agent_is_shown_as_unknown(name: str) -> None:
    ended = replica(1, state=AppState.FAILED, exitcode=1)
    runner = FakeRunner(train=AppStatus(AppState.RUNNING, replicas=(replica(0), ended)))
    looked = watched(runner, name)
    assert states(looked.look()) == {"train": ["RUNNING", "RUNNING", "FAILED"]}
    runner.jobs.clear()
    for _ in range(2):
        found = looked.look()
        assert states(found) == {"train": ["UNKNOWN", "UNKNOWN", "FAILED"]}
        assert "its agent was killed" in found[0].status.message


def test_ended_job_stays_visible_and_new_jobs_appear() -> None:
    runner = FakeRunner(
        old=AppStatus(AppState.SUCCEEDED), first=AppStatus(AppState.RUNNING)
    )  # fmt: skip
    looked = watched(runner)
    assert states(looked.look()) == {"first": ["RUNNING"]}
    runner.jobs["run://relight/first"] = AppStatus(AppState.FAILED)
    runner.jobs["run://relight/second"] = AppStatus(AppState.RUNNING)
    for _ in range(2):
        assert states(looked.look()) == {"second": ["RUNNING"], "first": ["FAILED"]}


def test_only_last_twenty_ended_jobs_are_shown() -> None:
    runner, looked = FakeRunner(), None
    looked = watched(runner)
    for number in range(30):
        runner.jobs = {f"run://relight/j{number}": AppStatus(AppState.RUNNING)}
        found = looked.look()
    assert len(found) == 21


def test_unresponsive_scheduler_does_not_hide_other_jobs() -> None:
    runner = FakeRunner(train=AppStatus(AppState.RUNNING))
    runner.error = "the cluster does not answer"
    (found,) = watched(runner).look()
    assert found.status == AppStatus(AppState.UNKNOWN, "the cluster does not answer")
    with pytest.raises(MachineError):
        watched(runner, scheduler="slurm").look()


def test_top_rejects_unknown_job_and_replica_handle(relight: Command) -> None:
    found = relight("top", "run://relight/nope-1")
    assert (found.returncode, found.stdout) == (2, "")
    assert "no such job: run://relight/nope-1" in found.stderr
    with pytest.raises(UsageError, match="is only a part of a job"):
        watched(FakeRunner(), "run://relight/train-1/default/3")


# The table that is printed without a terminal.


@pytest.mark.slow
def test_top_prints_one_table_to_a_pipe(
    start: Start, relight: Command, script: Callable[[str], Path], variables: dict[str, str]
) -> None:
    steps = "import time\nfrom relight.worker import progress\nfor step in range(10**6):\n"
    start("run", "--nproc-per-node=2", "--name=mine",
          script(f"{steps}    progress(step)\n    time.sleep(0.01)\n"),
          variables=variables)  # fmt: skip
    for _ in range(100):
        found = relight("top")
        if "rank 1" in found.stdout:
            break
    lines = found.stdout.splitlines()
    heads = lines.index("") + 1
    assert lines[0].startswith("run://relight/mine-")
    assert lines[heads].split()[:6] == ["REPLICA", "HOST", "STATE", "STEP", "STEP/S", "CPU"]
    assert len(lines) == heads + 3
    assert 1 < float(lines[heads + 1].split()[5]) < 100
    alone = relight("top", "--once", "--filter=running rank 1", "mine").stdout.splitlines()
    assert len(alone) == len(lines) - 1


def test_top_prints_a_table_on_a_dumb_terminal(variables: dict[str, str]) -> None:
    ours, theirs = os.openpty()
    for term in ("dumb", ""):
        found = subprocess.run(
            [*RELIGHT, "top"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, check=True,
            env=clean_environment(**variables, TERM=term), timeout=LIMIT_S,
        )  # fmt: skip
        assert found.stderr == b"relight: no jobs\n"
    os.close(ours)
    os.close(theirs)


def test_missing_textual_package_error_suggests_once_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(cli, "top_view")
    monkeypatch.delitem(sys.modules, "relight.cli.inspect.top_view")
    monkeypatch.setitem(sys.modules, "textual.app", None)
    with pytest.raises(UsageError, match="requires the textual package") as raised:
        command._view()
    assert "relight top --once" in raised.value.hint


# The view and its keys.


class Played:
    """A view of jobs that a test changes. Commands are recorded instead of being run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *jobs: JobLook) -> None:
        self.jobs, self.error = list(jobs), ""
        self.commands = list[tuple[str, ...]]()
        monkeypatch.setattr(top_view, "_command_output", self.run)
        self.view = TopView(self.look, "rank", "", LIMIT_S)

    def look(self) -> list[JobLook]:
        if self.error:
            raise MachineError(self.error)
        return self.jobs

    def run(self, words: tuple[str, ...]) -> str:
        self.commands.append(words)
        return "output [red]of it"

    def play(self, keys: Callable[[Pilot[None]], Awaitable[None]], **options: Any) -> None:
        async def run() -> None:
            async with self.view.run_test(**options) as pilot:
                await self.until(pilot, lambda: self.summary and _LOOKING not in self.summary)
                await keys(pilot)

        asyncio.run(asyncio.wait_for(run(), LIMIT_S))

    async def until(self, pilot: Pilot[None], condition: Callable[[], object]) -> None:
        while not condition():
            await pilot.pause(0.01)

    @property
    def ranks(self) -> "DataTable[Any]":
        return self.view.screen_stack[0].query_one("#ranks", DataTable)

    @property
    def summary(self) -> str:
        return str(self.view.screen_stack[0].query_one("#summary", Static).content)

    def shown(self) -> list[list[str]]:
        return [
            [str(cell) for cell in self.ranks.get_row_at(n)] for n in range(len(self.ranks.rows))
        ]


TWO = (
    job(replica(0, line="zero"), replica(1, line="one"), message="generation 3", restarts=2),
    job(replica(0, host="b"), name="other-2"),
)


def test_stack_and_log_keys_apply_to_the_selected_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, *TWO)

    async def keys(pilot: Pilot[None]) -> None:
        for key in ("s", "down", "l"):
            await pilot.press(key)
            if key != "down":
                box = played.view.screen.query_one(RichLog)
                await played.until(pilot, lambda box=box: box.lines)
                assert box.lines[0].text.rstrip() == "output [red]of it"
                await pilot.press("escape")
        await pilot.press("q")

    played.play(keys)
    handle = "run://relight/train-1"
    logs = ("logs", "--lines=500", f"{handle}/default/0")
    assert played.commands == [("stacks", "run://relight/other-2"), logs]


def test_cancel_key_asks_for_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, *TWO)

    async def keys(pilot: Pilot[None]) -> None:
        for answer in ("n", "escape", "y"):
            await pilot.press("c")
            await played.until(pilot, lambda: isinstance(played.view.screen, ConfirmScreen))
            assert not played.commands
            await pilot.press(answer)
            await played.until(pilot, lambda: not isinstance(played.view.screen, ConfirmScreen))
        await played.until(pilot, lambda: played.commands)

    played.play(keys)
    assert played.commands == [("cancel", "run://relight/other-2")]


def test_keys_sort_reverse_and_filter_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, *TWO)

    async def keys(pilot: Pilot[None]) -> None:
        assert [row[0] for row in played.shown()] == ["other-2", "train-1", "train-1"]
        await pilot.press("r")
        assert [row[0] for row in played.shown()] == ["train-1", "train-1", "other-2"]
        await pilot.press("r", "o")
        assert "sorted by host" in played.summary
        await pilot.press("slash", *"one", "enter")
        assert [row[-1] for row in played.shown()] == ["one"]
        assert "generation 3" in played.summary
        assert "restarted 2 times" in played.summary
        await pilot.press("slash")
        played.view.query_one("#filter", Input).value = "nothing"
        await pilot.pause()
        assert not played.shown()
        await pilot.press("enter", "s", "l", "c")  # no row selected

    played.play(keys)
    assert not played.commands


def test_cursor_stays_on_its_rank_when_rows_are_refreshed_or_sorted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looked(first_step: int) -> JobLook:
        uses = [RankUse(1.0 + first_step, 0.0, 1, first_step + rank) for rank in range(1000)]
        return job(*(replica(rank, use) for rank, use in enumerate(uses)))

    played = Played(monkeypatch, looked(0))

    async def keys(pilot: Pilot[None]) -> None:
        assert len(played.ranks.rows) == 1000
        await pilot.press("ctrl+end")
        assert played.view._key().endswith("/999")
        await pilot.resize_terminal(60, 10)
        played.jobs = [looked(5000)]
        played.view._again.set()
        await played.until(pilot, lambda: "5999" in played.shown()[-1])
        await pilot.pause()
        assert played.view._key().endswith("/999")
        assert played.ranks.scroll_offset.y > 900
        await pilot.press("r")
        assert played.view._key().endswith("/999")
        assert played.ranks.cursor_row == 0

    played.play(keys, size=(100, 30))


def test_failed_refresh_is_reported_and_keeps_last_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, *TWO)

    async def keys(pilot: Pilot[None]) -> None:
        played.error = "the [red] cluster does not answer"
        played.view._again.set()
        await played.until(pilot, lambda: played.error in played.summary)
        assert len(played.shown()) == 3
        played.error, played.jobs = "", []
        played.view._again.set()
        await played.until(pilot, lambda: "no jobs" in played.summary)

    played.play(keys)


def test_command_output_that_arrives_after_escape_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, *TWO)

    async def keys(pilot: Pilot[None]) -> None:
        screen = OutputScreen("relight stacks")
        await played.view.push_screen(screen)
        await pilot.press("escape")
        screen.fill("too late")

    played.play(keys)
