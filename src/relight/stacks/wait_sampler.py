"""Measures how much of its time each worker spends waiting for its peers (--watch-slow-ranks).
Workers are observed from the outside.

The stack of each worker is sampled about ten times per second. At the end of each window, this
module reports how often the worker was in a collective. core/group/straggler_detector compares the
reports.
"""

import random
from collections.abc import Callable, Mapping

from relight.core.diagnosis import stack_text
from relight.core.group.straggler_detector import WINDOWS
from relight.host.loop import Alarm, Loop
from relight.stacks.process_memory import StackError
from relight.stacks.rank_processes import find_python
from relight.stacks.sampler import MainThread

_LOOKS = 100
"""The number of samples per window, if the window is long enough."""
_MIN_S = 0.025
"""The minimum average interval between samples."""
_TELL_AFTER = 3
"""The number of consecutive windows in which workers must be unreadable before the user is
notified. They may still be starting.
"""


class PaceWatch:
    """Observes this node's workers during one generation.

    Args:
        loop: the agent's loop.
        seconds: the length of the window over which ranks are compared.
        size: the number of workers on this node.
        running: returns the pids of the running workers, by local rank, or None while they are
            frozen.
        steps: returns, by local rank, the last step of each worker that has reported one.
        report: called at the end of each window. The arguments are, by local rank, how often each
            worker was sampled, how often it was waiting, and how many steps it has done, or -1 if
            it doesn't report steps.
        say: prints a line to the user.
    """

    def __init__(
        self,
        loop: Loop,
        seconds: float,
        size: int,
        running: Callable[[], Mapping[int, int] | None],
        steps: Callable[[], Mapping[int, int]],
        report: Callable[[tuple[int, ...], tuple[int, ...], tuple[int, ...]], None],
        say: Callable[[str], None],
    ) -> None:
        self._window_s = seconds / WINDOWS
        self._every_s = max(self._window_s / _LOOKS, _MIN_S)
        self._running = running
        self._steps = steps
        self._report = report
        self._say = say
        self._threads: dict[int, MainThread] = {}
        self._window = _Window(size, steps())
        self._unreadable = 0  # consecutive windows in which a worker was unreadable
        self._sample_alarm = Alarm(loop, self._sample_all)
        self._window_alarm = Alarm(loop, self._end_window)
        self._schedule_sample()
        self._window_alarm.set_after(self._window_s)

    def close(self) -> None:
        """Stop observing."""
        self._sample_alarm.set(None)
        self._window_alarm.set(None)
        for thread in self._threads.values():
            thread.close()

    def _schedule_sample(self) -> None:
        # Sampling at regular intervals could synchronize with the training loop.
        self._sample_alarm.set_after(random.uniform(0.5, 1.5) * self._every_s)  # noqa: S311

    def _sample_all(self) -> None:
        self._schedule_sample()
        for local_rank, pid in (self._running() or {}).items():
            if local_rank not in self._window.errors:
                try:
                    self._sample(local_rank, pid)
                except StackError as error:
                    self._window.errors[local_rank] = error
                    thread = self._threads.pop(local_rank, None)
                    if thread is not None:
                        thread.close()

    def _sample(self, local_rank: int, pid: int) -> None:
        thread = self._threads.get(local_rank)
        if thread is None:
            thread = self._threads[local_rank] = MainThread(find_python(pid))
        state, frames = thread.look()
        self._window.looks[local_rank] += 1
        self._window.waits[local_rank] += stack_text.waits_for_all(frames, state)

    def _end_window(self) -> None:
        self._window_alarm.set_after(self._window_s)
        window, steps = self._window, self._steps()
        self._window = _Window(len(window.looks), steps)
        self._unreadable = self._unreadable + 1 if window.errors else 0
        if self._unreadable == _TELL_AFTER:
            error = next(iter(window.errors.values()))
            hint = f" ({error.hint})" if error.hint else ""
            self._say(f"can't see whether ranks are slow: {error.message}{hint}")
        done = [steps[rank] - window.steps.get(rank, 0) if rank in steps else -1
                for rank in range(len(window.looks))]  # fmt: skip
        self._report(tuple(window.looks), tuple(window.waits), tuple(done))


class _Window:
    """The samples of workers taken in one window, keyed by local rank.

    Args:
        size: the number of workers.
        steps: the last step that each worker had reported when the window began.
    """

    def __init__(self, size: int, steps: Mapping[int, int]) -> None:
        self.looks, self.waits = [0] * size, [0] * size
        self.steps = steps
        self.errors: dict[int, StackError] = {}
        """The error that stopped the sampling of a worker in this window."""
