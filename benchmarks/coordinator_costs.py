"""What one agent costs its coordinator, without sockets: `python -m benchmarks.coordinator_costs`.

Measures CPU time rather than wall time, so that other load on the machine matters less. Prints the
fastest of several rounds, and writes no files.
"""

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable

from relight.base import fields
from relight.core.group.group_types import GroupSettings, Received, Send
from relight.core.group.membership import Membership
from relight.core.group.messages import FromAgent, GenerationFormed, Heartbeat, Join, NodeReady
from relight.core.link import wire
from relight.core.link.authentication import DIALLER, LISTENER, Seal, Transcript
from relight.core.ranks import NO_GENERATION
from relight.host.env_fingerprint import collect

ROUNDS = 5
BEATS = 20_000


def beat_us(*, token: bool) -> float:
    """Return the CPU time to decode a heartbeat and to encode its echo."""
    transcript = Transcript(b"secret", b"{}", b"{}")
    agent, unseal = Seal(transcript, DIALLER), Seal(transcript, DIALLER)
    echo = Seal(transcript, LISTENER)
    bodies = [wire.encode_body({"type": "heartbeat", "number": n}) for n in range(1, BEATS + 1)]
    frames = [wire.frame(agent.close(body) if token else body) for body in bodies]
    decoder = wire.Decoder()
    next(decoder.feed(wire.GREETING), None)
    decoder.unseal = unseal.open if token else None

    def answer_all() -> None:
        for frame in frames:
            for message in decoder.feed(frame):
                fields.record(Heartbeat, message)
                body = wire.encode_body({**message, "extra_s": 1.5})
                wire.frame(echo.close(body) if token else body)

    return cpu_s(answer_all) / BEATS * 1e6


def cpu_s(action: Callable[[], None]) -> float:
    """Return the CPU time of an action."""
    gc.collect()
    since = time.process_time()
    action()
    return time.process_time() - since


class Group:
    """A membership with a number of agents whose messages are decoded from JSON."""

    def __init__(self, nodes: int) -> None:
        settings = GroupSettings(nodes, nodes, 3)
        facts = collect(script="train.py", arguments=[], is_file=False, python="")
        self.formed: list[GenerationFormed] = []
        self.bytes = 0
        self.membership = Membership(settings, "0" * 16)
        self._messages = [
            (
                f"{node:016x}",
                wire.encode_body(fields.to_json(self._join_of(node, settings, facts))),
                wire.encode_body(fields.to_json(NodeReady(NO_GENERATION, 29500, (), ()))),
            )
            for node in range(nodes)
        ]

    @staticmethod
    def _join_of(node: int, settings: GroupSettings, facts: dict[str, str]) -> Join:
        return Join(
            f"{node:016x}", f"gpu-{node:06}", "10.0.0.1", 8, "default", -1, settings.min_nodes,
            settings.max_nodes, settings.max_restarts, facts, None,
        )  # fmt: skip

    def join(self) -> None:
        """Decode and process the Join of all agents."""
        self._receive([(node, join) for node, join, _ in self._messages])

    def form(self) -> None:
        """Decode and process the NodeReady of all agents, and form a generation."""
        self._receive([(node, ready) for node, _, ready in self._messages])

    def _receive(self, messages: list[tuple[str, bytes]]) -> None:
        for node, body in messages:
            heard = fields.message(FromAgent, wire.parse(body))
            for effect in self.membership.step(Received(node, heard), 1.0):
                if isinstance(effect, Send) and isinstance(effect.message, GenerationFormed):
                    self.formed.append(effect.message)

    def encode(self) -> None:
        """Encode the GenerationFormed of all agents."""
        self.bytes = sum(len(wire.encode(fields.to_json(each))) for each in self.formed)


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description="Measure an agent's cost to its coordinator.")
    parser.add_argument("--nodes", type=int, nargs="*", default=(1000, 10_000, 100_000))
    options = parser.parse_args()
    for token in (False, True):
        best = min(beat_us(token=token) for _ in range(ROUNDS))
        print(f"heartbeat and echo, {'with' if token else 'without'} a token: {best:.1f} µs")
    for nodes in options.nodes:
        group = Group(nodes)
        phases = group.join, group.form, group.encode
        join_us, form_us, encode_us = (cpu_s(phase) / nodes * 1e6 for phase in phases)
        assert len(group.formed) == nodes
        size = group.bytes / nodes
        print(f"{nodes:,} agents: Join {join_us:.0f} µs, NodeReady {form_us:.0f} µs", end="; ")
        print(f"GenerationFormed {encode_us:.0f} µs, {size:.0f} bytes", flush=True)
    group = Group(options.nodes[0])
    tracemalloc.start()
    group.join()
    group.form()
    kib = tracemalloc.get_traced_memory()[0] / options.nodes[0] / 1024
    print(f"memory of the group, {options.nodes[0]:,} agents: {kib:.1f} KiB each")


if __name__ == "__main__":
    main()
