"""Sends a generation's plans, together with their descriptors, to the process that starts its
workers.

That process is the agent's spawner (`processes/spawner.py`) or a warm spawner
(`preload/warm_fork.py`). For each generation, the agent sends a count and that many descriptors: a
file that contains the plans, a socket for the generation, stdin, and each worker's stdout and
stderr. Because the file is in memory and the messages are small, sending never blocks.
"""

import array  # noqa: F401  # used by socket.send_fds at a restart, when its file may be lost
import errno
import marshal
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from relight.host import descriptors, system

_COUNT = struct.Struct("!I")
_MAX_AT_ONCE = 250
"""Number of descriptors in one message (SCM_MAX_FD is 253 on Linux)."""
_FEW = 32
"""A number of descriptors that is below any open-file limit."""
_FORMAT = 4
"""The marshal version. The other process may run a different version of Python, 3.11 or later."""


class WorkerPlan(NamedTuple):
    """A worker to start.

    The `stdout` and `stderr` fields are descriptors in the process that has the plan. The `cpus`
    field is an affinity mask. If it is empty, the agent's own mask is used. A stop signal is sent
    to the worker alone, or to its process group if `signal_group` is true.
    """

    local_rank: int
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    stdout: int
    stderr: int
    cpus: frozenset[int]
    signal_group: bool


class GenerationPlan(NamedTuple):
    """The workers of one generation.

    The `connection` field is the descriptor of a socket to the agent, and `stdin` is the descriptor
    of the workers' standard input. The `scratch` field is a directory that the agent removes when
    it exits, or empty. The `held` field lists descriptors to keep open as long as there are
    workers.
    """

    workers: list[WorkerPlan]
    connection: int
    stdin: int
    scratch: str
    held: Sequence[int] = ()


def send(
    control: socket.socket, workers: Sequence[WorkerPlan], scratch: str, held: Sequence[int]
) -> socket.socket:
    """Send the plans for a generation, and return the agent's end of the generation's socket.

    Raises:
        OSError: if they can't be sent, or no descriptor is left.
    """
    plans = [(w.local_rank, w.argv, dict(w.variables), w.cpus, w.signal_group) for w in workers]
    ours, theirs = socket.socketpair()
    try:
        with theirs, open(system.anonymous_file("relight-plans"), "wb", buffering=0) as file:
            file.write(marshal.dumps((plans, scratch), _FORMAT))
            fds = [file.fileno(), theirs.fileno(), 0]
            fds += [fd for worker in workers for fd in (worker.stdout, worker.stderr)]
            fds += held
            control.sendall(_COUNT.pack(len(fds)))
            for first in range(0, len(fds), _MAX_AT_ONCE):
                socket.send_fds(control, [b"f"], fds[first : first + _MAX_AT_ONCE])
    except OSError:
        ours.close()
        raise
    return ours


def receive(control: socket.socket) -> GenerationPlan | None:
    """Return the plans for the next generation, or None if the agent has exited.

    Raises:
        OSError: if no descriptor is left.
    """
    header = descriptors.receive(control, _COUNT.size, socket.MSG_WAITALL)
    if not header:
        return None
    (count,) = _COUNT.unpack(header)
    if count > _FEW:
        descriptors.raise_limit()
    fds: list[int] = []
    while len(fds) < count:
        data, some, flags, _ = socket.recv_fds(control, 1, _MAX_AT_ONCE)
        if not data:
            return None
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        fds += some
    for fd in fds:  # recv_fds does not pass on MSG_CMSG_CLOEXEC in Python 3.11
        os.set_inheritable(fd, False)
    file, connection, stdin, *others = fds
    described = os.pread(file, os.fstat(file).st_size, 0)
    plans, scratch = marshal.loads(described)  # noqa: S302  # written by our own agent
    os.close(file)
    outputs, held = others[: 2 * len(plans)], others[2 * len(plans) :]
    pairs = zip(outputs[::2], outputs[1::2], strict=True)
    workers = [
        WorkerPlan(local_rank, argv, variables, *pair, cpus, signal_group)
        for (local_rank, argv, variables, cpus, signal_group), pair in zip(
            plans, pairs, strict=True
        )
    ]
    return GenerationPlan(workers, connection, stdin, scratch, held)


def send_worker(connection: socket.socket, plan: WorkerPlan) -> None:
    """Send the plan for an additional worker in a running generation, together with the command
    `start`.

    Raises:
        OSError: if it can't be sent, or no descriptor is left.
    """
    described = (plan.argv, dict(plan.variables), plan.cpus, plan.signal_group)
    with open(system.anonymous_file("relight-plan"), "wb", buffering=0) as file:
        file.write(marshal.dumps(described, _FORMAT))
        line = b"start %d\n" % plan.local_rank
        socket.send_fds(connection, [line], [file.fileno(), 0, plan.stdout, plan.stderr])


def receive_worker(local_rank: int, fds: Sequence[int]) -> tuple[WorkerPlan, int]:
    """Return the plan for an additional worker in a generation, and the worker's standard input.

    Raises:
        OSError: if this process had no descriptors left to receive those sent with the command.
    """
    if len(fds) != 4:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    file, stdin, stdout, stderr = fds
    described = os.pread(file, os.fstat(file).st_size, 0)
    argv, variables, cpus, signal_group = marshal.loads(described)  # noqa: S302  # by our agent
    os.close(file)
    return WorkerPlan(local_rank, argv, variables, stdout, stderr, cpus, signal_group), stdin
