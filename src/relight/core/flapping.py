"""Hosts whose nodes come and go: what they cost the others has a limit.

Each node that is let in makes all others begin anew, and one that has just come makes the group
wait for more. A host whose node starts and dies, over and over, is let in only after its node has
stayed for a while: for twice the last call, and from the next time on for four times.
"""

_SOON_S = 60.0
"""A node that is lost after a longer stay was not a mistake from the beginning."""
_DOUBLINGS = 2
_MOST_HOSTS = 10_000


class Flapping:
    """How many times nodes of each host have come and soon gone."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def gone(self, host: str, stayed_s: float) -> None:
        """A node of this host is lost, or has left."""
        if stayed_s >= _SOON_S:
            self._times.pop(host, None)
        elif host in self._times or len(self._times) < _MOST_HOSTS:
            self._times[host] = self._times.get(host, 0) + 1

    def times(self, host: str) -> int:
        """Return how many times in a row."""
        return self._times.get(host, 0)

    def probation_s(self, host: str, last_call_s: float) -> float:
        """Return how long a node of this host must stay before it is let in: one may be lost and
        replaced at no cost.
        """
        times = self.times(host)
        return last_call_s * 2 ** min(times - 1, _DOUBLINGS) if times > 1 else 0.0
