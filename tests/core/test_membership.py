"""The group forms, restarts, changes and ends: scenarios of messages to and from nodes."""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from plays import formed, record, table

from relight.core.group.group_types import GroupState, NodeLost, Received
from relight.core.group.messages import (
    Announce,
    GenerationFormed,
    NodeLeaving,
    NodeReady,
    Note,
    WaitReason,
    WorkerFailed,
    WorkersSucceeded,
)
from relight.core.ranks import NO_GENERATION

# The first generation.


def test_group_of_maximum_size_forms_immediately() -> None:
    """Once the maximum is reached, there is nothing left to wait for."""
    table(2, 2).play("""
        0 a joins
        1 b joins
        -> form 0: a b
    """)


def test_first_generation_forms_only_after_the_last_call() -> None:
    """Between the minimum and the maximum, the last call restarts with every arrival."""
    table(2, 4, settle_timeout_s=5.0).play("""
        0 a joins
        1 b joins
        5.9 -
        5.95 c joins
        10.9 -
        11 -
        -> form 0: a b c
    """)


def test_group_reports_missing_nodes_only_before_first_generation() -> None:
    """For nodes that are lost later, a wrong endpoint is not a likely reason."""
    game = table(2, 2)
    assert game.group.lacks_nodes_since() is None
    game.play("""
        3 a joins
        4 -
    """)
    assert game.group.lacks_nodes_since() == 3
    game.play("""
        5 b joins
        -> form 0: a b
    """)
    assert game.group.lacks_nodes_since() is None
    game.play("""
        6 b lost
        -> stop 0: a
        7 a ready
    """)
    assert game.group.lacks_nodes_since() is None


def test_first_node_to_arrive_has_rank_0() -> None:
    """The first node's name doesn't matter, and it stays rank 0 in later generations. The others
    keep their order.
    """
    game = table(3, 3)
    game.step(Received("c", game.join("c", comes_first=True)))
    game.play("""
        0 c ready
        1 b joins
        2 a joins
        -> form 0: c a b
        3 b failed
        -> stop 0: a b c
        4 a b c ready
        -> form 1 restart 1: c a b
    """)


def test_node_counts_towards_the_group_once_it_is_ready() -> None:
    """The group waits for a node that has joined but isn't ready, and says so."""
    game = table(2, 2)
    game.play("""
        0 a joins
        0 b offers
    """)
    assert game.group.explain(1) == "waiting for b to become ready (join timeout in 9 min 59 s)"
    game.play("""
        1 b ready
        -> form 0: a b
    """)


def test_hosts_are_ranked_in_natural_sort_order() -> None:
    """When the first generation forms, node2 precedes node10 whatever the arrival order."""
    table(4, 4).play("""
        0 node10 node1 node9 node2 joins
        -> form 0: node1 node2 node9 node10
    """)


def test_two_agents_on_one_host_count_as_two_nodes() -> None:
    """A node is identified by its own random name, not by its host name."""
    table(3, 3).play("""
        0 x/2 x/1 w/1 joins
        -> form 0: w/1 x/2 x/1
    """)


def test_first_nodes_to_arrive_become_members_if_too_many_join() -> None:
    """The first arrivals are in the first generation, even if all nodes became ready at the same
    time.
    """
    game = table(1, 2, settle_timeout_s=1.0)
    game.play("""
        0 b c offers
        0.2 a joins
        0.3 c ready
        -> form 0: a c
        0.4 b ready
    """)
    game.wait(2)
    assert game.waits("b").spare


def test_members_receive_ranks_roles_and_rank_0_address() -> None:
    """Ranks are numbered across nodes, and separately within each role. All nodes get rank 0's
    address.
    """
    game = table(2, 2)
    game.step(Received("a", game.join("a", local_world_size=3, role="trainer", address="10.1.1.1")))
    game.step(Received("b", game.join("b", local_world_size=2, role="reader", address="10.1.1.2")))
    game.step(Received("b", NodeReady(NO_GENERATION, 4000, (), ())))
    game.step(Received("a", NodeReady(NO_GENERATION, 5000, (), ())))
    (a,), (b,) = (
        [m for m in game.heard[node] if isinstance(m, GenerationFormed)] for node in ("a", "b")
    )
    assert a.generation == b.generation
    assert (a.generation.master_addr, a.generation.master_port) == ("10.1.1.1", 5000)
    assert (a.place.first_rank, a.place.world_size, a.place.role_world_size) == (0, 5, 3)
    assert (b.place.first_rank, b.place.world_size, b.place.role_world_size) == (3, 5, 2)
    assert (b.place.group_rank, b.place.group_world_size, b.place.first_role_rank) == (1, 2, 0)


