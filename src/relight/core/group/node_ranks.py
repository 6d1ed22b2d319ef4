"""Keeps track of which node has which node rank, in groups whose nodes have fixed ones."""

from relight.core.group.messages import Join


class NodeRanks:
    """The nodes by their `--node-rank`."""

    def __init__(self) -> None:
        self._holders: dict[int, str] = {}
        self._turned_back: set[str] = set()  # nodes whose node rank belongs to a silent node

    def holder(self, join: Join) -> str:
        """Return the node that has a newcomer's node rank, or the newcomer itself."""
        return self._holders.get(join.node_rank, join.node)

    def take(self, join: Join) -> None:
        """Record that a node has its node rank."""
        self._holders[join.node_rank] = join.node

    def release(self, join: Join) -> None:
        """Record that a node is gone. Its node rank may already belong to its replacement."""
        if self._holders.get(join.node_rank) == join.node:
            del self._holders[join.node_rank]

    def turn_back(self, node: str) -> bool:
        """Record that a node has to wait until the silent holder of its node rank is lost. Return
        whether this is the first time.
        """
        before = len(self._turned_back)
        self._turned_back.add(node)
        return len(self._turned_back) > before
