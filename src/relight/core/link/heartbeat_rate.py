"""How many seconds longer than usual the agents of a large group wait between two heartbeats.

One coordinator answers the heartbeats of all agents that are connected to it. From
`FULL_RATE_AGENTS` on, their interval therefore grows with their number, up to `LONGEST_S` and a
fifth of the time after which a silent node is lost. The coordinator tells an agent in the echo of
each heartbeat, so both always use the same interval. Every limit that expects a heartbeat or an
echo then allows for the same `extra_s`: when a node counts as silent, when an echo is late, and
when a connection is replaced. Leases don't depend on it: they count from the heartbeat that was
echoed.

With a registry, the interval stays the same. A coordinator that has lost the registry must notice
within two seconds that a node is gone, because that node may have evicted it
(core/link/leader_lease).
"""

USUAL_S = 0.5
"""The longest interval in a small group (rendezvous/conf)."""
FULL_RATE_AGENTS = 1000
"""The most agents that send heartbeats at the usual rate."""
LONGEST_S = 2.0
_SHARE = 5


def extra_s(agents: int, lost_after_s: float) -> float:
    """Return how many seconds longer than usual an agent waits between two heartbeats.

    Args:
        agents: how many are connected to the coordinator.
        lost_after_s: how long the agent's group waits for a silent node.
    """
    wanted_s = USUAL_S * agents / FULL_RATE_AGENTS
    return max(0.0, min(wanted_s, LONGEST_S, lost_after_s / _SHARE) - USUAL_S)
