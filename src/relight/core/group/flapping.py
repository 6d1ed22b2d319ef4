"""Limits what a host costs the group if its nodes come and go.

Each node that is let in makes all others restart, and each new node makes the group wait for more.
If nodes of a host come and go repeatedly, the next one is let in only after it has stayed for a
while: for twice the last call, and from the next time on for four times.
"""

_SOON_S = 60.0
"""A node lost after a longer stay does not count as one that comes and goes."""
_DOUBLINGS = 2
_MOST_HOSTS = 10_000


class Flapping:
    """Counts for each host how many times its nodes came and soon left."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def gone(self, host: str, stayed_s: float) -> None:
        """Count a node of this host that was lost, or has left."""
        if stayed_s >= _SOON_S:
            self._times.pop(host, None)
        elif host in self._times or len(self._times) < _MOST_HOSTS:
            self._times[host] = self._times.get(host, 0) + 1

    def times(self, host: str) -> int:
        """Return how many times in a row."""
        return self._times.get(host, 0)

    def probation_s(self, host: str, settle_timeout_s: float) -> float:
        """Return how long a node of this host must stay before it is let in; 0 after only one loss,
        so that a node may be lost and replaced at no cost.
        """
        times = self.times(host)
        return settle_timeout_s * 2 ** min(times - 1, _DOUBLINGS) if times > 1 else 0.0
