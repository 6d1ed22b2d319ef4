"""Fake health checks: nodes that probe each other in this world, and broken machines.

They replace `relight.agent.network_check` and `relight.agent.health_check`.
"""

from collections.abc import Callable
from typing import Any

from relight.agent.health_check import HealthCheckFailure
from relight.core.group.messages import NodesProbed, StartProbes, Target, Unreached

_LONGEST_S = 2.5


def check(
    loop: Any, journal: object, settings: object, is_over: Callable[[], bool]
) -> HealthCheckFailure:
    """Return whether a machine is broken, as `relight.agent.health_check.run` would, possibly
    after a while.
    """
    del journal, settings
    world = loop.process.world
    loop.run_until(is_over, world.probes.choice((0.0, 0.0, 0.3, 5.0)))
    is_broken = world.probes.random() < world.broken
    if is_broken:
        world.log(f"{loop.process.name} is broken")
    return HealthCheckFailure("broken" if is_broken else "")


class NetworkCheck:
    """One node's probes.

    It reaches a peer if it does so at either of two moments, as unanswered probes are sent again.
    """

    prober = Target("", 1, 0)

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._process = loop.process
        self._world = loop.process.world

    def start(self, begin: StartProbes, done: Callable[[NodesProbed], None]) -> None:
        """Probe the other nodes, and call `done` afterwards."""
        peers = dict(enumerate(begin.nodes[1:], 1))

        def look() -> None:
            for number, peer in list(peers.items()):
                if self._reaches(peer.address):
                    del peers[number]

        def end() -> None:
            look()
            self._world.log(f"{self._process.name} does not reach {len(peers)} nodes")
            unreached = tuple(Unreached(number, "no response") for number in peers)
            done(NodesProbed(begin.cookie, unreached, self.prober))

        look()
        self._world.on_try(self._process)
        self._loop.call_after(self._world.probes.uniform(0.01, _LONGEST_S), end)

    def close(self) -> None:
        pass

    def _reaches(self, address: str) -> bool:
        world, here = self._world, self._process.host
        there = world.host_of(address, here)
        if there is here:
            return True
        if there is None or world.refuses(here, there) or there.number in world.walled:
            return False
        if not (world.passes(here, there) and world.passes(there, here)):
            return False
        return any(process.runs for process in there.processes)