# Worker failures.


def test_failure_restarts_all_nodes_with_the_same_ranks() -> None:
    """All nodes stop, the group waits for the slowest, ranks stay the same, and one restart is
    used.
    """
    game = table(3, 3).play("""
        0 c b a joins
        -> form 0: a b c
        9 b failed
        -> stop 0: a b c
        9.1 c ready
        9.2 b ends
        12 a ready
        -> form 1 restart 1: a b c
        20 a failed
        -> stop 1: a b c
        20 b c ready
        20 a ends
        -> form 2 restart 2: a b c
    """)
    assert game.reason("c") == "a worker failed on a"
    assert "restart 2 of 3" in game.last["c"].generation.cause


def test_restart_below_maximum_size_does_not_wait_for_more_nodes() -> None:
    """With at least the minimum of nodes, a restart forms as soon as the members are ready."""
    table(2, 8, settle_timeout_s=5.0).play("""
        0 a b joins
        5 -
        -> form 0: a b
        9 a failed
        -> stop 0: a b
        9.1 a ends
        9.2 b ready
        -> form 1 restart 1: a b
    """)


def test_all_nodes_receive_root_cause_when_restart_budget_is_exhausted() -> None:
    """Members and spares alike get the root cause's exit code and the report."""
    game = table(2, 2, 1).play("""
        0 a b joins
        -> form 0: a b
        0 s joins
        5 a failed
        -> stop 0: a b
        5 b ready
        5 a ends
        -> form 1 restart 1: a b
        9 b failed
        -> stop 1: a b
        9 a ready
        9 b ends
        -> end 7: a b s
    """)
    assert game.end("a") == game.end("s")
    assert game.end("s").root.host == "b"
    assert any("on b" in line for line in game.end("a").report)
    assert "the only restart is used up" in "\n".join(game.end("a").report)
    assert game.group.explain(10) == "the job is over"


def test_job_exits_with_1_if_nothing_is_known_about_the_failure() -> None:
    """The node reports neither exit codes nor errors for its workers."""
    game = table(1, 1, 0).play("""
        0 a joins
        -> form 0: a
        1 a failed
        -> stop 0: a
    """)
    game.step(Received("a", NodeReady(formed(0), 1, (), ())))
    assert game.end("a").exit_code == 1
    assert game.end("a").reason == "a worker failed on a"


def test_failures_are_ordered_by_age_without_a_common_clock() -> None:
    """The cause is the earliest failure by its age on arrival, not the one reported first."""
    game = table(2, 2, 0).play("""
        0 a b joins
        -> form 0: a b
        9 a failed
        -> stop 0: a b
    """)
    game.step(
        Received("a", NodeReady(formed(0), 1, (record(0, exitcode=3)._replace(at=-0.1),), ()))
    )
    game.now = 12.0
    game.step(
        Received("b", NodeReady(formed(0), 1, (record(2, exitcode=4)._replace(at=-3.5),), ()))
    )
    assert game.end("a").exit_code == 4


# The end.


def test_job_succeeds_when_last_node_is_done() -> None:
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        0 s joins
        8 a done
        -> confirm 0, 0 done: b
        9 b done
        -> end 0: a b s
        10 c joins
        -> end 0: c
    """)


def test_loss_of_a_finished_node_is_harmless() -> None:
    table(2, 3).play("""
        0 a b c joins
        -> form 0: a b c
        8 a done
        -> confirm 0, 0 done: b c
        8.5 a lost
        9 c done
        -> confirm 0, 0 2 done: b
        9 b done
        -> end 0: b c
    """)


def test_finished_node_restarts_with_the_others() -> None:
    """A restart includes all nodes, even those that are done."""
    table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        8 a done
        -> confirm 0, 0 done: b
        9 b failed
        -> stop 0: a b
        9 a ready
        9 b ends
        -> form 1 restart 1: a b
    """)


