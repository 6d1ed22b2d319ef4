"""Detects workers that have been in an uninterruptible system call for too long.

This implements TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT (torch 2.13,
elastic/agent/server/local_elastic_agent.py). No operating system reports when a process enters such
a call, so the workers are polled at torchrun's interval. They are polled only if the variable is
set.
"""

from collections.abc import Callable, Mapping

from relight.host import system
from relight.host.loop import Loop, Timer

_EVERY_S = 0.1


class StuckWatch:
    """Polls the state of one generation's workers.

    Args:
        loop: the agent's loop.
        pids: the workers' pids, by local rank. Pids may be added later.
        limit_s: for how many seconds every poll may find a worker in state D (proc(5)).
        on_stuck: called once with the local rank of a worker that exceeds the limit.
    """

    def __init__(
        self,
        loop: Loop,
        pids: Mapping[int, int],
        limit_s: float,
        on_stuck: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._pids = pids
        self._limit_s = limit_s
        self._on_stuck = on_stuck
        self._since: dict[int, float] = {}
        self._timer: Timer = loop.call_after(_EVERY_S, self._poll)

    def close(self) -> None:
        """Stop polling."""
        self._timer.cancel()

    def _poll(self) -> None:
        now = self._loop.now()
        self._timer = self._loop.call_after(_EVERY_S, self._poll)
        for local_rank, pid in list(self._pids.items()):
            if not system.is_uninterruptible(pid):
                self._since.pop(local_rank, None)
            elif now - self._since.setdefault(local_rank, now) >= self._limit_s:
                self._since[local_rank] = float("inf")
                self._on_stuck(local_rank)
