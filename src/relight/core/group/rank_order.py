"""Orders the nodes of a generation by network topology (`--rank-order=topology`).

A node's place is the path of network switches above it, starting from the top, such as
`spine1.leaf3`. Nodes with equal places share a leaf switch, or whatever the last name in the path
represents.

- Nodes are sorted by place, and within a place by host, so that neighbouring ranks are close to
  each other in the network. A node that `comes_first` hosts rank 0, and the nodes nearest to it
  follow. Nodes that stay keep their order, unless the node that comes first changes.
- With a segment size (`--segment`), all segments that fit into one leaf are formed first. The
  remaining nodes form segments with nodes from the nearest leaves. These segments have the last
  ranks. As a result, the ranks in a segment share a leaf whenever possible.
- Nodes without a place are treated as if they shared one leaf, and come last.
"""

from collections.abc import Sequence

from relight.core.group.members import Member
from relight.core.ranks import natural


def by_topology(nodes: Sequence[Member], size: int, segment: int) -> list[Member]:
    """Return the nodes of a generation in rank order.

    Args:
        nodes: the nodes to choose from. If there are too many, the last ones are left out.
        size: the number of nodes in the generation, a multiple of `segment`.
        segment: the number of nodes that should share a leaf.
    """
    first = _first(nodes[:size])
    nodes = sorted(nodes, key=lambda member: member is not first)
    leaves: dict[str, list[Member]] = {}
    for member in nodes:
        leaves.setdefault(member.join.topology, []).append(member)
    fit = [
        leaf[start : start + segment]
        for leaf in leaves.values()
        for start in range(0, len(leaf) - segment + 1, segment)
    ]
    preference = {member.node: number for number, member in enumerate(nodes)}
    fit.sort(key=lambda members: (first not in members, preference[members[-1].node]))
    # This node is in the generation even if its leaf can't fill a segment.
    in_mixed = first is not None and all(first not in members for members in fit)
    whole = [member for members in fit[: size // segment - in_mixed] for member in members]
    taken = {member.node for member in whole}
    others = [member for member in nodes if member.node not in taken]
    mixed = others[: size - len(whole)]
    first = first or _first([*whole, *mixed])
    keys = {member.node: _key(member, first) for member in (*whole, *mixed)}
    order = [m for part in (whole, mixed) for m in sorted(part, key=lambda m: keys[m.node])]
    segments = [order[start : start + segment] for start in range(0, size, segment)]
    segments.sort(key=lambda members: first not in members)
    return [member for members in segments for member in members]


def _first(nodes: Sequence[Member]) -> Member | None:
    return next((member for member in nodes if member.join.comes_first), None)


def _key(member: Member, first: Member | None) -> tuple[object, ...]:
    """Return a node's sort key. The node `first` comes first, followed by its neighbours on each
    level.
    """
    join = member.join
    path = join.topology.split(".")
    nearest = [] if first is None else first.join.topology.split(".")
    levels = [
        (path[:end] != nearest[:end], not name, natural(name))
        for end, name in enumerate(path, start=1)
    ]
    return levels, member is not first, natural(join.host), join.node_rank, member.number