def test_exit_barrier_timeout_releases_finished_node() -> None:
    """The rest of the job continues."""
    table(2, 2, exit_barrier_s=30.0).play("""
        0 a b joins
        -> form 0: a b
        8 a done
        -> confirm 0, 0 done: b
        37.9 -
        38 -
        -> end 0: a
        38 a lost
        90 b done
        -> end 0: b
    """)


def test_job_admits_no_new_nodes_once_workers_have_succeeded() -> None:
    """Once some workers have succeeded, the others aren't stopped for newcomers."""
    table(1, 3, settle_timeout_s=5.0).play("""
        0 a b joins
        5 -
        -> form 0: a b
        8 a done
        -> confirm 0, 0 done: b
        9 c joins
        30 -
        31 b done
        -> end 0: a b c
    """)


def test_finished_node_leaves_immediately_on_final_failure() -> None:
    """An exhausted budget also releases the nodes that are done."""
    table(2, 2, 0).play("""
        0 a b joins
        -> form 0: a b
        8 a done
        -> confirm 0, 0 done: b
        9 b failed
        -> stop 0: a b
        9 b ends
        9.1 a ready
        -> end 7: a b
    """)


# Ignored messages.


def test_messages_from_an_earlier_generation_are_ignored() -> None:
    """Failed, Done and Ready from an earlier generation don't affect the current one."""
    game = table(2, 2).play("""
        0 a b joins
        -> form 0: a b
        1 a failed
        -> stop 0: a b
        1 a ends
        1 b ready
        -> form 1 restart 1: a b
    """)
    first = formed(0)
    olds = [
        WorkerFailed(first, "old"),
        WorkersSucceeded(first),
        NodeReady(first, 1, (record(),), ()),
    ]
    for old in (*olds, NodeReady(NO_GENERATION, 1, (), ())):
        game.step(Received("a", old))
    assert game.sent() == []
    assert game.group.state is GroupState.RUNNING
    game.play("""
        2 a b done
        -> confirm 1, 0 done: b
        -> end 0: a b
    """)


def test_messages_from_nodes_that_have_not_joined_are_ignored() -> None:
    game = table(1, 1)
    first = formed(0)
    for message in (
        NodeReady(first, 1, (), ()),
        WorkersSucceeded(first),
        WorkerFailed(first, "x"),
        NodeLeaving("x"),
    ):
        game.step(Received("x", message))
    game.step(NodeLost("x", "no heartbeat"))
    assert game.sent() == []
    assert game.group.deadline() is None


# Rejected nodes.


def test_node_with_different_nnodes_is_rejected() -> None:
    """Only the node with the different --nnodes ends, with exit code 2. The waiting nodes get a
    note.
    """
    game = table(2, 4)
    game.play("0 a joins")
    game.step(Received("x", game.join("x", min_nodes=1)))
    assert game.sent() == ["end 2: x"]
    reason = "--nnodes=1:4 on x, but the job was started with --nnodes=2:4"
    assert game.end("x").reason == reason
    assert Note(f"x can't join: {reason}") in game.heard["a"]
    assert [member.node for member in game.group.members] == ["a"]


def test_static_node_ranks_do_not_depend_on_arrival_order() -> None:
    """The group waits for every rank."""
    table(1, 3, ordered=True, settle_timeout_s=1.0).play("""
        0 node2 joins
        1 node1 joins
        9 node0 joins
        -> form 0: node0 node1 node2
        10 node1 lost
        -> stop 0: node0 node2
        10 node0 node2 ready
        30 node1/again joins
        -> form 1: node0 node1/again node2
    """)


