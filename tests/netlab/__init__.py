"""Simulated hosts and a network for tests, on one machine, based on `relight sandbox`."""

from collections.abc import Iterable, Mapping
from itertools import permutations, product
from pathlib import Path

from relight.sandbox import lab
from relight.sandbox.lab import Host, LabError, lab_unavailable

__all__ = ["Host", "Lab", "LabError", "lab_unavailable"]


class Lab(lab.Lab):
    """Hosts on a network that also has firewalls and packet size limits. A host's hostname is its
    name, unless `hostnames` specifies a different one.
    """

    program = Path(__file__).with_name("switch.py")

    def __init__(self, hosts: Iterable[str], hostnames: Mapping[str, str] | None = None) -> None:
        super().__init__(hosts)
        for name, alias in (hostnames or {}).items():
            self.hosts[name].hostname = alias
        self.limits: dict[str, int] = {}
        self.walls: dict[str, list[int]] = {}

    def partition(self, *groups: Iterable[str]) -> None:
        """Separate groups of hosts from each other, until heal() is called."""
        with self.lock:
            for one, other in permutations(map(list, groups), 2):
                self.blocks.update(product(one, other))
            self.apply()

    def limit(self, host: str, size: int | None) -> None:
        """Silently drop packets over `size` bytes that a host sends; None undoes it."""
        with self.lock:
            self.limits.pop(self.hosts[host].name, None)
            if size is not None:
                self.limits[host] = size
            self.ask({"limits": self.limits})

    def wall(self, host: str, ports: Iterable[int] | None) -> None:
        """Put a firewall in front of a host (`ports=None` removes it). The host accepts connections
        and datagrams only at these ports, and responses to its own; everything else is silently
        dropped.
        """
        with self.lock:
            self.walls.pop(self.hosts[host].name, None)
            if ports is not None:
                self.walls[host] = list(ports)
            self.ask({"walls": self.walls})
