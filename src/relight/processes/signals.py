"""The signals that an agent handles."""

import signal
from collections.abc import Callable

from relight.flags.spec import LaunchSpec
from relight.host.loop import Loop

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
Callback = Callable[[int], None]


def listen(
    loop: Loop, spec: LaunchSpec, on_stop: Callback, on_other: Callback, on_resize: Callback
) -> None:
    """Register callbacks for this process's signals.

    Args:
        loop: the agent's loop.
        spec: contains the signals that stop the job (`--signals-to-handle`) and those that announce
            a preemption (`--on-preempt`).
        on_stop: called for any of those signals.
        on_other: called for signals that only workers may handle.
        on_resize: called when the terminal's size changes.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, no exit status is reported
    notice = spec.on_preempt.signals if spec.on_preempt is not None else ()
    stopping = dict.fromkeys((*spec.signals_to_handle, *notice))
    for number in stopping:
        # A job under nohup outlives its terminal.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.on_signal(number, on_stop)
    for number in _PASSED_ON:
        ignored = signal.getsignal(number) is signal.SIG_IGN  # workers inherit that
        if number not in stopping and not ignored:
            loop.on_signal(number, on_other)
    if signal.getsignal(signal.SIGWINCH) is not signal.SIG_IGN:
        loop.on_signal(signal.SIGWINCH, on_resize)
