"""Captures the workers' stacks before they are stopped, so that the report can show where each rank
was.

The stacks are captured if a worker has raised an exception, or if no worker is making progress
(--hang-timeout).
"""

import time
from collections.abc import Callable

from relight.base.env import Environment
from relight.host.loop import Loop
from relight.processes.supervisor import Supervisor
from relight.stacks.worker_state import doing

_POLL_S = 0.2
"""Interval for polling for flight recorder dumps, because torch does not notify anyone when it
writes these files.
"""


def read(supervisor: Supervisor) -> None:
    """Record the running workers' state."""
    workers = supervisor.workers
    workers.doing.update(doing(_alive(supervisor), are_frozen=supervisor.are_frozen))


def collect_hang_evidence(
    loop: Loop,
    supervisor: Supervisor,
    env: Environment,
    limit_s: float,
    stop_in: Callable[[float], None],
) -> None:
    """Collect the native stacks of hung workers and the records from torch's flight recorder, then
    stop the workers. This may take a while, but the workers are hung anyway.

    Args:
        loop: the agent's loop.
        supervisor: the workers' supervisor, after `read`.
        env: the workers' environment.
        limit_s: the minimum time in seconds that the workers keep running.
        stop_in: stops the workers after the given number of seconds. It is called once.
    """
    from relight.stacks import flight_recorder, native

    workers, alive = supervisor.workers, _alive(supervisor)
    begin, asked_at = loop.now(), time.time()
    asked = flight_recorder.ask(env, [workers.ranks[local_rank] for local_rank in alive])

    def wait_for_dumps() -> None:
        waited_s = loop.now() - begin
        if waited_s < flight_recorder.DUMPS_S and not flight_recorder.have_dumped(
            env, asked, asked_at
        ):
            loop.call_after(_POLL_S, wait_for_dumps)
        else:
            stop_in(max(0.0, limit_s - waited_s))

    if not native.add(loop, alive, workers.doing, wait_for_dumps):
        wait_for_dumps()


def _alive(supervisor: Supervisor) -> dict[int, int]:
    """Return the pids of the workers that are still alive, keyed by local rank."""
    pids = supervisor.workers.pids
    return {rank: pids[rank] for rank in supervisor.alive if rank in pids}
