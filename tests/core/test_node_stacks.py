"""The stacks of all nodes: the nodes' answers, and the report."""

import pytest

from relight.base import fields
from relight.core.diagnosis.stack_text import Frame, ProcessStack, ThreadStack
from relight.core.status import node_stacks
from relight.core.status.snapshot import Question, Stacks


def stack(pid: int, line: int, *, depth: int = 1, state: str = "S") -> ProcessStack:
    frames = tuple(Frame("/home/u/train.py", line + n, "step") for n in range(depth))
    return ProcessStack(pid, state, (ThreadStack(pid, "python", "read", True, frames),))


def test_agents_accept_the_stacks_query() -> None:
    assert fields.message(Question, fields.to_json(Stacks())) == Stacks()


def test_identical_stacks_are_sent_once_and_expanded_per_rank() -> None:
    text = node_stacks.written(
        3, {0: (10, stack(10, 1)), 1: (11, stack(11, 1)), 2: (12, "no permission")}
    )
    answer = node_stacks.read(text)
    assert answer is not None
    assert [each.ranks for each in answer.stacks] == [(0, 1), (2,)]
    found = node_stacks.by_rank([("gpu-01", answer), ("gpu-02", None)])
    assert (found[1].node, found[1].pid) == ("gpu-01", 11)
    assert isinstance(found[1].stack, ProcessStack)
    assert found[1].stack.threads[0].frames == stack(11, 1).threads[0].frames
    assert found[2].stack == "no permission"


def test_later_generation_wins_if_two_nodes_report_the_same_rank() -> None:
    old, new = (
        node_stacks.read(node_stacks.written(generation, {0: (pid, stack(pid, 1))}))
        for generation, pid in ((1, 10), (2, 20))
    )
    assert node_stacks.by_rank([("a", new), ("b", old)])[0].pid == 20


@pytest.mark.parametrize(("ranks", "depth"), [(1, 500), (64, 500), (256, 500)])
def test_deep_stacks_are_shortened_to_fit_into_a_message(ranks: int, depth: int) -> None:
    """The innermost frames are kept."""
    stacks = {rank: (rank, stack(rank, rank, depth=depth)) for rank in range(ranks)}
    text = node_stacks.written(0, stacks)
    assert len(text) <= fields.MAX_ANSWER
    answer = node_stacks.read(text)
    assert answer is not None
    assert [each.frames[0].line for each in answer.stacks] == list(range(ranks))


def test_stacks_report_lists_unresponsive_nodes_and_missing_stacks() -> None:
    answer = node_stacks.read(node_stacks.written(0, {0: (10, stack(10, 1))}))
    idle = node_stacks.read(node_stacks.written(-1, {}))
    nodes = [("gpu-01", answer), ("gpu-02", None), ("gpu-03", idle)]
    found = node_stacks.by_rank(nodes)
    assert list(node_stacks.lines_of_nodes(nodes, found, 3, 4)) == [
        "gpu-01: rank 0",
        "gpu-02: no response within 1 s",
        "gpu-03: runs no workers",
        "no stack for ranks 1-3",
    ]
    told = list(node_stacks.lines_of_nodes(nodes[:1], found, 2, 1))
    assert told[1:] == ["only 1 of 2 nodes could be queried: the coordinator is not responding"]


def test_second_node_on_the_same_host_is_shown_with_a_number() -> None:
    names = node_stacks.numbered(["a", "b", "a"])
    assert names == ["a", "b", "a #2"]
    answers = [node_stacks.read(node_stacks.written(0, {n: (n, stack(n, 1))})) for n in range(3)]
    found = node_stacks.by_rank(zip(names, answers, strict=True))
    assert node_stacks.named(found, [2]) == "rank 2 on a #2"
    assert node_stacks.named(found, [0, 1]) == "ranks 0-1"


@pytest.mark.parametrize(
    "answer", [None, "", "{", "[]", b"\xff", '{"generation": 0, "stacks": [1]}']
)
def test_malformed_reply_to_the_stacks_query_is_ignored(answer: str | bytes | None) -> None:
    """Nodes with an older version don't respond at all."""
    assert node_stacks.read(answer) is None
