"""Computes how much longer than usual agents in a large group wait between two heartbeats.

A single coordinator replies to the heartbeats from all agents that are connected to it. Therefore,
if there are more than `FULL_RATE_AGENTS` agents, the heartbeat interval grows with the number of
agents. The interval is limited to `LONGEST_S` and to a fifth of the timeout for silent nodes. If an
agent has a direct connection, the echo of each of its heartbeats contains `extra_s`, the difference
from the usual interval. The limits that determine when a node counts as silent, when an echo is
late, and when a connection is replaced are extended by the same `extra_s`. The time until a silent
node counts as lost stays the same. Leases also stay the same, because they count from the heartbeat
that was echoed.

With a registry, the interval stays the same. A coordinator that has lost its connection to the
registry must notice within two seconds that a node is gone, because that node may have evicted the
coordinator (core/link/leader_lease).
"""

USUAL_S = 0.5
"""The longest heartbeat interval in a small group (flags/rdzv_conf)."""
FULL_RATE_AGENTS = 1000
"""The maximum number of agents that send heartbeats at the usual rate."""
LONGEST_S = 2.0
_SHARE = 5


def extra_s(agents: int, lost_after_s: float) -> float:
    """Return how many seconds longer than usual an agent waits between two heartbeats.

    Args:
        agents: how many agents are connected to the coordinator.
        lost_after_s: how long the agent's group waits for a silent node.
    """
    wanted_s = USUAL_S * agents / FULL_RATE_AGENTS
    return max(0.0, min(wanted_s, LONGEST_S, lost_after_s / _SHARE) - USUAL_S)
