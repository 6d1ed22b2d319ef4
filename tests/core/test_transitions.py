"""The transitions of the group's state: scenarios take each one, and all others are errors."""

from itertools import product

import pytest
from core.plays import Table, formed, table
from documentation import group

from relight.core.group import membership
from relight.core.group.group_types import GroupState
from relight.core.group.transitions import TRANSITIONS, Reason, next_state

RUN = "0 a b joins"
STOP = f"{RUN}; 1 a failed"
RETURN = "9 a b returns"
SCENARIOS = {
    (GroupState.GATHERING, Reason.GENERATION_FORMED): RUN,
    (GroupState.GATHERING, Reason.JOIN_TIMEOUT): "0 a joins; 1000 -",
    (GroupState.GATHERING, Reason.GENERATION_ANNOUNCED): "9 a returns",
    (GroupState.RUNNING, Reason.WORKER_FAILED): STOP,
    (GroupState.RUNNING, Reason.WORKERS_ENDED): f"{RUN}; 1 a ends",
    (GroupState.RUNNING, Reason.NODE_LOST): f"{RUN}; 1 a lost",
    (GroupState.RUNNING, Reason.NODE_ELSEWHERE): f"{RUN}; 1 a returns-elsewhere",
    (GroupState.RUNNING, Reason.HANG): f"{RUN}; 40 a b quiet30",
    (GroupState.RUNNING, Reason.CHECKPOINT_AGREED): f"{RUN}; 1 a preempted; 20 -",
    (GroupState.RUNNING, Reason.NEWCOMERS_ADMITTED): f"{RUN}; 30 c joins; 60 -",
    (GroupState.RUNNING, Reason.ALL_SUCCEEDED): f"{RUN}; 1 a b done",
    (GroupState.STOPPING, Reason.WORKERS_STOPPED): f"{STOP}; 2 a ends; 2 b ready",
    (GroupState.STOPPING, Reason.NO_RESTART_LEFT): f"{STOP}; 2 a ends; 2 b ready",
    (GroupState.RECOVERING, Reason.GENERATION_ANNOUNCED): "9 a returns; 9 b returns-elsewhere",
    (GroupState.RECOVERING, Reason.GENERATION_RECOVERED): RETURN,
    (GroupState.RECOVERING, Reason.NODE_LOST): "9 a returns; 9 a leaves",
    (GroupState.RECOVERING, Reason.WORKERS_ENDED): "9 a returns; 9 b ended-failed; 30 -",
    (GroupState.RECOVERING, Reason.WORKERS_SAVED): "9 a b returns-and-saves; 30 -",
}
"""A scenario for each transition. Nodes that return have a new coordinator."""


def play(game: Table, script: str) -> None:
    for line in script.split("; "):
        time, *nodes, verb = line.split()
        game.wait(float(time))
        if verb == "returns-elsewhere":  # with workers of a later generation
            for node in nodes:
                later = game.last[node].generation._replace(id=formed(7, 9))
                game.last[node] = game.last[node]._replace(generation=later)
        for event in (event for node in nodes for event in game.events(node, verb)):
            game.step(event)


@pytest.mark.parametrize("transition", TRANSITIONS, ids=lambda each: each[1].name)
def test_scenario_takes_each_transition(
    transition: tuple[GroupState, Reason], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[GroupState, Reason]] = []

    def record(state: GroupState, reason: Reason) -> GroupState:
        taken.append((state, reason))
        return next_state(state, reason)

    monkeypatch.setattr(membership, "next_state", record)
    script = SCENARIOS[transition]
    restarts = 0 if transition[1] is Reason.NO_RESTART_LEFT else 3
    newcomers = transition[1] is Reason.NEWCOMERS_ADMITTED
    game = table(2, 3 if newcomers else 2, max_restarts=restarts, lost_after_s=5.0)
    if "returns" in script.split("; ")[0]:
        play(game, RUN)
        game = game.follow()
    play(game, script)
    assert transition in taken


def test_impossible_transition_is_an_error() -> None:
    for transition in {*product(GroupState, Reason)} - TRANSITIONS.keys():
        with pytest.raises(ValueError, match="impossible transition in state"):
            next_state(*transition)


def test_group_page_is_up_to_date() -> None:
    """`python -m documentation.group` writes it, from the table."""
    assert group.PAGE.read_text() == group.page()
