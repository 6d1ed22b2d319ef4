"""The group's main state and its transitions, as data. docs/group.md shows them as a table.

GATHERING   no workers run; nodes join
RUNNING     a generation is live
STOPPING    all nodes of the generation have been ordered to stop their workers
RECOVERING  this coordinator is new; nodes announce the generation that they are in
ENDED       all nodes receive JobEnded, including late arrivals
"""

from enum import Enum

from relight.core.group.group_types import GroupState


class Reason(Enum):
    """Why the group changes its state."""

    GENERATION_ANNOUNCED = "a node announces a live generation that outranks the known one"
    GENERATION_FORMED = "enough nodes are ready, and no others are worth waiting for"
    JOIN_TIMEOUT = "the join timeout passes without enough nodes"
    WORKER_FAILED = "a worker fails"
    WORKERS_ENDED = "a node no longer has workers"
    NODE_LOST = "a node is lost or leaves"
    NODE_ELSEWHERE = "a node turns out to be in another generation"
    HANG = "the workers on all nodes are idle for too long"
    CHECKPOINT_AGREED = "the workers have agreed on when to save, for newcomers or a preemption"
    NEWCOMERS_ADMITTED = "newcomers are admitted, and workers can't be asked to save"
    ALL_SUCCEEDED = "the workers on all nodes have succeeded"
    WORKERS_STOPPED = "all nodes have stopped their workers, or are lost or overdue"
    NO_RESTART_LEFT = "all nodes have stopped after a failure, and the job may not restart"
    GENERATION_RECOVERED = "all nodes of the generation are here, and their workers are running"
    WORKERS_SAVED = "the workers were ordered to save and exit by the former coordinator"


_GATHERING, _RUNNING = GroupState.GATHERING, GroupState.RUNNING
_STOPPING, _RECOVERING = GroupState.STOPPING, GroupState.RECOVERING

TRANSITIONS = {
    (_GATHERING, Reason.GENERATION_ANNOUNCED): _RECOVERING,
    (_GATHERING, Reason.GENERATION_FORMED): _RUNNING,
    (_GATHERING, Reason.JOIN_TIMEOUT): GroupState.ENDED,
    (_RUNNING, Reason.WORKER_FAILED): _STOPPING,
    (_RUNNING, Reason.WORKERS_ENDED): _STOPPING,
    (_RUNNING, Reason.NODE_LOST): _STOPPING,
    (_RUNNING, Reason.NODE_ELSEWHERE): _STOPPING,
    (_RUNNING, Reason.HANG): _STOPPING,
    (_RUNNING, Reason.CHECKPOINT_AGREED): _STOPPING,
    (_RUNNING, Reason.NEWCOMERS_ADMITTED): _STOPPING,
    (_RUNNING, Reason.ALL_SUCCEEDED): GroupState.ENDED,
    (_STOPPING, Reason.WORKERS_STOPPED): _GATHERING,
    (_STOPPING, Reason.NO_RESTART_LEFT): GroupState.ENDED,
    (_RECOVERING, Reason.GENERATION_ANNOUNCED): _RECOVERING,
    (_RECOVERING, Reason.GENERATION_RECOVERED): _RUNNING,
    (_RECOVERING, Reason.NODE_LOST): _STOPPING,
    (_RECOVERING, Reason.WORKERS_ENDED): _STOPPING,
    (_RECOVERING, Reason.WORKERS_SAVED): _STOPPING,
}
"""All transitions. The group stays in ENDED."""


def next_state(state: GroupState, reason: Reason) -> GroupState:
    """Return the state after a transition.

    Raises:
        ValueError: if this transition is impossible.
    """
    after = TRANSITIONS.get((state, reason))
    if after is None:
        raise ValueError(f"impossible transition in state {state.value}: {reason.value}")
    return after
