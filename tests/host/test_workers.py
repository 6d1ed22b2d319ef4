"""The agent's end of the socket to the spawner."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from relight.core.failure import WorkerState
from relight.host.loop import Loop
from relight.processes.spawner import WorkerPlan
from relight.processes.worker_processes import Workers


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Start one worker that sleeps."""
    loop, null = Loop(), os.open(os.devnull, os.O_WRONLY)
    plan = WorkerPlan(
        local_rank=0, argv=(sys.executable, "-c", "import time; time.sleep(600)"), variables={},
        stdout=null, stderr=os.dup(null), cpus=frozenset(), signal_group=False,
    )  # fmt: skip
    workers = Workers(loop, [plan], [0], "", lambda event, at: None)
    try:
        loop.run_until(lambda: bool(workers.pids), 30)
        yield workers
    finally:
        workers.close()
        loop.close()
        for fd in {plan.stdout, plan.stderr}:
            os.close(fd)


def test_stopped_spawner_is_resumed_until_workers_freeze_at_lease_end(workers: Workers) -> None:
    """Another program stops it again after the first SIGCONT."""
    loop, send, lost = workers._loop, workers._spawner.send, [signal.SIGCONT]

    def stopped_again(number: int) -> None:
        if loop.now() >= until and lost:
            lost.pop()
            return
        send(number)

    until = loop.now() + 0.3
    workers._spawner.send = stopped_again  # type: ignore[method-assign]
    workers.set_lease(until)
    os.kill(workers._spawner.pid, signal.SIGSTOP)
    loop.run_until(lambda: workers.frozen, 10)
    assert workers.frozen and not lost


def test_old_stacks_of_survivors_are_discarded_in_next_generation(workers: Workers) -> None:
    """Otherwise its first failure would seem to blame a peer."""
    workers.doing[0] = WorkerState(" in all_reduce (train.py:7)", (), True)
    workers.replace([], [0])
    assert not workers.doing
