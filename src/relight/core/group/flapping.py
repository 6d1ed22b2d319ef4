"""Limits the cost to the group of a host with flapping nodes.

Each admitted node restarts all others, and each new node makes the group wait for more. If the
nodes of a host repeatedly join and soon leave, the next one is on probation first: for twice the
last call, and from then on for four times.
"""

_SOON_S = 60.0
"""A node lost after a longer stay does not count as flapping."""
_DOUBLINGS = 2
_MOST_HOSTS = 10_000


class Flapping:
    """Counts for each host how many of its nodes joined and soon left."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def gone(self, host: str, stayed_s: float) -> None:
        """Count a node of this host that was lost or left."""
        if stayed_s >= _SOON_S:
            self._times.pop(host, None)
        elif host in self._times or len(self._times) < _MOST_HOSTS:
            self._times[host] = self._times.get(host, 0) + 1

    def times(self, host: str) -> int:
        """Return how many nodes of a host left early in a row."""
        return self._times.get(host, 0)

    def probation_s(self, host: str, settle_timeout_s: float) -> float:
        """Return how long a node of this host must stay before it is admitted. It is 0 after a
        single loss, so that replacing a lost node costs nothing.
        """
        times = self.times(host)
        return settle_timeout_s * 2 ** min(times - 1, _DOUBLINGS) if times > 1 else 0.0
