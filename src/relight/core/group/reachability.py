"""Excludes nodes that other nodes can't reach (--health-check=network).

    IDLE      the nodes of the next generation are unknown
      | the generation could be formed                          -> TRYING
    TRYING    all ready nodes have the others' addresses; each node connects to all others
      | all have answered, or the time limit passes             -> KNOWN: some nodes are left out
    KNOWN     the remaining nodes may form a generation
      | one of them runs workers, or a node is new              -> IDLE

A pair of nodes fails if one of them can't reach the other. The node with the most failed pairs is
left out first, then the node with the most of the remaining failed pairs, until no failed pair is
left. If there is a tie, the node to which more nodes fail to connect is left out, because firewalls
block incoming connections. If there is still a tie, the node with the higher rank is left out.
Sockets and generations are deliberately left to other modules.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256

from relight.base.errors import EXIT_MACHINE
from relight.base.text import format_names
from relight.core.group.messages import JobEnded, NodesProbed, StartProbes, Target

_PATIENCE_S = 3.5
"""Time limit in seconds. The probes themselves end after 2.5 s."""
_MAX_PEERS = 200
"""The maximum number of nodes that each node probes. In larger groups, a node only probes the nodes
that follow it in rank order, because messages and open files are limited.
"""
_COOKIE_DIGITS = 32
_REMEDY = (
    "open all TCP ports between the nodes, because gloo and NCCL use arbitrary ports; run relight "
    "doctor on all nodes for details"
)

Failed = Mapping[tuple[int, int], str]
"""The reason why the source could not connect to the target, keyed by their (source, target)
numbers.
"""


class Reachability:
    """What is known about the network between the nodes.

    Args:
        secret: a secret of this group. The nodes recognize each other's probes by a digest derived
            from this secret.
    """

    def __init__(self, secret: str) -> None:
        self.until: float | None = None
        """Deadline for the replies, or None while no probes are running."""
        self._secret = secret
        self._probers: dict[str, Target] = {}
        self._known: set[str] = set()  # nodes that reach each other
        self._cookie = ""
        self._tries = 0
        self._nodes: list[str] = []  # by number, in rank order
        self._silent: set[str] = set()  # nodes that have not replied, including lost ones
        self._failed: dict[tuple[int, int], str] = {}

    @property
    def state(self) -> str:
        """The state, as named in the module docstring."""
        if self.until is not None:
            return "trying"
        return "known" if self._known else "idle"

    def set_ready(self, node: str, prober: Target | None) -> None:
        """Record the probe address of a node without workers, or None. If the node already started
        probing, either while its workers were running or before its connection broke, its reply is
        still awaited.
        """
        self._known.discard(node)
        if prober is None:
            self._probers.pop(node, None)
        else:
            self._probers[node] = prober

    def remove(self, node: str) -> None:
        """Record that a node has left. The node may still come back with its reply."""
        self._probers.pop(node, None)
        self._known.discard(node)

    def must_probe(self, nodes: Iterable[str]) -> bool:
        """Return whether these nodes must probe each other because it is unknown whether they can
        reach each other.
        """
        probed = self._probers.keys() & set(nodes)
        return len(probed) > 1 and not probed <= self._known

    def begin(
        self, addresses: Iterable[tuple[str, str]], now: float
    ) -> list[tuple[str, StartProbes]]:
        """Make nodes probe each other.

        Args:
            addresses: the nodes in rank order, each with its address.
            now: the current time.

        Returns:
            The message for each node. In that message, the node itself is number 0, the next node
            is number 1, and so on.
        """
        self._tries += 1
        self._cookie = sha256(f"{self._secret} {self._tries}".encode()).hexdigest()[:_COOKIE_DIGITS]
        there = {node: address for node, address in addresses if node in self._probers}
        targets = tuple(self._probers[node]._replace(address=at) for node, at in there.items())
        self._nodes, self._silent, self._failed = list(there), set(there), {}
        self._known, self.until = set(), now + _PATIENCE_S
        size, twice = min(len(targets), 1 + _MAX_PEERS), targets + targets
        return [
            (node, StartProbes(self._cookie, 0, twice[number : number + size]))
            for number, node in enumerate(self._nodes)
        ]

    def answer(self, node: str, answer: NodesProbed) -> None:
        """Record a node's reply."""
        if answer.cookie != self._cookie or node not in self._silent:
            return
        self._silent.discard(node)
        self._probers[node] = answer.prober
        number, count = self._nodes.index(node), len(self._nodes)
        for target, why in answer.unreached:
            if 0 < target < count:
                self._failed[number, (number + target) % count] = why

    def is_over(self, now: float) -> bool:
        """Return whether all connected nodes have replied or the deadline has passed."""
        if self.until is None:
            return False
        return now >= self.until or not any(node in self._probers for node in self._silent)

    def conclude(self, hosts: Mapping[str, str], staying: Collection[str]) -> list[tuple[str, str]]:
        """Return the nodes to leave out, and the reason for each.

        Args:
            hosts: the connected nodes and their names.
            staying: the nodes that must not be left out because they run workers.
        """
        self.until = None
        here = [number for number, node in enumerate(self._nodes) if node in hosts]
        may_leave = {number for number in here if self._nodes[number] not in staying}
        failed = {pair: why for pair, why in self._failed.items() if set(pair) <= set(here)}
        found = left_out(failed, may_leave)
        self._known = {self._nodes[number] for number in here if number not in found}
        named = [hosts.get(node, node) for node in self._nodes]
        return [
            (self._nodes[number], explain(number, {p: failed[p] for p in pairs}, named))
            for number, pairs in found.items()
        ]


def leaves(host: str, why: str) -> JobEnded:
    """Return the message to a node that is left out."""
    report = (
        f"error: the health check on {host} failed ({why}); this node is leaving the job",
        f"  hint: {_REMEDY}",
    )
    return JobEnded(
        EXIT_MACHINE, f"the node is leaving: its health check failed: {why}", report, None,
        others_run=True,
    )  # fmt: skip


def left_out(failed: Failed, may_leave: Collection[int]) -> dict[int, list[tuple[int, int]]]:
    """Return the nodes to leave out, each with its failed pairs, starting with the worst.

    Args:
        failed: the attempts that failed.
        may_leave: the nodes that may be left out. Failed pairs that contain none of these nodes are
            ignored.
    """
    left = {pair for pair in failed if not set(pair).isdisjoint(may_leave)}
    found: dict[int, list[tuple[int, int]]] = {}
    while left:
        peers = Counter(number for pair in {(min(p), max(p)) for p in left} for number in pair)
        shut_out = Counter(target for _, target in left)
        worst = max(may_leave, key=lambda n: (peers[n], shut_out[n], n))
        found[worst] = sorted(pair for pair in left if worst in pair)
        left.difference_update(found[worst])
    return found


def explain(number: int, failed: Failed, hosts: list[str]) -> str:
    """Return the reason why a node is left out.

    Args:
        number: the node's number.
        failed: the attempts that count against it.
        hosts: the names of all nodes.
    """
    inward = [(one, why) for (one, target), why in failed.items() if target == number]
    outward = [(target, why) for (one, target), why in failed.items() if one == number]
    texts = []
    for attempts, text in (
        (inward, "{peers} can't connect to its free ports ({why})"),
        (outward, "it can't connect to the free ports of {peers} ({why})"),
    ):
        if attempts:
            peers = format_names([hosts[peer] for peer, _ in attempts])
            texts.append(text.format(peers=peers, why=", ".join(sorted({w for _, w in attempts}))))
    return f"network: {'; '.join(texts)}"
