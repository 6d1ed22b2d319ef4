"""torch's file timers: reading the pipe that workers write to."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.host.loop import Loop
from relight.processes.timers import WorkerTimers

LATE = {"version": 1, "pid": 7, "scope_id": "step", "expiration_time": 0.0, "signal": 9}
NONSENSE = [
    "", "[]", "{}", "x", "[" * 50_000, "9" * 5000, json.dumps(LATE).replace("0.0", "1e999"),
    json.dumps({**LATE, "pid": [7]}), json.dumps({**LATE, "version": 2}),
    json.dumps({**LATE, "signal": 99}), json.dumps({**LATE, "expiration_time": -1.0}),
]  # fmt: skip


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_garbage_in_timer_pipe_is_ignored(loop: Loop, tmp_path: Path) -> None:
    """Whatever a worker writes into the pipe, the agent survives and the next timer works."""
    expired: list[tuple[int, int, str]] = []
    timers = WorkerTimers(loop, str(tmp_path / "timers"), lambda *each: expired.append(each))
    fd = os.open(timers.path, os.O_WRONLY)
    for text in (*NONSENSE, json.dumps(LATE)):
        os.write(fd, text.encode() + b"\n")
        loop.run_once(0.1)
    loop.run_until(lambda: bool(expired))
    os.close(fd)
    timers.close()
    assert expired == [(7, 9, "step")]
