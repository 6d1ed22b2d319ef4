"""Sends clients' queries to all nodes in a job through the coordinator, which gathers the replies
(core/status/cluster_query).
"""

import json
from collections.abc import Callable

from relight.agent.node import Node
from relight.base import fields
from relight.core.group.messages import AskNodes, NodeAnswered
from relight.core.status.snapshot import NodeAnswer, NodeAnswers
from relight.host.loop import Loop, Timer

_LIMIT_S = 2.0
"""Time limit for a query. The coordinator waits for the other nodes for half this time. A new
coordinator does not know about queries that were sent to its predecessor.
"""


class OpenQuestions:
    """Pending queries from this agent's clients to all nodes, with the replies received so far.

    Args:
        loop: the agent's loop.
        node: this node, with its link to the coordinator.
    """

    def __init__(self, loop: Loop, node: Node) -> None:
        self._loop, self._node = loop, node
        self._open: dict[str, _OpenQuestion] = {}

    def ask(self, question: str, reply: Callable[[bytes], None]) -> None:
        """Query all nodes, and pass their replies to `reply` as `NodeAnswers` in JSON."""
        if not self._node.link.relays:
            reply(_written([]))
            return
        if question not in self._open:
            limit = self._loop.call_after(_LIMIT_S, lambda: self._end(question))
            self._open[question] = _OpenQuestion(limit)
            self._node.link.send(AskNodes(question))
        self._open[question].replies.append(reply)

    def on_answer(self, message: NodeAnswered) -> None:
        """Process a node's reply."""
        opened = self._open.get(message.question)
        if opened is None:
            return  # the reply arrived too late
        opened.answers.append(NodeAnswer(message.host, message.answer))
        if not message.left:
            self._end(message.question)

    def _end(self, question: str) -> None:
        opened = self._open.pop(question)
        opened.limit.cancel()
        answer = _written(opened.answers)
        for reply in opened.replies:
            reply(answer)


class _OpenQuestion:
    def __init__(self, limit: Timer) -> None:
        self.limit = limit
        self.replies: list[Callable[[bytes], None]] = []
        self.answers: list[NodeAnswer] = []


def _written(answers: list[NodeAnswer]) -> bytes:
    return json.dumps(fields.to_json(NodeAnswers(tuple(answers)))).encode()
