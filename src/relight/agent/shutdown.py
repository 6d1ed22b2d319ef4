"""Handles all the ways in which an agent can leave its job, except after success. This module is
loaded only when it is needed.

    by_signal       the agent received a stop signal
    as_unfit        the node has failed its health check
    as_preempted    the node is about to be preempted
    as_stuck        a worker can't be killed
    after_failure   the group reports that the job has failed

After `as_unfit`, `as_preempted` and `as_stuck`, no worker may be restarted on this node. If workers
have also failed here, the agent reports that failure as if the job had ended.
"""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from relight.agent.agent_config import AgentConfig
from relight.agent.node import Node
from relight.agent.worker_group import AgentContext, GenerationResult, WorkerGroup
from relight.base.errors import (
    EXIT_MACHINE,
    EXIT_PREEMPTED,
    UNFIT_CODE_VARIABLE,
    signal_exit_code,
    signal_name,
)
from relight.core.group.messages import JobEnded, NodeLeaving, NodeReady
from relight.events.event_types import NotRestarting

if TYPE_CHECKING:
    from relight.agent.health_check import HealthCheckFailure

_TELL_S = 3.0
"""How long a leaving node tries to report the reason to the group."""


class Leaving:
    """The ways an agent can leave its job. Each method returns the agent's exit code and the reason
    why the job ended here.

    Args:
        job: the configuration of this node.
        services: the agent's loop and journal.
        node: the node, in its latest state, with its link to the coordinator.
    """

    def __init__(self, job: AgentConfig, services: AgentContext, node: Node) -> None:
        self._job = job
        self._loop = services.loop
        self._journal = services.journal
        self._node = node

    def by_signal(self, number: int) -> tuple[int, str]:
        """Leave after a stop signal."""
        self._show_tracebacks()
        reason = f"agent got {signal_name(number)}"
        if self._job.meeting is not None and isinstance(self._node.state, NodeReady):
            self._journal.say(
                f"got {signal_name(number)} before workers could start: {self._node.explain()}"
            )
        self._node.link.send(NodeLeaving(f"its {reason}"))
        if number == signal.SIGTERM and self._node.has_saved:
            self._journal.say(
                f"workers already checkpointed and exited; exit code {EXIT_PREEMPTED}"
            )
            return EXIT_PREEMPTED, f"the {reason}"
        return signal_exit_code(number), f"the {reason}"

    def as_unfit(
        self, unfit: "HealthCheckFailure", outcome: GenerationResult, is_over: Callable[[], bool]
    ) -> tuple[int, str]:
        """Leave after a failed health check.

        Args:
            unfit: the result of the check.
            outcome: the result of the previous workers on this node.
            is_over: returns whether the job has ended or a signal has arrived.
        """
        from relight.agent import health_check, postmortem

        env, node = self._job.command.env, self._node
        reason = f"its health check failed: {unfit.why}"
        leaves = f"the node is leaving: {reason}"
        code, node.is_unfit = env.get(UNFIT_CODE_VARIABLE), True
        self._journal.say(health_check.explain(unfit))
        if outcome.failures and node.workers is not None:
            end = self._give_up(node.workers, outcome, reason, "the health check failed")
            return (EXIT_MACHINE, leaves) if code else end
        # A check often finishes before this node has reached the coordinator.
        self._loop.run_until(lambda: self._node.link.has_joined or is_over(), _TELL_S)
        if code:  # the coordinator tells a new node within a second whether the others are running
            self._loop.run_until(lambda: node.others_formed is not None or is_over(), _TELL_S)
        self._node.link.send(NodeLeaving(reason))
        postmortem.tell_container(leaves, env)
        return self._unfit_exit_code(), leaves

    def _unfit_exit_code(self) -> int:
        code = self._job.command.env.get(UNFIT_CODE_VARIABLE)
        return int(code) if code.isdecimal() and self._node.others_formed else EXIT_MACHINE

    def as_preempted(
        self, workers: WorkerGroup, outcome: GenerationResult, is_over: Callable[[], bool]
    ) -> tuple[int, str]:
        """Leave the job after a preemption, once the workers have exited. The node stays up while
        workers on other nodes save a checkpoint, because it may be their coordinator or may be
        needed to elect the coordinator.

        Args:
            workers: the workers, which have exited.
            outcome: the workers' result.
            is_over: returns whether the coordinator has released this node or a signal has arrived.
        """
        why = self._node.preempted
        reason = f"it is preempted ({why})"
        if any(each.exitcode and not each.stop_signal for each in outcome.failures):
            verdict_reason = "this node is preempted"
            wait = is_over if workers.saves else None  # other nodes may still be saving
            return self._give_up(workers, outcome, reason, verdict_reason, wait)
        self._node.link.send(NodeLeaving(reason, waits=workers.all_exited_with_0))
        if not workers.all_exited_with_0:
            code = signal_exit_code(signal.SIGTERM)
            self._journal.say(f"preempted: workers had to be stopped; exit code {code}")
            return code, f"the node is preempted: {why}"
        self._node.wait_for_saving(is_over)
        self._journal.say(f"preempted: all workers exited in time; exit code {EXIT_PREEMPTED}")
        return EXIT_PREEMPTED, f"the node is preempted: {why}"

    def as_stuck(self, workers: WorkerGroup, outcome: GenerationResult) -> tuple[int, str]:
        """Leave the job because a worker can't be killed."""
        why = f"its {workers.stuck} is in an uninterruptible system call and can't be killed"
        verdict_reason = f"{workers.stuck} may still hold its GPU and memory"
        return self._give_up(workers, outcome, why, verdict_reason)

    def after_failure(self, end: JobEnded) -> tuple[int, str]:
        """Report a failed job to the user, to other programs, and to the parent process."""
        env, node = self._job.command.env, self._node
        if end.verdict:
            host = end.root.host if end.root is not None else ""
            self._journal.record(NotRestarting(end.verdict, host))
        if self._job.spec.failure_report:
            from relight.agent import failure_report

            why = failure_report.write(end, node.failures, self._job, node.restart)
            if why:
                self._journal.say(why)
        from relight.agent import postmortem

        report = postmortem.report(end, node.failures, env)
        self._show_tracebacks(report)
        self._journal.say_with_traceback(report)
        path = env.get("TORCHELASTIC_ERROR_FILE")
        failure = end.symptom or end.root
        if path and failure is not None:  # set by a program that runs this agent as its worker
            workers = node.workers
            ours = workers is not None and workers.owns_failure(failure)
            logs = workers.logs if workers and ours else None
            postmortem.tell_parent(
                path, failure, logs, end.headline if env.get(postmortem.JOB) else ""
            )
        postmortem.tell_container(end.headline, env)
        return self._unfit_exit_code() if end.others_run else end.exit_code, end.headline

    def _give_up(
        self,
        workers: WorkerGroup,
        outcome: GenerationResult,
        why: str,
        verdict_reason: str,
        is_over: Callable[[], bool] | None = None,
    ) -> tuple[int, str]:
        """Leave the job after a failure because no worker may be restarted on this node.

        Args:
            workers: the worker group that failed.
            outcome: how the workers failed.
            why: the reason, for the other nodes.
            verdict_reason: the reason, for the report.
            is_over: returns whether the coordinator has released this node or a signal has arrived.
                If it is None, leave without waiting for workers on other nodes to save.
        """
        from relight.core.group import restart_decision

        now, report = self._loop.now(), self._node.last_report(outcome)
        self._node.link.send(NodeLeaving(why, waits=is_over is not None))
        ends = [failure._replace(at=failure.at + now) for failure in outcome.failures]
        ended = restart_decision.GenerationEnd(ends, outcome.succeeded_ranks, "", workers.began)
        end = restart_decision.end(ended, f"no restart: {verdict_reason}", now)
        if is_over is not None:
            self._node.wait_for_saving(is_over)
        self._node.abort(report, end)
        return self.after_failure(end)

    def _show_tracebacks(self, report: str = "") -> None:
        """Show the tracebacks of the latest generation's workers, except for those included in
        `report`.
        """
        if self._node.workers is not None:
            self._node.workers.show_tracebacks(report)
