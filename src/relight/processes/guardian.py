"""Implements the guardian. It terminates the workers when their spawner is killed, on systems where
the kernel doesn't (`host/portable.py`).

The guardian is an orphan and never starts a process. From its pipe it reads `holder PID` (the
spawner's pid), `began PID` and `ended PID` for each worker, and `swept` once all of the workers'
descendants have been killed. When the spawner exits, the guardian reaches the end of the pipe. If
the spawner has not killed the descendants by then, the guardian does.
"""

import os
import select
import signal
from contextlib import suppress

from relight.base.text import LineBuffer
from relight.host import portable


def watch(told: int, sweeps: int, agent: int) -> None:
    """Wait until the spawner has exited, then end the remaining workers.

    Args:
        told: the pipe from the spawner. Workers also write to it until their programs start.
        sweeps: a pipe whose other end signals that this process has exited.
        agent: a pipe that reaches its end when the agent exits. The spawner then receives SIGCONT,
            in case it is stopped.
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
        if holder and agent not in watched:  # the agent may exit before `holder` arrives
            _wake(holder)
    if running or ended:
        portable.sweep(running, ended)
    os._exit(0)


def _wake(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has also been killed, so the pipe reaches its end
        os.kill(pid, signal.SIGCONT)
