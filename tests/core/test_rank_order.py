"""Ranks that follow the network topology, and generations of whole segments: scenarios and a
property.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plays import table

from relight.core.group.group_types import Received
from relight.core.group.members import Member
from relight.core.group.messages import Join, Note
from relight.core.group.rank_order import by_topology


def test_ranks_follow_the_switch_topology() -> None:
    """Switches are sorted from the top down, and the hosts below each switch are in natural order.
    Task numbers and arrival order don't matter.
    """
    table(6, 6, by_topology=True).play("""
        0 task9@s2.l1 task1@s10.l1 task8@s2.l3 task7@s2.l10 task2@s2.l3 task10@s2.l3 joins
        -> form 0: task9@s2.l1 task2@s2.l3 task8@s2.l3 task10@s2.l3 task7@s2.l10 task1@s10.l1
    """)


def test_node_without_topology_is_ranked_last() -> None:
    table(3, 3, by_topology=True).play("""
        0 a b@s1 c@s2 joins
        -> form 0: b@s1 c@s2 a
    """)


def test_new_node_is_ranked_next_to_its_network_neighbours() -> None:
    """The new node doesn't take over the ranks of the lost node, because that node was elsewhere.
    The other nodes keep their order.
    """
    table(3, 4, by_topology=True).play("""
        0 a@l1 b@l1 c@l2 d@l2 joins
        -> form 0: a@l1 b@l1 c@l2 d@l2
        1 a@l1 lost
        -> stop 0: b@l1 c@l2 d@l2
        1.5 e@l2 joins
        2 b@l1 c@l2 d@l2 ready
        -> form 1: b@l1 c@l2 d@l2 e@l2
    """)


def test_topology_affects_ranks_only_if_requested() -> None:
    table(2, 2).play("""
        0 a@s2 b@s1 joins
        -> form 0: a@s2 b@s1
    """)


def test_network_neighbours_of_the_first_node_are_ranked_next() -> None:
    """The first node's host has rank 0, followed by the rest of its leaf and then the rest of its
    spine.
    """
    game = table(5, 5, by_topology=True)
    game.step(Received("d@s2.l4", game.join("d@s2.l4", comes_first=True)))
    game.play("""
        0 d@s2.l4 ready
        0 a@s1.l1 b@s2.l2 c@s2.l4 e@s3.l5 joins
        -> form 0: d@s2.l4 c@s2.l4 b@s2.l2 a@s1.l1 e@s3.l5
    """)


def test_segment_lies_under_one_leaf_switch_where_possible() -> None:
    """The nodes left over in each leaf form the last segments."""
    table(6, 6, by_topology=True, segment=2).play("""
        0 a@l1 b@l1 c@l1 d@l2 e@l3 f@l3 joins
        -> form 0: a@l1 b@l1 e@l3 f@l3 c@l1 d@l2
    """)


def test_first_node_is_ranked_first_even_in_a_mixed_segment() -> None:
    game = table(4, 4, by_topology=True, segment=2)
    game.step(Received("c@l2", game.join("c@l2", comes_first=True)))
    game.play("""
        0 c@l2 ready
        0 a@l1 b@l1 d@l3 joins
        -> form 0: c@l2 d@l3 a@l1 b@l1
    """)


def test_spare_that_completes_a_segment_is_preferred() -> None:
    """A whole segment within one leaf is better than one that spans two leaves."""
    table(2, 4, by_topology=True, segment=2).play("""
        0 a@l1 b@l1 c@l2 d@l2 joins
        -> form 0: a@l1 b@l1 c@l2 d@l2
        1 e@l3 joins
        2 f@l2 joins
        3 d@l2 lost
        -> stop 0: a@l1 b@l1 c@l2
        4 a@l1 b@l1 c@l2 ready
        -> form 1: a@l1 b@l1 c@l2 f@l2
    """)


@pytest.mark.parametrize("segment", [1, 2])
def test_spares_do_not_displace_survivors(segment: int) -> None:
    """Survivors stay even if a spare shares a leaf with other members."""
    table(2, 6, by_topology=True, segment=segment).play("""
        0 a@l1 b@l1 c@l2 d@l2 e@l3 f@l3 joins
        -> form 0: a@l1 b@l1 c@l2 d@l2 e@l3 f@l3
        1 g@l1 h@l1 joins
        2 d@l2 failed
        -> stop 0: a@l1 b@l1 c@l2 d@l2 e@l3 f@l3
        3 a@l1 b@l1 c@l2 d@l2 e@l3 f@l3 ready
        -> form 1 restart 1: a@l1 b@l1 c@l2 d@l2 e@l3 f@l3
    """)


def test_survivors_do_not_wait_for_new_nodes_to_complete_a_segment() -> None:
    """The leftover survivor becomes a spare, and returns together with a newcomer."""
    game = table(2, 4, segment=2, settle_timeout_s=1.0)
    game.play("""
        0 a b c d joins
        -> form 0: a b c d
        1 b lost
        -> stop 0: a c d
        2 a c d ready
        -> form 1: a c
        4 -
    """)
    assert game.waits("d").spare
    game.play("""
        5 e joins
        -> stop 1: a c
        7 a c ready
        -> form 2: a c d e
    """)


def test_new_nodes_wait_until_they_fill_a_segment() -> None:
    """No worker is stopped until the new nodes fill a segment."""
    game = table(2, 6, segment=2, settle_timeout_s=1.0)
    game.play("""
        0 a b joins
        1 -
        -> form 0: a b
        2 c joins
        60 -
    """)
    assert game.waits("c").spare
    game.play("""
        60 d joins
        60.5 e joins
        61.5 -
        -> stop 0: a b
        62 a b ready
        -> form 1: a b c d
    """)


def test_first_generation_consists_of_whole_segments() -> None:
    table(2, 4, segment=2, settle_timeout_s=1.0).play("""
        0 c a b joins
        1 -
        -> form 0: a c
    """)


def test_flapping_new_node_does_not_count_towards_a_segment() -> None:
    """The node counts only after it has stayed for the required time. Until then the group has no
    deadline.
    """
    game = table(2, 4, segment=2, settle_timeout_s=1.0)
    game.play("""
        0 a b joins
        1 -
        -> form 0: a b
    """)
    for second in range(2, 12):
        game.play(f"""
            {second} c joins
            {second}.1 c lost
        """)
    game.play("""
        12 c joins
        13 d joins
        15 -
    """)
    assert any("flapping" in m.text for m in game.heard["c"] if isinstance(m, Note))
    game.wait(600)
    assert game.sent() == ["stop 0: a b"]


PLACES = st.sampled_from(["", "s1.l1", "s1.l2", "s2.l1", "s2.l3"])


@given(st.lists(st.tuples(PLACES, st.integers(0, 3)), min_size=1, max_size=24), st.data())
def test_segments_are_whole_and_span_few_leaf_switches(
    nodes: list[tuple[str, int]], data: st.DataObject
) -> None:
    """As many segments as possible lie within one leaf, and the nodes of a leaf are neighbours
    there. The order doesn't depend on how the nodes arrived.
    """
    segment = data.draw(st.integers(1, len(nodes)))
    most = data.draw(st.integers(segment, len(nodes)))
    first = data.draw(st.integers(-1, len(nodes) - 1))
    size = most - most % segment
    members = [
        Member(
            Join(str(number), f"h{host}", "", 1, "", -1, 1, 1, 0, {}, None,
                 topology=place, comes_first=number == first),
            number, 0.0,
        )
        for number, (place, host) in enumerate(nodes)
    ]  # fmt: skip
    order = by_topology(members, size, segment)
    assert len({member.node for member in order}) == len(order) == size
    segments = [order[start : start + segment] for start in range(0, size, segment)]
    whole = [s for s in segments if len({member.join.topology for member in s}) == 1]
    leaves = Counter(place for place, _ in nodes)
    possible = sum(count // segment for count in leaves.values())
    first = next((member for member in members[:size] if member.join.comes_first), None)
    is_mixed = first is not None and leaves[first.join.topology] < segment
    assert len(whole) >= min(possible, len(segments) - is_mixed)
    if first is not None:
        assert order[0] is first, "it is no spare, although others fill segments"
    if any(member.join.comes_first for member in order):
        assert order[0].join.comes_first
    if segment == 1:
        assert {*order} == {*members[:size]}
    if segment == 1 and size == len(nodes):
        assert by_topology(data.draw(st.permutations(members)), size, segment) == order
