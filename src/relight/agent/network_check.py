"""This node's part in --health-check=network. The other nodes try to connect to this node, and this
node tries to connect to them.

The coordinator starts the check and decides which nodes to exclude (core/group/reachability). The
probes are the same as in `relight doctor`.
"""

from collections.abc import Callable, Mapping

from relight.core.group.messages import NodesProbed, StartProbes, Target, Unreached
from relight.health.doctor_messages import Probe, ProbeResult
from relight.health.probes import Prober, cookie_from
from relight.host.loop import Loop

_WHY = {
    ProbeResult.SILENT: "no response",
    ProbeResult.REFUSED: "refused",
    ProbeResult.NO_ROUTE: "no route",
    ProbeResult.MUTE: "a different program responds",
    ProbeResult.STUCK: "large packets are lost",
}


class NetworkCheck:
    """Probes other nodes at the coordinator's request.

    Args:
        loop: the agent's loop.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._next = Prober(loop)
        self._last: Prober | None = None  # other nodes may still be probing it

    @property
    def prober(self) -> Target:
        """The address at which other nodes may probe this node next. Only TCP is probed, because
        workers need nothing else, and because waiting for datagrams dropped by a firewall would use
        up the whole time limit.
        """
        return Target("", self._next.tcp_port, 0)

    def start(self, begin: StartProbes, done: Callable[[NodesProbed], None]) -> None:
        """Try to connect to the other nodes, and call `done` within 2.5 s.

        Raises:
            Malformed: if the cookie is invalid.
        """
        cookie = cookie_from(begin.cookie)
        if self._last is not None:
            self._last.close()
        self._last, self._next = self._next, Prober(self._loop)

        def answer(found: dict[int, Probe]) -> None:
            done(NodesProbed(begin.cookie, _unreached(found), self.prober))

        self._last.start(cookie, begin.number, begin.nodes, answer)

    def close(self) -> None:
        """Close the sockets."""
        self._next.close()
        if self._last is not None:
            self._last.close()


def _unreached(found: Mapping[int, Probe]) -> tuple[Unreached, ...]:
    words = {
        target: _WHY.get(probe.tcp) or _WHY.get(probe.large) for target, probe in found.items()
    }
    return tuple(Unreached(target, why) for target, why in words.items() if why)
