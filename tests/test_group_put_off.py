"""A coordinator that pauses for a while, as when it is suspended, misses nothing."""

from conftest import LIMIT_S

from relight.agent.group import Group
from relight.core.group.group_types import GroupSettings, GroupState, NodeLost, Received
from relight.core.group.messages import Join, NodeLeaving, NodeReady, WorkersSucceeded
from relight.core.ranks import NO_GENERATION
from relight.host.loop import Loop


def test_suspended_coordinator_notices_lost_node_on_resume() -> None:
    """During the suspension, the record expired and the node's connection was closed. Then the
    process renews the record.
    """
    loop, coordinates = Loop(), True
    try:
        group = Group(loop, GroupSettings(2, 2, 0), lambda: coordinates)
        for node in ("a", "b"):
            join = Join(node, f"host-{node}", "", 1, "default", -1, 2, 2, 0, {}, None)
            group.step(Received(node, join))
            group.step(Received(node, NodeReady(NO_GENERATION, 29500, (), ())))
        assert group.membership.state is GroupState.RUNNING
        coordinates = False
        group.step(NodeLost("b", "the peer closed the connection"))
        loop.run_until(lambda: False, 0.2)
        assert group.membership.state is GroupState.RUNNING
        coordinates = True
        loop.run_until(lambda: group.membership.state is not GroupState.RUNNING, LIMIT_S)
        assert group.membership.state is not GroupState.RUNNING
        assert "b" not in group.membership.members
    finally:
        loop.close()


def test_former_coordinator_does_not_wait_for_nodes_that_left_finished_job() -> None:
    """On a busy machine, for example, the record may be renewed too late. The former coordinator's
    agent must not wait for nodes that have already left.
    """
    loop, coordinates = Loop(), True
    try:
        group = Group(loop, GroupSettings(2, 2, 0), lambda: coordinates)
        for node in ("a", "b"):
            join = Join(node, f"host-{node}", "", 1, "default", -1, 2, 2, 0, {}, None)
            group.step(Received(node, join))
            group.step(Received(node, NodeReady(NO_GENERATION, 29500, (), ())))
        generation = group.membership.live.id
        for node in ("a", "b"):
            group.step(Received(node, WorkersSucceeded(generation)))
        assert group.membership.state is GroupState.ENDED
        coordinates = False
        group.step(Received("b", NodeLeaving("the job is over")))
        assert list(group.membership.members) == [group.membership.members["a"]]
    finally:
        loop.close()
