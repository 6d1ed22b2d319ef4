"""Queries from one node to all nodes of its job, such as the state of their workers (`relight
status`).

    a node         AskNodes    to the coordinator
    coordinator    Question    to all nodes, numbered
    each node      Answer
    coordinator    NodeAnswered, one for each node, once all have answered or the time limit passes

Nothing is sent unless there are queries. If the same query is already open, it isn't sent a second
time, and both observers receive the same answers. Many observers on many nodes therefore cost the
job no more than a single observer does. The group's state never depends on queries.
"""

from collections.abc import Iterable

from relight.core.group.group_types import Send
from relight.core.group.messages import Answer, Join, NodeAnswered, Question

LIMIT_S = 1.0
"""Time limit for a reply in seconds. A node that takes longer is shown without a reply."""
_MAX_OPEN = 8
_MAX_CHARS = 8 << 20
"""Size limit for all replies to one query. The replies share the connection with heartbeats, so
they must not saturate it.
"""


class _Open:
    """An open query, with the nodes that sent it, the nodes that received it, and their replies.

    Nodes that run an older version of relight without support for queries are listed in `hosts`,
    but not in `awaited`.
    """

    def __init__(self, question: str, joins: Iterable[Join]) -> None:
        every = list(joins)
        self.question = question
        self.hosts = {join.node: join.host for join in every}
        self.awaited = {join.node for join in every if join.answers}
        self.askers: dict[str, None] = {}
        self.answers: dict[str, str] = {}
        self.room = _MAX_CHARS

    def take(self, node: str, answer: str) -> None:
        """Keep the first reply from each awaited node, up to the size limit."""
        if node in self.awaited:
            self.awaited.remove(node)
            if len(answer) <= self.room:
                self.room -= len(answer)
                self.answers[node] = answer

    def replies(self) -> list[Send]:
        """Return the messages to the nodes that sent the query."""
        messages = [
            NodeAnswered(self.question, host, self.answers.get(node), len(self.hosts) - number)
            for number, (node, host) in enumerate(self.hosts.items(), 1)
        ]
        return [Send(asker, message) for asker in self.askers for message in messages]


class Questions:
    """One job's open queries."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._latest = 0

    def ask(self, node: str, question: str, joins: Iterable[Join]) -> tuple[int, list[Send]]:
        """Return a query's ID and the messages that send the query to the nodes. There are no
        messages if the same query is already open, or if too many queries are open.

        Args:
            node: the node that sends the query.
            question: the text of the query.
            joins: the `Join` of each connected node.
        """
        for number, each in self._open.items():
            if each.question == question:
                each.askers[node] = None
                return number, []
        if len(self._open) >= _MAX_OPEN:
            return -1, []
        self._latest += 1
        opened = self._open[self._latest] = _Open(question, joins)
        opened.askers[node] = None
        put = Question(self._latest, question)
        sends = [Send(each, put) for each in sorted(opened.awaited)]
        return self._latest, sends or self.close(self._latest)

    def answer(self, node: str, answer: Answer) -> list[Send]:
        """Record a node's reply. If no more replies are missing, return the messages to the nodes
        that sent the query.
        """
        opened = self._open.get(answer.number)
        if opened is None:
            return []  # too late
        opened.take(node, answer.answer)
        return [] if opened.awaited else self.close(answer.number)

    def close(self, number: int) -> list[Send]:
        """Close a query. Return the messages to the nodes that sent the query, or an empty list if
        the query has already been closed.
        """
        opened = self._open.pop(number, None)
        return [] if opened is None else opened.replies()
