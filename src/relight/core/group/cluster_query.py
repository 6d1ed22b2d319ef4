"""Questions of one node to all nodes of its job, such as how their workers are (`relight status`).

    a node         AskNodes    to the coordinator
    coordinator    Question    to all nodes, numbered
    each node      Answer
    coordinator    NodeAnswered, one for each node, once all have answered or the time is over

Nothing is sent while nobody asks. A question that is already open is not put again: who asks the
same meanwhile gets the same answers. So a job with many onlookers on many nodes is not slower than
with one. No state of the group depends on any of this.
"""

from collections.abc import Iterable

from relight.core.group.group_types import Send
from relight.core.group.messages import Answer, Join, NodeAnswered, Question

LIMIT_S = 1.0
"""A node that has not answered for so long is shown without its answer."""
_MOST_OPEN = 8
_MOST_CHARS = 8 << 20
"""Of all answers to one question: they must not fill the connection that heartbeats use too."""


class _Open:
    """A question that is open: who has asked, which nodes were asked, and what they have answered.

    Nodes of older versions, which know no questions, are among the hosts, and not among those that
    are `awaited`.
    """

    def __init__(self, question: str, joins: Iterable[Join]) -> None:
        every = list(joins)
        self.question = question
        self.hosts = {join.node: join.host for join in every}
        self.awaited = {join.node for join in every if join.answers}
        self.askers: dict[str, None] = {}
        self.answers: dict[str, str] = {}
        self.room = _MOST_CHARS

    def take(self, node: str, answer: str) -> None:
        """Keep the first answer of a node, if it has been asked and there is room."""
        if node in self.awaited:
            self.awaited.remove(node)
            if len(answer) <= self.room:
                self.room -= len(answer)
                self.answers[node] = answer

    def told(self) -> list[Send]:
        """Return what the askers get."""
        messages = [
            NodeAnswered(self.question, host, self.answers.get(node), len(self.hosts) - number)
            for number, (node, host) in enumerate(self.hosts.items(), 1)
        ]
        return [Send(asker, message) for asker in self.askers for message in messages]


class Questions:
    """The open questions of one job."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._latest = 0

    def ask(self, node: str, question: str, joins: Iterable[Join]) -> tuple[int, list[Send]]:
        """Return the number of a question and the messages that put it to the nodes: none if it is
        open already, or too many are.

        Args:
            node: who asks.
            question: what.
            joins: of the nodes that are connected.
        """
        for number, each in self._open.items():
            if each.question == question:
                each.askers[node] = None
                return number, []
        if len(self._open) >= _MOST_OPEN:
            return -1, []
        self._latest += 1
        opened = self._open[self._latest] = _Open(question, joins)
        opened.askers[node] = None
        put = Question(self._latest, question)
        sends = [Send(each, put) for each in sorted(opened.awaited)]
        return self._latest, sends or self.close(self._latest)

    def answer(self, node: str, answer: Answer) -> list[Send]:
        """Take the answer of a node; return what the askers get, if it was the last."""
        opened = self._open.get(answer.number)
        if opened is None:
            return []  # it comes too late
        opened.take(node, answer.answer)
        return [] if opened.awaited else self.close(answer.number)

    def close(self, number: int) -> list[Send]:
        """End a question; return what the askers get, nothing if it has ended before."""
        opened = self._open.pop(number, None)
        return [] if opened is None else opened.told()
