"""The process that ends workers when the one that holds them was killed; where the system does not
(`host/portable.py`).

It is nobody's child and starts nothing. On its pipe it hears `holder PID`, `began PID`,
`ended PID` for each worker, and `swept` once all that they had started was killed. The pipe ends
with the process that holds the workers. If that has not swept, the guardian does.
"""

import os
import select
import signal

from relight.host import portable


def watch(told: int, sweeps: int, agent: int) -> None:
    """Watch until the holder of the workers is gone, and end what is left of them.

    Args:
        told: the pipe from the holder and, until their programs start, the workers.
        sweeps: a pipe that somebody waits on; it ends with this process.
        agent: a pipe that ends with the agent. The holder must see that, also if it is stopped.
    """
    del sweeps
    holder = 0
    running: set[int] = set()
    ended: set[int] = set()
    buffer = b""
    watched = [told, agent]
    while True:
        readable, _, _ = select.select(watched, [], [])
        if told in readable:
            data = os.read(told, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
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
        if holder and agent not in watched:  # the agent may have ended before we knew the holder
            _wake(holder)
    if running or ended:
        portable.sweep(running, ended)
    os._exit(0)


def _wake(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it was killed as well; its end of the pipe says so
