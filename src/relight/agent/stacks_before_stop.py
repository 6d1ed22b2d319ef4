"""Reads where workers are before they are stopped, so that the report can say where each rank was.

It happens if a worker has failed because of a peer, or if no worker does anything (--hang-timeout).
"""

from collections.abc import Callable

from relight.base.env import Environment
from relight.host.loop import Loop
from relight.processes.supervisor import Supervisor
from relight.stacks.worker_state import doing


def read(supervisor: Supervisor) -> None:
    """Note what the workers do that have not ended."""
    workers = supervisor.workers
    workers.doing.update(doing(_alive(supervisor), are_frozen=supervisor.are_frozen))


def look_closer(
    loop: Loop,
    supervisor: Supervisor,
    env: Environment,
    limit_s: float,
    stop_in: Callable[[float], None],
) -> None:
    """Find out more of workers that hang, which have time: in which native functions they are, and
    what torch's flight recorder knows; then stop them.

    Args:
        loop: the agent's loop.
        supervisor: of the workers, after `read`.
        env: their environment.
        limit_s: how long they are to run on at least, in seconds.
        stop_in: stops them after so many seconds; called once.
    """
    from relight.stacks import flight_recorder, native

    workers, alive = supervisor.workers, _alive(supervisor)
    asked = flight_recorder.ask(env, [workers.ranks[local_rank] for local_rank in alive])
    seconds = max(limit_s, flight_recorder.DUMPS_S if asked else 0.0)
    if not native.add(loop, alive, workers.doing, lambda: stop_in(seconds)):
        stop_in(seconds)


def _alive(supervisor: Supervisor) -> dict[int, int]:
    """Return the pids of the workers that have not ended, by local rank."""
    pids = supervisor.workers.pids
    return {rank: pids[rank] for rank in supervisor.alive if rank in pids}
