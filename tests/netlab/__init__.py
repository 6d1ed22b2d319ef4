"""Hosts and a network for tests, on one machine, from `relight sandbox`."""

from collections.abc import Iterable, Mapping
from itertools import permutations, product
from pathlib import Path

from relight.sandbox import lab
from relight.sandbox.lab import Host, LabError, lab_unavailable

__all__ = ["Host", "Lab", "LabError", "lab_unavailable"]


class Lab(lab.Lab):
    """Hosts whose network has firewalls and limits as well."""

    program = Path(__file__).with_name("switch.py")

    def __init__(self, hosts: Iterable[str], hostnames: Mapping[str, str] | None = None) -> None:
        super().__init__(hosts, hostnames)
        self.limits: dict[str, int] = {}
        self.walls: dict[str, list[int]] = {}

    def partition(self, *groups: Iterable[str]) -> None:
        """Hosts of different groups cannot reach each other; heal() undoes it."""
        with self.lock:
            for one, other in permutations(map(list, groups), 2):
                self.blocks.update(product(one, other))
            self.apply()

    def limit(self, host: str, size: int | None) -> None:
        """Lose packets of more bytes that a host sends without a word; None undoes it."""
        with self.lock:
            self.limits.pop(self.hosts[host].name, None)
            if size is not None:
                self.limits[host] = size
            self.ask({"limits": self.limits})

    def wall(self, host: str, ports: Iterable[int] | None) -> None:
        """Put up a firewall: a host takes connections and datagrams only at these ports, and
        answers to its own; the rest is lost without a word. None undoes it.
        """
        with self.lock:
            self.walls.pop(self.hosts[host].name, None)
            if ports is not None:
                self.walls[host] = list(ports)
            self.ask({"walls": self.walls})