def test_duplicate_or_too_large_static_node_rank_is_rejected() -> None:
    """A second node with the same --node-rank is rejected by name, and so is one whose rank is too
    large.
    """
    game = table(3, 3, ordered=True).play("""
        0 node0 joins
        0 node1 joins
        1 node1/other joins
        -> end 2: node1/other
        1 node3 joins
        -> end 2: node3
        2 node1 idle
        3 node2 joins
        -> form 0: node0 node1 node2
    """)
    assert game.end("node1/other").reason == (
        "--node-rank=1 already belongs to node1; give each node its own --node-rank, or use "
        "--rdzv-backend=c10d without node ranks"
    )
    assert game.end("node3").reason == "--node-rank=3 on node3 is not below --nnodes=3"


def test_numbered_replicas_are_ranked_in_numerical_order() -> None:
    """Replica N becomes node N whatever the arrival order, even if it joins a running group. A
    replacement takes the lost node's place, whether or not it has the same number. No node waits
    for a missing number.
    """
    table(1, 3, settle_timeout_s=1.0).play("""
        0 task2 joins
        0 task1 joins
        1 -
        -> form 0: task1 task2
        5 task0 joins
        -> stop 0: task1 task2
        5 task1 task2 ready
        -> form 1: task0 task1 task2
        6 task1 lost
        -> stop 1: task0 task2
        6 task0 task2 ready
        -> form 2: task0 task2
        7 task1/again joins
        -> stop 2: task0 task2
        7 task0 task2 ready
        -> form 3: task0 task1/again task2
        8 task0 lost
        -> stop 3: task1/again task2
        8 x joins
        8 task1/again task2 ready
        -> form 4: x task1/again task2
    """)


def test_environment_mismatch_is_reported_to_new_node_and_first_node() -> None:
    """The newcomer may still join."""
    game = table(2, 2)
    game.step(Received("a", game.join("a", facts={"script": "1"})))
    game.step(Received("b", game.join("b", facts={"script": "2"})))
    notes = {node: [m for m in heard if isinstance(m, Note)] for node, heard in game.heard.items()}
    assert len(notes["a"]) == 1
    assert notes["a"] == notes["b"]
    game.play("""
        1 a b ready
        -> form 0: a b
    """)


def test_each_environment_mismatch_is_reported_once() -> None:
    """A value that another node already has was reported when the first such node joined, and the
    number of notes is limited.
    """
    game = table(100, 100)
    for index in range(60):
        game.step(Received(f"n{index}", game.join(f"n{index}", facts={"script": f"{index % 2}"})))
    notes = [(n, m) for n, heard in game.heard.items() for m in heard if isinstance(m, Note)]
    assert sorted(node for node, _ in notes) == ["n0", "n1"]
    for index in range(60):
        game.step(Received(f"m{index}", game.join(f"m{index}", facts={"script": f"m{index}"})))
    assert len([m for m in game.heard["n0"] if isinstance(m, Note)]) < 10


def test_nodes_sharing_a_machine_are_reported_once() -> None:
    """The first node gets the note. Agents in separate containers count as separate machines."""
    game = table(3, 3)
    for node, host, machine in (("a/0", "a", "m"), ("b/1", "b", "m"), ("a/2", "a", "m")):
        game.step(Received(node, game.join(node, host=host, machine=machine)))
    game.play("""
        1 a/0 b/1 a/2 ready
        -> form 0: a/0 a/2 b/1
        2 b/1 failed
        -> stop 0: a/0 a/2 b/1
        3 a/0 a/2 ready
        3 b/1 ends
        -> form 1 restart 1: a/0 a/2 b/1
    """)
    notes = [(n, m) for n, heard in game.heard.items() for m in heard if isinstance(m, Note)]
    assert [node for node, _ in notes] == ["a/0"]
    assert notes[0][1].text.startswith("2 of 3 nodes are agents on the same host, a,")


@pytest.mark.parametrize("machines", [("", ""), ("m", "n"), ("m", "")])
def test_host_name_shared_by_two_machines_is_not_reported(machines: tuple[str, str]) -> None:
    game = table(2, 2)
    for node, machine in zip(("a/0", "a/1"), machines, strict=True):
        game.step(Received(node, game.join(node, machine=machine)))
    game.play("""
        1 a/0 a/1 ready
        -> form 0: a/0 a/1
    """)
    assert not [m for heard in game.heard.values() for m in heard if isinstance(m, Note)]


