"""The checkpoint barrier: the agreed call is one that no worker has passed, and is found in
bounded time.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from relight.core.group.checkpoint_barrier import AT_ONCE, Agreement

NODES = ("a", "b", "c")


def ask(agreement: Agreement, calls: dict[str, int], now: float) -> int | None:
    """Let all nodes answer the latest limit."""
    for node in agreement.nodes:
        agreement.answer(node, agreement.limit, calls[node])
    return agreement.conclude(now)


def test_workers_agree_on_a_checkpoint_call_that_none_has_reached() -> None:
    agreement = Agreement(NODES, "a preemption", 0.0, 0.0)
    assert ask(agreement, {"a": 7, "b": 9, "c": 8}, 0.1) is None
    assert agreement.limit == 10
    assert ask(agreement, {"a": 8, "b": 9, "c": 8}, 0.2) == 10


def test_checkpoint_margin_grows_eightfold_if_worker_passes_the_limit() -> None:
    agreement = Agreement(NODES, "a preemption", 0.0, 0.0)
    ask(agreement, {"a": 7, "b": 9, "c": 8}, 0.1)
    assert ask(agreement, {"a": 12, "b": 9, "c": 8}, 0.2) is None
    assert agreement.limit == 20
    assert ask(agreement, {"a": 12, "b": 13, "c": 8}, 0.3) == 20


def test_reply_to_stale_checkpoint_limit_is_ignored() -> None:
    agreement = Agreement(NODES, "a preemption", 0.0, 0.0)
    ask(agreement, {"a": 7, "b": 9, "c": 8}, 0.1)
    for node in NODES:
        agreement.answer(node, 0, 9)
    assert not agreement.is_answered
    assert agreement.conclude(0.2) is None
    assert agreement.limit == 10


def test_silent_node_delays_checkpoint_agreement_by_at_most_five_seconds() -> None:
    agreement = Agreement(NODES, "a preemption", 0.0, 100.0)
    agreement.answer("a", 0, 3)
    agreement.answer("b", 0, 3)
    assert agreement.conclude(104.9) is None
    assert agreement.conclude(105.0) == AT_ONCE


def test_checkpoint_agreement_does_not_wait_for_succeeded_node() -> None:
    agreement = Agreement(NODES, "a preemption", 0.0, 0.0)
    agreement.answer("a", 0, 3)
    agreement.answer("b", 0, 3)
    agreement.remove("c")
    assert agreement.is_answered
    assert agreement.conclude(0.1) is None
    assert agreement.nodes == ["a", "b"]


@given(st.lists(st.tuples(st.sampled_from(NODES), st.integers(1, 40)), max_size=60), st.data())
def test_no_worker_has_passed_the_agreed_checkpoint_call(
    steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    """Between two messages, workers may make any number of calls, up to their limit."""
    agreement = Agreement(NODES, "a preemption", 0.0, 0.0)
    calls: Counter[str] = Counter()
    held: dict[str, int] = {}
    for node, more in steps:
        bound = held.get(node, 0)
        calls[node] = min(calls[node] + more, max(bound, calls[node])) if bound else more
        if data.draw(st.booleans()):
            held[node] = agreement.limit
            agreement.answer(node, agreement.limit, calls[node])
        agreed = agreement.conclude(1.0)
        if agreed is not None:
            assert all(calls[each] <= agreed for each in NODES)  # some wait in it
            assert set(held.values()) == {agreed}
            return
