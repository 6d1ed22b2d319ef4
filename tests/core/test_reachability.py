"""Which nodes are left out because others can't reach them."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plays import Table, table

from relight.base.errors import EXIT_MACHINE
from relight.core.group.group_types import Received
from relight.core.group.messages import NodeReady, NodesProbed, StartProbes, Target, Unreached
from relight.core.group.reachability import Reachability, explain, left_out
from relight.core.ranks import NO_GENERATION

SILENT = "no response"


def failed_pairs(*pairs: tuple[int, int]) -> dict[tuple[int, int], str]:
    return dict.fromkeys(pairs, SILENT)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ((), []),
        (((0, 2), (1, 2), (3, 2)), [2]),  # a firewall on 2
        (((0, 1), (0, 2), (0, 3)), [0]),  # 0 reaches nobody
        (((0, 1), (1, 0), (1, 2), (2, 1)), [1]),
        (((0, 1),), [1]),  # two nodes: the one that accepts no connections
        (((1, 0),), [0]),
        (((0, 1), (1, 0)), [1]),  # a tie: the higher rank
        (((0, 1), (2, 3)), [1, 3]),
        (((0, 2), (1, 2), (3, 2), (0, 3)), [2, 3]),
    ],
)
def test_node_with_most_failed_probes_is_excluded_first(
    pairs: tuple[tuple[int, int], ...], expected: list[int]
) -> None:
    assert sorted(left_out(failed_pairs(*pairs), range(4))) == sorted(expected)


def test_node_running_workers_is_never_excluded() -> None:
    assert list(left_out(failed_pairs((0, 1), (0, 2), (1, 2)), {2})) == [2]
    assert list(left_out(failed_pairs((0, 1)), {2})) == []


@given(
    st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda p: p[0] != p[1])),
    st.sets(st.integers(0, 7)),
)
def test_nodes_that_are_not_excluded_can_all_reach_each_other(
    pairs: set[tuple[int, int]], may: set[int]
) -> None:
    out = left_out(failed_pairs(*pairs), may)
    assert out.keys() <= may
    assert all(each for each in out.values()), "each has a failed pair"
    for pair in pairs:
        assert not set(pair).isdisjoint(out) or set(pair).isdisjoint(may)


def test_exclusion_reason_names_the_unreachable_pair_and_direction() -> None:
    hosts = ["n0", "n1", "n2"]
    assert explain(2, {(0, 2): SILENT, (1, 2): "refused"}, hosts) == (
        "network: n0, n1 can't connect to its free ports (no response, refused)"
    )
    assert explain(2, {(2, 0): "no route"}, hosts) == (
        "network: it can't connect to the free ports of n0 (no route)"
    )


def test_nodes_in_a_large_group_probe_only_their_successors() -> None:
    group = Reachability("secret")
    nodes = [f"node{each}" for each in range(300)]
    for number, node in enumerate(nodes):
        group.set_ready(node, Target("", 1 + number, 0))
    begun = dict(group.begin(((node, "10.0.0.1") for node in nodes), now=0.0))
    last = begun["node299"]
    assert [each.tcp_port for each in last.nodes] == [300, *range(1, 201)]
    for node in nodes:
        found = (Unreached(1, SILENT),) if node == "node299" else ()
        group.answer(node, NodesProbed(last.cookie, found, Target("", 1, 0)))
    assert group.is_over(1.0)
    assert group.conclude(dict(zip(nodes, nodes, strict=True)), ()) == [
        ("node0", "network: node299 can't connect to its free ports (no response)")
    ]


class Probed:
    """A group whose nodes probe each other."""

    def __init__(self, least: int, most: int) -> None:
        self.table = table(least, most)
        self.order = "abcd"

    def state(self) -> str:
        return dict(self.table.group.states())["reachability"]

    def joins(self, nodes: str, at: float) -> list[str]:
        self.table.wait(at)
        for node in nodes:
            self.table.step(self.table.events(node, "offers")[0])
            self.ready(node)
        return self.table.sent()

    def ready(self, node: str) -> None:
        last = self.table.last.get(node)
        generation = last.generation.id if last else NO_GENERATION
        ready = NodeReady(generation, 29500, (), (), prober=Target("", 7000, 7001))
        self.table.step(Received(node, ready))

    def begun(self, node: str) -> StartProbes:
        return [m for m in self.table.heard[node] if isinstance(m, StartProbes)][-1]

    def answers(self, node: str, unreached: Iterable[int] = ()) -> list[str]:
        begun, own = self.begun(node), self.order.index(node)
        found = [Unreached((each - own) % len(begun.nodes), SILENT) for each in unreached]
        answer = NodesProbed(begun.cookie, tuple(found), Target("", 7002, 7003))
        self.table.step(Received(node, answer))
        return self.table.sent()


def test_generation_forms_once_all_nodes_are_reachable() -> None:
    group = Probed(2, 2)
    states = [group.state()]
    assert group.joins("ab", at=0) == []
    states.append(group.state())
    first, second = group.begun("a"), group.begun("b")
    assert (first.number, second.number) == (0, 0)
    assert first.cookie == second.cookie
    assert set(first.nodes) == set(second.nodes)
    assert group.answers("a") == []
    assert group.answers("b") == ["form 0: a b"]
    states.append(group.state())
    assert states == ["idle", "trying", "known"]


def test_spare_replaces_unreachable_node() -> None:
    group = Probed(2, 2)
    group.joins("abc", at=0)
    assert group.answers("a", [1]) == []
    assert group.answers("b") == ["end 4: b"]
    end = group.table.end("b")
    assert end.exit_code == EXIT_MACHINE
    assert end.others_run
    group.order = "ac"
    assert group.answers("a") == []
    assert group.answers("c") == ["form 0: a c"]


def test_group_with_too_few_reachable_nodes_waits_for_another() -> None:
    group = Probed(3, 3)
    group.joins("abc", at=0)
    assert group.answers("a", [2]) == group.answers("b", [2]) == []
    assert group.answers("c") == ["end 4: c"]
    group.table.wait(2.0)
    assert "c left: its health check failed: network: a, b can't connect to its free ports" in (
        group.table.waits("a").text
    )
    assert group.joins("d", at=10) == []
    group.order = "abd"
    for node in "ab":
        assert group.answers(node) == []
    assert group.answers("d") == ["form 0: a b d"]


def test_unanswered_probe_delays_the_group_by_only_a_few_seconds() -> None:
    group = Probed(2, 2)
    group.joins("ab", at=0)
    assert group.answers("a") == []
    group.table.wait(3.4)
    assert group.table.sent() == []
    group.table.wait(3.6)
    assert group.table.sent() == ["form 0: a b"]


def test_group_does_not_wait_for_a_node_lost_during_probing() -> None:
    group = Probed(2, 3)
    group.joins("abc", at=0)
    group.answers("a", [2])
    group.answers("b")
    group.table.play("""
        1 c lost
        2 - -
        """)
    group.table.wait(60)
    assert group.table.sent() == ["form 0: a b"]


def test_unreachable_new_node_does_not_stop_the_group() -> None:
    group = running_group()
    assert group.joins("c", at=100) == []
    for node in "ab":
        assert group.answers(node, [2]) == []
    assert group.answers("c") == ["end 4: c"]
    group.table.wait(200)
    assert group.table.sent() == []


def test_reachable_new_node_is_admitted() -> None:
    group = running_group()
    group.joins("c", at=100)
    for node in "ab":
        assert group.answers(node) == []
    assert group.answers("c") == ["stop 0: a b"]


def test_node_that_becomes_ready_during_probing_is_still_included() -> None:
    """A newcomer probes two nodes that are running workers. One of them is lost, so the other one
    stops.
    """
    group = running_group()
    group.joins("c", at=100)
    group.table.play("""
        100.1 b lost
        -> stop 0: a
        """)
    group.ready("a")
    assert group.answers("a", [2]) == []
    assert group.answers("c") == ["end 4: c"]


def test_node_that_reconnects_during_probing_is_still_included() -> None:
    """Only the node's connection had broken. The group waits for it, and its response counts."""
    group = Probed(2, 2)
    group.joins("ab", at=0)
    group.table.play("0.1 b lost")
    group.joins("b", at=0.2)
    assert group.answers("a") == []
    assert group.answers("b", [0]) == ["end 4: a"]


def test_probing_continues_without_the_lost_node() -> None:
    group = Probed(2, 3)
    group.joins("abc", at=0)
    assert group.answers("a") == []
    assert group.answers("b") == []
    assert group.state() == "trying"
    group.table.play("0.1 c lost")
    assert group.state() == "known"


def test_nodes_probe_each_other_again_before_a_restart() -> None:
    group = running_group()
    group.table.play("""
        100 a failed
        -> stop 0: a b
        """)
    group.ready("a")
    group.ready("b")
    assert group.table.sent() == []
    assert group.answers("a") == []
    assert group.answers("b", [0]) == ["end 4: a"]


def running_group() -> Probed:
    """Return a running group of two nodes, with room for a third."""
    group = Probed(2, 3)
    group.joins("ab", at=0)
    group.table.wait(8)
    group.answers("a")
    assert group.answers("b") == ["form 0: a b"]
    return group


def test_reachability_probing_is_opt_in() -> None:
    played: Table = table(2, 2).play("""
        0 a joins
        0 b joins
        -> form 0: a b
        """)
    assert not any(isinstance(m, StartProbes) for m in played.heard["a"])
