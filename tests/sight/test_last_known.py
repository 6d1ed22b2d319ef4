"""A page shows the last known values for ranks that have exited."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, Start

from relight.core.status.rates import Rates
from relight.core.status.snapshot import RankUse, WholeJob
from relight.core.status.timeline import history
from relight.inspect.page.view_model import Reading, look
from relight.inspect.page.watched_job import WatchedJob
from relight.processes.running_jobs import JobDirectory

from .test_page_look import node, rank

USE = RankUse(5.0, 2.0, 1 << 20, 7, 0.1)
STATE, STEP, CPU, MEMORY, LAST_KNOWN = 3, 6, 8, 9, 11
BURNS = """\
import os, time
while not os.path.exists("end"):
    time.sleep(0.01)
raise SystemExit(3 if os.environ["RANK"] == "1" else 0)
"""


@pytest.mark.parametrize(
    ("of_rank", "of_node", "answers", "gone", "state", "is_marked"),
    [
        ({}, {}, True, False, "running", False),
        ({"exitcode": 0}, {}, True, False, "succeeded", True),
        ({"exitcode": 1}, {"state": "ended", "exit_code": 1}, True, False, "failed (1)", True),
        ({}, {}, False, False, "running", True),
        ({}, {}, False, True, "unknown", True),
    ],
)
def test_last_known_usage_of_exited_rank_is_kept_and_marked(
    of_rank: dict[str, Any], of_node: dict[str, Any], answers: bool, gone: bool, state: str,
    is_marked: bool,
) -> None:  # fmt: skip
    rates = Rates()
    for at in (1.0, 5.0):  # the second sample is the last one
        use = USE._replace(seen_at=at, cpu_s=at / 2, step=int(at))
        job = WholeJob((node(rank(0, use=use, **of_rank), **of_node),))
        rates.take(job.nodes)
    rates.take(job.nodes)
    (row,) = look(Reading(job, rates, history({}, 0.0), answers, gone), ())["ranks"]
    assert row[STATE] == state
    assert (row[STEP], row[CPU], row[MEMORY]) == (5, 0.5, 1 << 20)
    assert row[LAST_KNOWN] == (5.0 if is_marked else None)


@pytest.mark.slow
def test_status_page_of_finished_job_shows_usage_of_all_ranks(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """A page opened after the job's end shows only this node's ranks."""
    flags = ("run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=file", "--rdzv-id=last",
             f"--rdzv-endpoint={tmp_path}/where", "--max-restarts=0")  # fmt: skip
    program = script(BURNS)
    agents = [start(*flags, program) for _ in range(2)]
    jobs = JobDirectory(os.environ)

    def watch() -> WatchedJob:
        return WatchedJob(jobs, f"train-{agents[0].pid}", ())

    deadline = time.monotonic() + LIMIT_S
    while jobs.find(f"train-{agents[0].pid}") is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    watched = watch()

    def wait_for_rows(expected: Callable[[list[list[Any]]], bool]) -> list[list[Any]]:
        while True:
            watched.reading(now=True)
            rows = watched.look()["ranks"]
            if expected(rows):
                return list(rows)
            assert time.monotonic() < deadline, rows
            time.sleep(0.05)

    wait_for_rows(lambda rows: len(rows) == 4 and all(row[CPU] is not None for row in rows))
    (program.parent / "end").touch()
    for agent in agents:
        assert agent.wait(LIMIT_S) == 3
    rows = wait_for_rows(lambda rows: watched.look()["job"]["over"])
    assert [row[0] for row in rows] == [0, 1, 2, 3]
    assert all(row[MEMORY] > 0 and row[CPU] is not None and row[LAST_KNOWN] for row in rows)
    own = watch().look()["ranks"]
    assert len(own) == 2
    assert all(row[MEMORY] > 0 and row[LAST_KNOWN] for row in own)
