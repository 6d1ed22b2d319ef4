"""Provides functions for training scripts. Importing this module takes almost no time, and its
functions also work without the launcher.

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
from collections.abc import Callable
from functools import wraps
from operator import index
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from relight.core.workers.shared_words import (
    CALLS,
    FIRST_AT,
    INSIDE,
    MAX_CALLS,
    MAX_STEP,
    SIZE,
    STEP,
    STEP_AT,
    TOTAL,
    left_s,
)
from relight.worker import (
    replicas,
    shared_words_writer,  # not at the first call, because a job may outlive relight's files
)
from relight.worker.replicas import Generation
from relight.worker.replicas import StateLostError as StateLostError

P = ParamSpec("P")
R = TypeVar("R")

_page: memoryview | None = None
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""The variable with the path of the error file. The memory that is shared with the agent is next to
this file.
"""


class Membership(NamedTuple):
    """This worker's place in its job.

    The `nodes` field is the number of nodes, and `node_rank` is the rank of this node. `restarts`
    is how many times the workers have been restarted after a failure, and `max_restarts` is the
    limit. The `requeues` field is how many times the scheduler has restarted the job or this node's
    agent.
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
    """Return whether this worker should save a checkpoint and exit with code 0. Possible reasons
    are that its node is being preempted, or that nodes are waiting to join
    (`--membership-change=at-checkpoint`).

    Call this function equally often in all ranks, for example once per step, because the launcher
    makes the same call return True in all ranks. Before that, a rank that is ahead of the others
    may block in a call for a few milliseconds. Without the launcher, the result is always False. A
    call takes less than a microsecond.
    """
    page = _page or _open()
    call = page[CALLS] + 1
    if call > MAX_CALLS:  # the script has overwritten the shared memory
        call = 1
    page[CALLS] = call
    if page[0] == 0 and page[1] == 0:  # LIMIT and AGREED: each read takes a tenth of a call
        return False
    return shared_words_writer.is_agreed(page, call)


def deadline() -> float | None:
    """Return how many seconds are left until this worker is stopped, or None if that is unknown.

    The remaining time is known once `should_checkpoint` has returned True. It is also known if the
    scheduler has announced the job's time limit, as in Slurm (`SLURM_JOB_END_TIME`) and in jobs
    that were submitted with `relight submit` and a time limit. The result is negative if that time
    has already passed.
    """
    until_stop = left_s(_page or _open(), time.monotonic())
    left = [] if until_stop is None else [until_stop]
    for name in ("SLURM_JOB_END_TIME", "RELIGHT_END_TIME"):
        text = os.environ.get(name, "")
        if text.isdecimal():
            left.append(float(text) - time.time())
    return min(left, default=None)


def progress(step: int, total: int | None = None) -> None:
    """Report to the launcher that this worker has completed a step.

    Args:
        step: the step's number, starting at 0. After a restart, continue with the step number from
            the checkpoint.
        total: the total number of training steps, from which `relight status`, `relight top` and
            the status page compute the remaining time. It only needs to be passed once.

    Raises:
        TypeError: if `step` or `total` is not an integer.
        ValueError: if one of them is negative or above 2**62.
        RuntimeError: if a rank has been replaced, but `Generation.share` has not been called.
    """
    step = _whole("step", step)
    if total is not None:
        total = _whole("total", total)
    if replicas._unshared is not None:
        replicas.check_shared()
    if replicas.current is not None:
        replicas.current.before_step()  # buffers that were written to after the optimizer's step
    page = _page or _open()
    if total is not None:
        page[TOTAL] = total
    page[STEP] = step
    page[STEP_AT] = now = time.monotonic_ns()
    if not page[FIRST_AT]:
        page[FIRST_AT] = now


def report(**values: float) -> None:
    """Report numbers from this worker, such as `loss` and `lr`, to the launcher. `relight top`, the
    status page and `relight status --json` show these numbers. Names that aren't passed keep their
    previous values.

    Args:
        values: the numbers, by name. A worker can report at most 8 names of up to 24 bytes each. A
            tensor with one element is also accepted, but converting it waits for its device.

    Raises:
        TypeError: if a value is not a number.
        ValueError: if there are too many names, or if a name is too long.
    """
    numbers = {}
    for name, value in values.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"report({name}={value!r}): expected a number") from None
        except RuntimeError:
            # From a tensor with several elements. For one with a single element, it is the error of
            # an earlier call to the device, such as a failed assertion in a CUDA kernel.
            size = getattr(value, "numel", lambda: 1)()
            if size == 1:
                raise
            raise TypeError(f"report({name}=…): expected a number, got {size} of them") from None
    shared_words_writer.report(_page or _open(), numbers)


def _whole(name: str, value: int) -> int:
    """Return one of `progress`'s arguments as an int."""
    try:
        number = index(value)  # also accepts numpy's integers
    except TypeError:
        raise TypeError(f"progress({name}={value!r}): expected an integer") from None
    if not 0 <= number <= MAX_STEP:
        raise ValueError(f"progress({name}={number}): expected a number from 0 to 2**62")
    return number


def membership() -> Membership:
    """Return this worker's place in its job, as set by the launcher in the environment. Without a
    launcher, the result describes the only rank of a single-node job.
    """
    number = replicas.env_number
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


def recoverable(function: Callable[Concatenate[Generation, P], R]) -> Callable[P, R]:
    """Decorate the training function so that this process survives if another rank fails.

    The function receives the generation as its first argument. If another rank fails, this rank's
    collectives also fail. The process group is then destroyed. Once the missing ranks have been
    started, the function is called again in the same process with the same arguments. The function
    has to call `init_process_group`, wrap the model, and call `generation.share`
    (relight.worker.replicas.Generation). Objects that were created outside the function are kept.

    Without relight, or if the surviving processes can't be kept, the function is called only once.
    """
    from relight.worker import survivor

    @wraps(function)
    def run(*arguments: P.args, **named: P.kwargs) -> R:
        page = _page or _open()
        page[INSIDE] = 1
        try:
            if not (os.environ.get("RELIGHT_RECOVERY") and os.environ.get(_ERROR_FILE)):
                return function(Generation(False), *arguments, **named)
            return survivor.run(page, lambda generation: function(generation, *arguments, **named))
        finally:
            page[INSIDE] = 2

    return run


def record(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate the script's main function so that an exception it raises is written to this
    worker's error file (`TORCHELASTIC_ERROR_FILE`) in torch's format.

    relight itself reads the traceback from stderr and does not need the error file, but other
    launchers may need it.
    """
    from relight.worker.error_file import write

    @wraps(function)
    def recorded(*arguments: P.args, **named: P.kwargs) -> R:
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
    """Stop sharing memory in a child process, such as a data loader process, because the child is
    not the worker.
    """
    global _page
    _page = memoryview(bytearray(SIZE)).cast("Q")
