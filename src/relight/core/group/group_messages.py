"""User messages about an incomplete group: its nodes, what it is waiting for, and how much time is
left. There are also messages about nodes that can't join or seem suspicious.
"""

from collections.abc import Mapping, Sequence

from relight.base.text import format_duration, format_names, pluralize
from relight.base.values import Nodes
from relight.core.group.group_types import GroupSettings
from relight.core.group.messages import Join

_MAX_KINDS = 8
"""Maximum number of distinct sets of facts to compare. If all nodes differ, further notes would not
help.
"""


class Differences:
    """The facts that should be the same on all nodes, and the machines that should differ. A set of
    facts is reported only if it differs from those reported before.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, str]] = {}  # the facts of one host for each distinct set
        self._told_shared = False

    def unusual(self, join: Join) -> list[str]:
        """Return a line for each fact whose value differs from the value on all other nodes."""
        kinds = self._kinds
        if join.facts in kinds.values() or len(kinds) >= _MAX_KINDS:
            return []
        lines = []
        if kinds:  # empty in a single-node job, which starts faster without the import
            from relight.core.env_diff import compare

            lines = compare(kinds, join.host, join.facts)
        kinds[join.host] = join.facts
        return lines

    def shared_machine(self, joins: Sequence[Join]) -> str:
        """Return the line for a group with several nodes on one machine, or an empty string. Return
        the line only once.
        """
        counts: dict[tuple[str, str], int] = {}
        for join in joins:
            if join.machine:
                machine = join.host, join.machine
                counts[machine] = counts.get(machine, 0) + 1
        if self._told_shared or max(counts.values(), default=0) < 2:
            return ""
        self._told_shared = True
        fullest = max(counts, key=lambda machine: counts[machine])  # the first one if tied
        host, count = fullest[0], counts[fullest]
        those = "all nodes" if count == len(joins) else f"{count} of {len(joins)} nodes"
        return (
            f"{those} are agents on the same host, {host}, and share its CPUs and GPUs; a single "
            "agent per host can start all workers there (--nproc-per-node)"
        )


def refusal(settings: GroupSettings, join: Join, holder: Join | None) -> str:
    """Return the reason why a node can't join, or an empty string. The argument `holder` is the
    node that already has this node's node rank.
    """
    if (join.min_nodes, join.max_nodes) != (settings.min_nodes, settings.max_nodes):
        return (
            f"--nnodes={Nodes(join.min_nodes, join.max_nodes)} on {join.host}, "
            f"but the job was started with --nnodes={Nodes(settings.min_nodes, settings.max_nodes)}"
        )
    if settings.ordered and not 0 <= join.node_rank < settings.max_nodes:
        rank, size = join.node_rank, settings.max_nodes
        return f"--node-rank={rank} on {join.host} is not below --nnodes={size}"
    if settings.ordered and holder is not None:
        return (
            f"--node-rank={join.node_rank} already belongs to {holder.host}; give each node its "
            "own --node-rank, or use --rdzv-backend=c10d without node ranks"
        )
    return ""


def held_by_silent(join: Join, host: str) -> str:
    """Return the line for a node whose node rank belongs to a silent node."""
    return (
        f"--node-rank={join.node_rank} belongs to a node on {host} that has gone silent; the new "
        f"node on {join.host} can join once that one is considered lost"
    )


def other_lost_after(asked_s: float, settings: GroupSettings) -> str:
    """Return the reason why a node with a different heartbeat timeout can't join, or an empty
    string.
    """
    if asked_s == settings.lost_after_s:
        return ""
    return (
        "keep_alive_interval * keep_alive_max_attempt of --rdzv-conf is "
        f"{asked_s:g} s on this node, but the job was started with {settings.lost_after_s:g} s; "
        "use the same value on all nodes"
    )


def too_few(hosts: Sequence[str], needed: int, most: int, left_s: float, cause: str) -> str:
    """Return the line for a group with too few nodes. The argument `cause` is the reason why the
    last generation ended, or an empty string.
    """
    least = "at least " if most > needed else ""
    nodes = f"{len(hosts)} of {least}{needed} nodes"
    here = f"{cause}; {nodes} left" if cause else f"{nodes} have joined"
    more = needed - len(hosts)
    return f"{here}: {format_names(hosts)}; waiting for {more} more ({_timeout(left_s)})"


def several_jobs(waiting: Mapping[str, tuple[Sequence[str], int]]) -> str:
    """Return the line for several jobs at one endpoint that are all waiting for nodes.

    Args:
        waiting: by job, the hosts of the nodes that have joined, and how many nodes are needed.
    """
    jobs = [
        f"{job} ({len(hosts)} of {needed} nodes: {format_names(hosts)})"
        for job, (hosts, needed) in waiting.items()
    ]
    return (
        f"note: {len(jobs)} jobs with different --rdzv-id are waiting for nodes at this endpoint: "
        f"{', '.join(jobs[:8])}; if they are one job, give all its nodes the same id"
    )


def only_this_machine(where: str, addresses: Sequence[str]) -> str:
    """Return the line for the host of a loopback endpoint that no other machine has joined."""
    return (
        f"note: endpoint {where} is the loopback address {', '.join(addresses)} on this node, and "
        "no other machine has joined; give the other nodes an address of this machine that they "
        "can reach"
    )


def start_other_nodes(ordered: bool) -> str:
    """Return the line for the coordinator's host if no other node has connected. `ordered` means
    that each node has a node rank. A scheduler may be starting the other nodes.
    """
    own = ", with its own --node-rank" if ordered else ""
    return (
        "hint: no other node has connected yet; if you start the nodes by hand, run the same "
        f"command on each{own}"
    )


def coming_back(missing: int, generation: int) -> str:
    """Return the line for a new coordinator that is waiting for the nodes in a live generation."""
    return (
        f"waiting for {pluralize(missing, 'more node')} from generation {generation} to reconnect"
    )


def not_ready(hosts: Sequence[str], left_s: float) -> str:
    """Return the line for nodes that still have workers from an older generation."""
    return f"waiting for {format_names(hosts)} to become ready ({_timeout(left_s)})"


def last_call(hosts: Sequence[str], most: int, quiet_s: float) -> str:
    """Return the line for a group that has enough nodes but is waiting for more."""
    return (
        f"{len(hosts)} of at most {most} nodes have joined: {format_names(hosts)}; "
        f"the group starts if no further node joins within {quiet_s:g} s"
    )


def earlier_generation(hosts: Sequence[str], left_s: float, reason: str) -> str:
    """Return the line for a group that has enough nodes, but can't start yet, because workers of an
    earlier generation may be running.
    """
    here = f"{pluralize(len(hosts), 'node')} joined: {format_names(hosts)}"
    why = reason or "workers of an earlier coordinator may still be running"
    return f"{here}; waiting up to {format_duration(left_s, 1)}: {why}"


def on_probation(host: str, times: int, seconds: float) -> str:
    """Return the line for a node on a host with flapping nodes."""
    return (
        f"{host} is flapping ({times} joins); it can join after staying connected "
        f"for {format_duration(seconds)}"
    )


def silent(hosts: Sequence[str], seconds: float, lost_after_s: float) -> str:
    """Return the line for silent nodes. These nodes may be running normally."""
    return (
        f"no heartbeat from {format_names(hosts)} for {seconds:.1f} s; "
        f"waiting up to {lost_after_s:g} s"
    )


def heard_again(hosts: Sequence[str], seconds: float) -> str:
    """Return the line for nodes that are no longer silent."""
    most = "at most " if len(hosts) > 1 else ""
    return f"heartbeats from {format_names(hosts)} resumed after {most}{seconds:.1f} s"


def dropped(hosts: Sequence[str]) -> str:
    """Return the line for nodes that failed to confirm in time that their workers have stopped."""
    its, it = ("its", "it") if len(hosts) == 1 else ("their", "them")
    return (
        f"{format_names(hosts)} did not confirm in time that {its} workers have stopped; "
        f"continuing without {it}"
    )


def _timeout(left_s: float) -> str:
    return f"join timeout in {format_duration(left_s)}"
