"""Limits the delay that a host with flapping nodes can cause for the group.

Each admitted node causes all others to restart, and each new node makes the group wait for more
nodes. If a host's nodes repeatedly join and soon leave, that host's next node is put on probation
first. The first probation lasts twice as long as the last call, and later ones last four times as
long as the last call.
"""

_SOON_S = 60.0
"""A node that is lost after it has stayed for longer than this does not count as flapping."""
_DOUBLINGS = 2
_MAX_HOSTS = 10_000


class Flapping:
    """Counts how many nodes on each host joined and soon left."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def gone(self, host: str, stayed_s: float) -> None:
        """Record that a node on this host was lost or left."""
        if stayed_s >= _SOON_S:
            self._times.pop(host, None)
        elif host in self._times or len(self._times) < _MAX_HOSTS:
            self._times[host] = self._times.get(host, 0) + 1

    def times(self, host: str) -> int:
        """Return how many nodes on a host have left early in a row."""
        return self._times.get(host, 0)

    def probation_s(self, host: str, settle_timeout_s: float) -> float:
        """Return how long a node on this host must stay before it is admitted. The time is 0 after
        a single loss, so that replacing a lost node takes no extra time.
        """
        times = self.times(host)
        return settle_timeout_s * 2 ** min(times - 1, _DOUBLINGS) if times > 1 else 0.0