def test_impossible_generation_number_does_not_affect_the_next_generation() -> None:
    game = table(1, 2)
    game.step(Received("a", game.join("a", Announce(formed(1 << 61), 0, 0, 1, done=False))))
    game.step(Received("a", NodeReady(formed(1 << 61), 1, (), ())))
    game.step(Received("b", game.join("b")))
    game.step(Received("b", NodeReady(NO_GENERATION, 1, (), ())))
    assert game.sent() == [f"stop {1 << 61}: a", "form 0: a b"]


# Notes for users.


def test_every_group_state_has_an_explanation() -> None:
    game = table(2, 4, settle_timeout_s=5.0, join_timeout_s=600.0)
    game.play("0 gpu-01 joins")
    assert game.group.explain(48) == (
        "1 of at least 2 nodes have joined: gpu-01; waiting for 1 more (join timeout in 9 min 12 s)"
    )
    game.play("48 gpu-03 joins")
    assert game.group.explain(48) == (
        "2 of at most 4 nodes have joined: gpu-01, gpu-03; "
        "the group starts if no further node joins within 5 s"
    )
    game.play("""
        53 -
        -> form 0: gpu-01 gpu-03
    """)
    assert game.group.explain(60) == "generation 0 runs on 2 nodes"
    game.play("""
        60 gpu-03 lost
        -> stop 0: gpu-01
    """)
    assert game.group.explain(60) == (
        "waiting for workers to stop on gpu-01 (gpu-03 was lost: no heartbeat)"
    )


def test_mass_join_does_not_flood_nodes_with_notes() -> None:
    """When a thousand nodes join within a second, each gets a few notes about its wait, not a
    thousand.
    """
    game = table(1000, 1000)
    for index in range(999):
        game.wait(index / 1000)
        for event in game.events(f"n{index}", "joins"):
            game.step(event)
    assert len([m for m in game.heard["n0"] if isinstance(m, WaitReason)]) <= 2
    game.wait(10)
    assert "999 of 1000 nodes have joined" in game.waits("n0").text
    assert "and 991 more" in game.waits("n0").text


def test_wait_reasons_are_sent_less_often_in_a_large_group() -> None:
    """Otherwise the coordinator would be busy with wait reasons while thousands of nodes join."""
    game = table(5000, 5000)
    for index in range(3000):
        for event in game.events(f"n{index}", "joins"):
            game.step(event)
    for second in range(1, 13):
        game.wait(second)
        game.step(game.events(f"late{second}", "joins")[0])
    assert len([m for m in game.heard["n0"] if isinstance(m, WaitReason)]) <= 5


@pytest.mark.parametrize(
    ("verb", "after"),
    [
        ("joins", ""), ("returns", ""), ("done", ""), ("quiet30", ""), ("waited50,50", ""),
        ("preempted", ""), ("ready", "failed"), ("ends", "failed"), ("lost", "failed"),
    ],
)  # fmt: skip
def test_cost_of_handling_a_message_is_independent_of_group_size(verb: str, after: str) -> None:
    """All but two nodes have already sent the same message, either after a worker failure or while
    all are running.
    """
    assert _instructions_of_a_message(300, verb, after) < (
        1.5 * _instructions_of_a_message(10, verb, after)
    )


def _instructions_of_a_message(nodes: int, verb: str, after: str) -> int:
    game = table(nodes, nodes)
    names = [f"n{index}" for index in range(nodes)]
    first, *most, last_but_one, _ = names
    for name in () if verb == "joins" else names:
        for event in game.events(name, "joins"):
            game.step(event)
    for event in game.events(first, after or "-"):
        game.step(event)
    for name in most:
        for event in game.events(name, verb):
            game.step(event)
    events = game.events(last_but_one, verb)
    return sum(_instructions(partial(game.group.step, event, game.now)) for event in events)


def _instructions(act: Callable[[], object]) -> int:
    """Return the number of Python instructions that a call executes."""
    count = 0

    def trace(frame: FrameType, what: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += what == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count
