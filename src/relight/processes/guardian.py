"""The guardian: ends the workers when their spawner was killed, on systems where the kernel does
not (`host/portable.py`).

Its parent is gone and it never starts a process. It reads from its pipe `holder PID` (the
spawner's), `began PID` and `ended PID` for each worker, and `swept` after all their descendants
were killed. The pipe ends with the spawner. If the spawner has not swept, the guardian does.
"""

import os
import select
import signal

from relight.base.text import LineBuffer
from relight.host import portable


def watch(told: int, sweeps: int, agent: int) -> None:
    """Wait until the spawner is gone, and end the workers that are left.

    Args:
        told: the pipe from the spawner and, until their programs start, the workers.
        sweeps: a pipe whose other end is waited on; it ends with this process.
        agent: a pipe that ends with the agent. The spawner is then continued if it is stopped.
    """
    del sweeps
    holder = 0
    running: set[int] = set()
    ended: set[int] = set()
    buffer = LineBuffer()
    watched = [told, agent]
    while True:
        readable, _, _ = select.select(watched, [], [])
        if told in readable:
            data = os.read(told, 65536)
            if not data:
                break
            for line in buffer.feed(data):
                word, _, pid = line.partition(b" ")
                if word == b"holder":
                    holder = int(pid)
                elif word == b"began":
                    running.add(int(pid))
                elif word == b"ended":
                    running.discard(int(pid))
                    ended.add(int(pid))
                else:
                    ended.clear()
        if agent in readable:
            watched.remove(agent)
        if holder and agent not in watched:  # the agent may end before `holder` arrives
            _wake(holder)
    if running or ended:
        portable.sweep(running, ended)
    os._exit(0)


def _wake(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it was also killed; the pipe ends then
