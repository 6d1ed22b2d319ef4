"""The tests' switch, which also drops large packets and has firewalls. Run like the sandbox's."""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "src"))

from relight.sandbox import switch
from relight.sandbox.switch import MTU, Port

TCP, UDP, SYN, ACK = 6, 17, 0x02, 0x10


class Wall:
    """A host's firewall, which allows responses, and new connections and datagrams to some ports.

    Other packets are dropped silently. ICMP passes.
    """

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.asked: set[tuple[bytes, bytes]] = set()

    def leaves(self, packet: bytes) -> None:
        """Remember the destinations of the host's datagrams, because they may respond."""
        protocol, ends, _ = dissect(packet)
        if protocol == UDP:
            self.asked.add(ends)

    def lets_in(self, packet: bytes) -> bool:
        """Return whether the firewall lets a packet through to the host."""
        protocol, (source, target), flags = dissect(packet)
        if protocol not in (TCP, UDP) or int.from_bytes(target[-2:]) in self.ports:
            return True
        if protocol == TCP:
            return flags & (SYN | ACK) != SYN
        return (target, source) in self.asked


def dissect(packet: bytes) -> tuple[int, tuple[bytes, bytes], int]:
    """Return the protocol, the sender's and the target's address and port, and the TCP flags."""
    if packet[0] >> 4 == 4:
        protocol, start, first, size = packet[9], (packet[0] & 15) * 4, 12, 4
    else:
        protocol, start, first, size = packet[6], 40, 8, 16
    ports = packet[start : start + 4]
    source = packet[first : first + size] + ports[:2]
    target = packet[first + size : first + 2 * size] + ports[2:]
    return protocol, (source, target), packet[start + 13] if protocol == TCP else 0


class Switch(switch.Switch):
    """Forwards packets from each port to the others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.limits: dict[Port, int] = {}
        self.walls: dict[Port, Wall] = {}

    def carry_out(self, request: dict[str, Any]) -> None:
        super().carry_out(request)
        if "limits" in request:
            self.limits = {self.ports[k]: size for k, size in request["limits"].items()}
        if "walls" in request:
            self.walls = {self.ports[k]: Wall(v) for k, v in request["walls"].items()}

    def passes(self, source: Port, target: Port, packet: bytes) -> bool:
        if len(packet) > self.limits.get(source, MTU):
            return False
        if source in self.walls:
            self.walls[source].leaves(packet)
        is_in = target not in self.walls or self.walls[target].lets_in(packet)
        return is_in and super().passes(source, target, packet)


if __name__ == "__main__":
    switch.main(Switch)
