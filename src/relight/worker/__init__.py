"""Functions for training scripts. Importing it costs nothing, and works without the launcher.

from relight.worker import progress, should_checkpoint

for step, batch in enumerate(batches):
    train(batch)
    progress(step)
    if should_checkpoint():
        save()
        sys.exit(0)
"""

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from relight.core.workers.shared_words import (
    CALLS,
    FIRST_AT,
    INSIDE,
    MOST_CALLS,
    MOST_STEP,
    SIZE,
    STEP,
    STEP_AT,
    TOTAL,
    left_s,
)
from relight.worker import (
    replicas,
    shared_words_writer,  # not at the first call: a job outlives the files of relight
)
from relight.worker.replicas import StateLostError as StateLostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Concatenate, ParamSpec, TypeVar

    from relight.worker.replicas import Generation

    P = ParamSpec("P")
    R = TypeVar("R")

_page: "memoryview | None" = None
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""The memory that is shared with the agent is beside it."""


class Membership(NamedTuple):
    """The place of this worker in its job.

    `nodes` is the number of nodes and `node_rank` that of this one. `restarts` is how often the
    workers were started again after a failure, of `max_restarts` times at most. `requeues` is how
    often the scheduler has started the job, or this node's agent, again.
    """

    rank: int
    world_size: int
    local_rank: int
    node_rank: int
    nodes: int
    restarts: int
    max_restarts: int
    requeues: int


def should_checkpoint() -> bool:
    """Return whether this worker should save a checkpoint and exit with 0, because its node is
    preempted, or because nodes wait to join (`--membership-change=at-checkpoint`).

    Call it in all ranks, equally often, such as once in each step: the launcher lets all ranks see
    True at the same call. Before that, a rank that is ahead of others may wait in a call for a few
    milliseconds. Without the launcher it is always False. A call takes less than a microsecond.
    """
    page = _page or _open()
    call = page[CALLS] + 1
    if call > MOST_CALLS:  # the script has overwritten it
        call = 1
    page[CALLS] = call
    if page[0] == 0 and page[1] == 0:  # LIMIT and AGREED: a look at each costs a tenth of a call
        return False
    return shared_words_writer.is_agreed(page, call)


def deadline() -> float | None:
    """Return how many seconds are left until this worker is stopped, or None if that is not known.

    It is known after `should_checkpoint` has returned True, and where the scheduler has told when
    the job's time is over: in Slurm (`SLURM_JOB_END_TIME`), and in jobs of `relight submit` with a
    time limit. It is negative if it has passed.
    """
    until_stop = left_s(_page or _open(), time.monotonic())
    left = [] if until_stop is None else [until_stop]
    for name in ("SLURM_JOB_END_TIME", "RELIGHT_END_TIME"):
        text = os.environ.get(name, "")
        if text.isdecimal():
            left.append(float(text) - time.time())
    return min(left, default=None)


def progress(step: int, total: int | None = None) -> None:
    """Tell the launcher that this worker has done a step.

    Args:
        step: its number, from 0. After a restart it begins again with that of the checkpoint.
        total: number of steps of the whole training, from which `relight status`, `relight top` and
            the status page compute the remaining time. It may be told once.

    Raises:
        ValueError: if `step` or `total` is negative or above 2**62.
        RuntimeError: if a rank was replaced, and `Generation.share` was not called.
    """
    if not 0 <= step <= MOST_STEP:
        raise ValueError(f"step {step} is not between 0 and 2**62")
    if total is not None and not 0 <= total <= MOST_STEP:
        raise ValueError(f"total {total} is not between 0 and 2**62")
    if replicas._unshared is not None:
        replicas.check_shared()
    page = _page or _open()
    if total is not None:
        page[TOTAL] = total
    page[STEP] = step
    page[STEP_AT] = now = time.monotonic_ns()
    if not page[FIRST_AT]:
        page[FIRST_AT] = now


def report(**values: float) -> None:
    """Tell the launcher numbers of this worker, such as `loss` and `lr`, which `relight top`, the
    status page and `relight status --json` show. The other names keep their last numbers.

    Args:
        values: the numbers, by names of at most 24 bytes; at most 8 names in all. A tensor of one
            element will do: converting it waits for its device.

    Raises:
        ValueError: if there are more names, or longer ones.
    """
    page = _page or _open()
    shared_words_writer.report(page, {name: float(value) for name, value in values.items()})


def membership() -> Membership:
    """Return the place of this worker in its job, as the launcher has set it in the environment.
    Without a launcher it is that of the only rank of a job of one node.
    """

    def number(name: str, default: int) -> int:
        text = os.environ.get(name, "")
        return int(text) if text.isdecimal() else default

    attempt = number("AWS_BATCH_JOB_ATTEMPT", 1)
    return Membership(
        rank=number("RANK", 0),
        world_size=number("WORLD_SIZE", 1),
        local_rank=number("LOCAL_RANK", 0),
        node_rank=number("GROUP_RANK", 0),
        nodes=number("GROUP_WORLD_SIZE", 1),
        restarts=number("TORCHELASTIC_RESTART_COUNT", 0),
        max_restarts=number("TORCHELASTIC_MAX_RESTARTS", 0),
        requeues=number("RELIGHT_REQUEUES", number("SLURM_RESTART_COUNT", attempt - 1))
        + number("RELIGHT_PREEMPTIONS", 0),
    )


def recoverable(
    function: "Callable[Concatenate[Generation, P], R]",
) -> "Callable[P, R]":
    """Decorate the function that trains, so that this process survives the failure of another rank.

    The function gets the generation as its first argument. If another rank fails, its collectives
    also fail; the process group is destroyed, and the function is called again, with the same
    arguments and in the same process, once the missing ranks were started. It begins with
    `init_process_group`, wraps the model, and calls `generation.share`
    (relight.worker.replicas.Generation). Anything built outside the function stays as it is.

    Without relight, or where survivors can't stay, it is called once.
    """
    from functools import wraps

    from relight.worker import recovery
    from relight.worker.replicas import Generation

    @wraps(function)
    def run(*arguments: "P.args", **named: "P.kwargs") -> "R":
        page = _page or _open()
        page[INSIDE] = 1
        try:
            if not (os.environ.get("RELIGHT_RECOVERY") and os.environ.get(_ERROR_FILE)):
                return function(Generation(False), *arguments, **named)
            return recovery.run(page, lambda generation: function(generation, *arguments, **named))
        finally:
            page[INSIDE] = 2

    return run


def record(function: "Callable[P, R]") -> "Callable[P, R]":
    """Decorate the script's main function, so that its exception is written to the error file of
    this worker (`TORCHELASTIC_ERROR_FILE`), in torch's format.

    relight itself reads the traceback from stderr and does not need the file. Other launchers may.
    """
    from functools import wraps

    from relight.worker.error_file import write

    @wraps(function)
    def recorded(*arguments: "P.args", **named: "P.kwargs") -> "R":
        try:
            return function(*arguments, **named)
        except Exception as error:
            write(error)
            raise

    return recorded


def _open() -> memoryview:
    global _page
    if _page is None:
        os.register_at_fork(after_in_child=_detach)
    _page = shared_words_writer.open_page()
    return _page


def _detach() -> None:
    """Share nothing: a child, such as a process of a data loader, does not count as the worker."""
    global _page
    _page = memoryview(bytearray(SIZE)).cast("Q")
