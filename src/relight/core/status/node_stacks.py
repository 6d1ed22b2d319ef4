"""Handles worker stacks from all nodes. This module encodes each agent's reply to `Stacks`, and
merges and describes the replies.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from relight.base import fields
from relight.base.text import format_ranks
from relight.core.diagnosis.stack_text import (
    Frame,
    ProcessStack,
    ThreadStack,
    few_or_many,
    main_thread,
)
from relight.core.status.cluster_query import LIMIT_S

_MAX_FRAMES = (100, 30, 10, 3)
"""How many of the innermost frames of each stack to keep. The first of these limits that makes the
reply fit into a message is used.
"""


class SharedStack(NamedTuple):
    """A stack that is the same for several ranks on a node. It contains the process state, and the
    main thread's frames with the system call that blocks the thread (core/diagnosis/stack_text).
    The `why` field is the reason why the stack is missing, and empty otherwise. The `pids` field
    has the same order as `ranks`.
    """

    ranks: tuple[int, ...]
    pids: tuple[int, ...]
    state: str
    waits_in: str
    frames: tuple[Frame, ...]
    why: str


class NodeStacks(NamedTuple):
    """The worker stacks on one node, and the workers' generation (-1 without workers)."""

    generation: int
    stacks: tuple[SharedStack, ...]


class RankStack(NamedTuple):
    """A rank's stack, or the reason why it is missing, and the location of its process."""

    node: str
    pid: int
    stack: ProcessStack | str


def written(generation: int, stacks: Mapping[int, tuple[int, ProcessStack | str]]) -> str:
    """Encode a node's reply as JSON that is short enough for a message between nodes.

    Args:
        generation: the generation of the node's workers.
        stacks: for each rank, the pid and the stack, or the reason why the stack is missing.
    """
    text = ""
    for most in _MAX_FRAMES:
        text = json.dumps(fields.to_json(NodeStacks(generation, _shared(stacks, most))))
        if len(text) <= fields.MAX_ANSWER:
            break
    return text


def read(answer: str | bytes | None) -> NodeStacks | None:
    """Parse a node's reply. Return None if the reply is missing or malformed."""
    try:
        found = fields.record(NodeStacks, fields.decode(answer or ""))
    except fields.Malformed:
        return None
    return found if isinstance(found, NodeStacks) else None


def by_rank(nodes: Iterable[tuple[str, NodeStacks | None]]) -> dict[int, RankStack]:
    """Return the stacks of all ranks. If a rank occurs twice, the later generation wins.

    Args:
        nodes: the name and answer of each node.
    """
    answered = [(name, found) for name, found in nodes if found is not None]
    answered.sort(key=lambda each: each[1].generation)
    return {
        rank: RankStack(name, pid, _stack(shared, pid))
        for name, found in answered
        for shared in found.stacks
        for rank, pid in zip(shared.ranks, shared.pids, strict=False)
    }


def named(found: Mapping[int, RankStack], ranks: Sequence[int]) -> str:
    """Format a list of ranks. If all ranks are on the same node, add the node's name."""
    nodes = {found[rank].node for rank in ranks}
    return few_or_many(ranks) + (f" on {nodes.pop()}" if len(nodes) == 1 else "")


def lines_of_nodes(
    nodes: Sequence[tuple[str, NodeStacks | None]],
    found: Mapping[int, RankStack],
    count: int,
    world_size: int,
) -> Iterator[str]:
    """Yield lines that list the ranks by location, and lines about missing stacks.

    Args:
        nodes: the name and answer of each node.
        found: the stacks by rank, as returned by `by_rank`.
        count: how many nodes the job has.
        world_size: how many ranks the job has.
    """
    for name, answer in nodes:
        ranks = sorted(rank for rank, each in found.items() if each.node == name)
        if answer is None:
            yield f"{name}: no response within {LIMIT_S:g} s"
        else:
            yield f"{name}: {format_ranks(ranks) if ranks else 'runs no workers'}"
    if len(nodes) < count:
        yield (
            f"only {len(nodes)} of {count} nodes could be queried: "
            "the coordinator is not responding"
        )
    missing = [rank for rank in range(world_size) if rank not in found]
    if missing:
        yield f"no stack for {format_ranks(missing)}"


def numbered(hosts: Iterable[str]) -> list[str]:
    """Return the nodes' names. Each name is the host name, followed by a number if the host has
    several nodes.
    """
    count = Counter[str]()
    names = []
    for host in hosts:
        count[host] += 1
        names.append(host if count[host] == 1 else f"{host} #{count[host]}")
    return names


def _shared(
    stacks: Mapping[int, tuple[int, ProcessStack | str]], most: int
) -> tuple[SharedStack, ...]:
    pids_by_key: dict[tuple[str, str, tuple[Frame, ...], str], dict[int, int]] = {}
    for rank, (pid, stack) in sorted(stacks.items()):
        if isinstance(stack, str):
            key: tuple[str, str, tuple[Frame, ...], str] = ("", "", (), stack)
        else:
            thread = main_thread(stack)
            frames = thread.frames[:most] if thread is not None else ()
            key = stack.state, thread.waits_in if thread is not None else "", frames, ""
            pid = stack.pid
        pids_by_key.setdefault(key, {})[rank] = pid
    return tuple(
        SharedStack(tuple(pids), tuple(pids.values()), *key) for key, pids in pids_by_key.items()
    )


def _stack(shared: SharedStack, pid: int) -> ProcessStack | str:
    if shared.why:
        return shared.why
    thread = ThreadStack(0, "", shared.waits_in, True, shared.frames)
    return ProcessStack(pid, shared.state, (thread,) if shared.frames else ())
