"""Handles external interruptions of a job on this node: signals and preemption notices.

A node counts as preempted if it receives SIGTERM or the --on-preempt notice while its workers can
save a checkpoint. Workers can save one if they have called `relight.worker.should_checkpoint`. The
workers on all nodes then save and leave at the same step, this node leaves the job, and the other
nodes continue without it. Workers that exceed the grace time are killed. If no coordinator can be
reached, this node's workers save on their own.

Workers that haven't called that function, but have a handler for the --on-preempt signal, receive
the signal instead. If one of them exits, this node's other workers may finish saving before they
are stopped (core/workers/supervision).

Any other stop signal, or a second signal, stops this node's workers immediately.
"""

import os
import signal
from functools import partial

from relight.agent.agent_config import AgentConfig
from relight.agent.node import WITHOUT_COORDINATOR_S, Node
from relight.base.errors import signal_name
from relight.base.text import format_duration
from relight.events.event_types import SignalReceived
from relight.host.loop import Loop
from relight.output.journal import Journal

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""The signals that only workers may handle."""
_NOTICE_POLL_S, _PARENT_POLL_S = 1.0, 0.5
_AGREEMENT_S = 2.0
"""How long the workers wait, after the time limit for an agreement, before they save on their
own.
"""


class Interruption:
    """Listens for signals and for a preemption notice, and passes them on to the workers and to the
    group.

    Args:
        job: the job's configuration, which defines the signals and the notice.
        loop: the agent's loop.
        journal: for messages to the user, and events.
        node: the node, with its workers and its link to the group.
    """

    def __init__(self, job: AgentConfig, loop: Loop, journal: Journal, node: Node) -> None:
        self.signals: list[int] = []
        """The stop signals that this agent has received. If its node is preempted, the agent acts
        as if it had received a stop signal. After the first signal, it leaves the job.
        """
        self._spec = job.spec
        self._grace_s = job.grace_s
        self._loop = loop
        self._journal = journal
        self._node = node
        notice = self._spec.on_preempt
        self._notice = notice.signals if notice is not None else ()
        self._listen()
        if notice is not None and notice.file:
            loop.call_after(0, partial(self._poll_notice, notice.file))
        if self._spec.end_with_parent:
            loop.call_after(_PARENT_POLL_S, partial(self._poll_parent, os.getppid()))

    def stop(self) -> None:
        """Stop the job as SIGTERM would."""
        if self._can_save():
            self._on_preempted("was asked to stop")
        else:
            self._stop_by(signal.SIGTERM)

    def _listen(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, no exit status is reported
        stopping = {*self._spec.signals_to_handle, *self._notice}
        for number in stopping:
            # A job under nohup outlives its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.on_signal(number, self._on_signal)
        for number in _PASSED_ON:
            ignored = signal.getsignal(number) is signal.SIG_IGN  # workers inherit that
            if number not in stopping and not ignored:
                self._loop.on_signal(number, self._pass_on)
        if signal.getsignal(signal.SIGWINCH) is not signal.SIG_IGN:
            self._loop.on_signal(signal.SIGWINCH, self._on_resize)

    def _poll_notice(self, path: str) -> None:
        """Check for the --on-preempt file, immediately and then every second until it exists."""
        if os.path.exists(path):
            self._on_preempted(f"{path} was created")
        else:
            self._loop.call_after(_NOTICE_POLL_S, partial(self._poll_notice, path))

    def _poll_parent(self, pid: int) -> None:
        """Wait until the process that started this one has exited. PR_SET_PDEATHSIG is not used,
        because it would report the exit of the thread that started this process, even if the
        parent's other threads are still running.
        """
        if os.getppid() != pid:
            self._on_parent_ended(pid)
        else:
            self._loop.call_after(_PARENT_POLL_S, partial(self._poll_parent, pid))

    def _on_parent_ended(self, pid: int) -> None:
        if not (self.signals or self._node.preempted):
            self._journal.say(
                f"process {pid}, which started this job, has ended: stopping (--end-with-parent)"
            )
            self.stop()

    def _on_signal(self, number: int) -> None:
        self._journal.record(SignalReceived(number))
        if number in (signal.SIGTERM, *self._notice) and self._can_save():
            self._on_preempted(f"got {signal_name(number)}")
        elif number in self._spec.signals_to_handle:
            self._stop_by(number)
        elif self._node.workers is not None:
            # The node may stay up for a while, so the workers may finish in time or handle the
            # signal.
            self._node.workers.forward_signal(number, is_notice=True)

    def _stop_by(self, number: int) -> None:
        self.signals.append(number)
        if self._node.workers is not None:
            self._node.workers.stop_on_signal(number)

    def _on_preempted(self, reason: str) -> None:
        """Make all workers in the job save a checkpoint and leave, then leave."""
        if self._node.preempted or self.signals:
            return
        if not self._can_save():
            self._journal.say(
                f"preempted: {reason}; workers don't support checkpointing, stopping now"
            )
            self._stop_by(signal.SIGTERM)
            return
        self._journal.say(f"preempted: {reason}; send another signal to stop the workers now")
        self._node.preempt(reason)
        self._loop.call_after(self._grace_s, self._stop_preempted)
        self._save_without_coordinator()
        from relight.core.group import checkpoint_barrier  # kept off the launch path

        agree_s = checkpoint_barrier.longest_s(self._grace_s)
        self._loop.call_after(agree_s + _AGREEMENT_S, self._node.save_alone)

    def _save_without_coordinator(self) -> None:
        left_s = WITHOUT_COORDINATOR_S - self._node.unheard_s
        workers = self._node.running
        if left_s <= 0:
            self._node.save_alone()
        elif workers is not None and workers.stopped_by is None:
            self._loop.call_after(left_s, self._save_without_coordinator)

    def _can_save(self) -> bool:
        is_first = not (self._node.preempted or self.signals)
        workers = self._node.running
        return is_first and workers is not None and workers.can_save

    def _stop_preempted(self) -> None:
        workers = self._node.running
        if workers is not None and not self.signals:
            limit = format_duration(self._grace_s, digits=int(self._grace_s < 1))
            self._journal.say(f"preempted: workers did not exit within {limit}; killing them")
            self.signals.append(signal.SIGTERM)
            workers.kill()

    def _pass_on(self, number: int) -> None:
        if self._node.workers is not None:
            self._node.workers.forward_signal(number)

    def _on_resize(self, _: int) -> None:
        if self._node.workers is not None:
            self._node.workers.logs.resize()
