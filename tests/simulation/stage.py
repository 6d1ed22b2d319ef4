"""Puts the shipped agent on a simulated machine. Only parts that touch the machine are replaced."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from relight.agent.agent_config import AgentConfig
from relight.agent.group import Group
from relight.agent.prepare import health_check, log_settings, why_all_restart
from relight.base.env import Environment
from relight.base.values import NETWORK, BuiltinCheck, HealthCheck, Nodes, RestartBudget
from relight.cli import coordinator
from relight.core.group.group_types import GroupSettings
from relight.core.group.membership import Membership
from relight.core.link.election import Election
from relight.core.link.lease import lease_s
from relight.core.link.link_state import Link
from relight.core.workers.worker_command import Command
from relight.flags.spec import FLAGS, LaunchSpec
from relight.net.connection import Security
from relight.rendezvous.config import Meeting

from . import memory, node, probes, processes, sockets
from .sockets import Loop, Socket
from .world import World

SPEC = LaunchSpec(
    **{flag.field: flag.default for flag in FLAGS if flag.field in LaunchSpec._fields}
    | {
        "nnodes": Nodes(1, 2), "signals_to_handle": (int(signal.SIGTERM),),
        "event_log_handler": "null", "script": "train.py", "script_args": (),
    },
)  # fmt: skip
COMMAND = Command(
    script=SPEC.script, script_args=(), module=False, no_python=False,
    env=Environment({"RELIGHT_JOB_ID": "simulated"}), python="python", run_path=(), run_id="job",
    local_rank_argument=False, agent_store=True, max_restarts=0,
    signals_to_handle=SPEC.signals_to_handle, virtual_local_rank=False, threads=0, timer_file="",
    breakpoint={},
)  # fmt: skip


class WatchedMembership(Membership):
    """The shipped class, checked after each step."""

    world: World

    def __init__(self, settings: GroupSettings, origin: str) -> None:
        del origin
        self.number = self.world.watch.new_coordinator()
        super().__init__(settings, origin=f"C{self.number}")
        self.process = self.world.me()
        self.world.log(f"C{self.number} begins at {self.process.name}")

    def _form(self, now: float) -> None:
        self.follows = self.live.id
        super()._form(now)

    def step(self, event: Any, now: float) -> Any:
        self.before = self.state, self.live.id
        live = self.live  # it is replaced when the next generation is formed
        agreement = live.agreement
        effects = super().step(event, now)
        self.check()
        self.progressed = bool(live.reports.progressed)
        self.was_agreeing = agreement is not None
        self.agrees_on = "" if live.agreement in (None, agreement) else live.agreement.cause
        order = live.teardown.order
        self.overdue = order.dropped if order is not None else set()
        self.blamed_at, self.hung = live.teardown.blamed_at, live.teardown.hung
        self.world.watch.stepped(self, event, effects, now)
        return effects


class WatchedLink(Link):
    """The shipped class, checked after each step."""

    world: World

    def step(self, event: Any, now: float) -> Any:
        effects = super().step(event, now)
        self.check()
        self.world.watch.linked(self.world.me(), event, effects)
        return effects


class CheckedElection(Election):
    """The shipped class, with its invariants checked after each step."""

    def step(self, event: Any, now: float) -> Any:
        effects = super().step(event, now)
        self.check()
        return effects


class WatchedGroup(Group):
    """The shipped class, registered with the world's watch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        watch = self.membership.world.watch  # type: ignore[attr-defined]
        watch.groups[self] = None

    def close(self) -> None:
        super().close()
        self.membership.world.watch.groups.pop(self, None)  # type: ignore[attr-defined]


TOWARDS_MACHINE: dict[str, dict[str, Any]] = {
    "relight.agent.agent": {
        "Consoles": node.Consoles, "Scratch": node.Scratch, "StorePort": node.Store,
        "raise_limit": lambda: None, "Node": node.WatchedNode,
    },
    "relight.agent.preemption": {"Interruption._listen": node.listen},
    "relight.agent.node": {"_READY_S": 1.0},
    "relight.agent.worker_group": {"Logs": node.Logs, "WorkerGroup._has_memory": node.has_memory},
    "relight.processes.shared_pages": {"WorkerMemory": memory.Memory},
    "relight.processes.breakpoints": {"waiting": dict},
    "relight.processes.supervisor": {"Workers": node.Workers},
    "relight.processes.freezer": {"system": processes.BELOW, "_send": processes.send},
    "relight.output.journal": {"EventLog": node.EventLog},
    "relight.agent.health_check": {"run": probes.check},
    "relight.agent.network_check": {"NetworkCheck": probes.NetworkCheck},
    "relight.agent.coordinator": {
        "Heartbeats": sockets.Heartbeats, "Listener": sockets.Listener, "raise_limit": lambda: None,
    },
    "relight.net.heartbeats": {"Heartbeats": sockets.Heartbeats},
    "relight.net.connection": {"dial": sockets.dial},
    "relight.net.dns": {"resolve": sockets.resolve, "outward_address": lambda: ""},
    "relight.host.background": {"call": sockets.call},
    "relight.agent.link": {"dial": sockets.dial, "Heartbeats": sockets.Heartbeats},
    "relight.rendezvous.endpoint_finder": {"resolve": sockets.resolve},
    "relight.rendezvous.election_finder": {
        "dial": sockets.dial, "resolve": sockets.resolve, "Heartbeats": sockets.Heartbeats,
        "Election": CheckedElection,
    },
    "relight.cli.coordinator": {
        "Consoles": node.Consoles, "time": SimpleNamespace(strftime=lambda _: ""),
    },
    "relight.health.endpoint": {"at_timeout": lambda *_: []},
    "relight.agent.postmortem": {
        "gather": node.gather, "report": lambda end, *_: end.reason,
    },
    "relight.stacks.native": {"add": lambda *_: False},
}  # fmt: skip


@contextmanager
def on(world: World) -> Iterator[None]:
    """Replace everything that touches the machine with this world."""

    def is_ours(address: str) -> bool:
        return address.startswith("127.") or address == world.me().host.address

    def listen(address: str, port: int) -> Socket | None:
        ports = world.me().host.ports
        while not port or (port in ports and not address and port >= 40_000):
            port = 40_000 + world.random.randrange(20_000)
        return None if port in ports else Socket(world, address, port)

    membership = type("WatchedMembership", (WatchedMembership,), {"world": world})
    with ExitStack() as stack:
        for module, names in TOWARDS_MACHINE.items():
            for name, value in names.items():
                stack.enter_context(patch(f"{module}.{name}", value))
        for name in ("endpoint_finder", "election_finder", "register_finder"):
            stack.enter_context(patch(f"relight.rendezvous.{name}.is_ours", is_ours))
            stack.enter_context(patch(f"relight.rendezvous.{name}.listen", listen))
        for module in ("relight.agent.agent", "relight.cli.coordinator"):
            stack.enter_context(patch(f"{module}.Loop", lambda: Loop(world)))
        stack.enter_context(patch("relight.cli.coordinator.listen", listen))
        stack.enter_context(
            patch("relight.host.env_fingerprint.machine", lambda: world.me().host.name)
        )
        stack.enter_context(
            patch("relight.cli.coordinator._refuses", partial(sockets.refuses, world))
        )
        stack.enter_context(patch("relight.agent.group.Membership", membership))
        stack.enter_context(
            patch("relight.agent.watchdogs.usage_of_all", lambda _: node.usage(world.me()))
        )
        stack.enter_context(
            patch("relight.agent.stacks_before_stop.doing", lambda *_, **__: node.doing(world.me()))
        )
        stack.enter_context(
            patch(
                "relight.agent.postmortem.suspects_peer",
                lambda _, local_rank: node.suspects_peer(world.me(), local_rank),
            )
        )
        if world.crowd:
            stack.enter_context(patch("relight.core.link.heartbeat_rate.FULL_RATE_AGENTS", 0.01))
        link = type("WatchedLink", (WatchedLink,), {"world": world})
        stack.enter_context(patch("relight.agent.link.Link", link))
        stack.enter_context(patch("relight.agent.coordinator.Group", WatchedGroup))
        stack.enter_context(patch.object(os, "urandom", world.random.randbytes))
        stack.enter_context(patch.object(socket, "gethostname", lambda: world.me().host.name))
        yield


def job(
    settings: GroupSettings, meeting: Meeting, local_world_size: int, grace_s: float, world: World,
) -> AgentConfig:  # fmt: skip
    """Return an agent's configuration."""
    check = HealthCheck("", (BuiltinCheck(NETWORK, 0),)) if world.tries_network else None
    most = RestartBudget(settings.max_restarts)
    spec = SPEC._replace(hang_timeout=world.hang_timeout, health_check=check, max_restarts=most)
    return AgentConfig(
        spec=spec, command=COMMAND._replace(max_restarts=most.most),
        local_world_size=local_world_size, store_host="", store_port=0, cpus=(), grace_s=grace_s,
        stuck_after_s=0.0, run_directory="", scratch="", logs=log_settings(spec),
        health_check=health_check(spec, COMMAND.env, local_world_size, ""),
        why_all_restart=why_all_restart(spec), settings=settings, meeting=meeting,
        facts={}, worker_program=None,
    )  # fmt: skip


def coordinate(bind: str, meeting: Meeting, settings: GroupSettings) -> int:
    """Run `relight coordinator`."""
    with patch("relight.cli.coordinator._meeting", lambda *_: (meeting, settings, [])):
        return coordinator.main(["--bind", bind])


def meeting(
    settings: GroupSettings, hosts: tuple[tuple[str, int], ...], register: Any, ttl_s: float,
    address: str, node_rank: int, topology: str,
) -> Meeting:  # fmt: skip
    """Return the meeting configuration that `rendezvous/config` would."""
    return Meeting(
        job="job", where="there", register=register, ttl_s=ttl_s, hosts=hosts, alone=False,
        hosted=None if not settings.ordered else node_rank == 0,
        local_addr=address, fixed_port=False,
        node_rank=node_rank, interval_s=min(0.5, settings.lost_after_s / 5),
        lease_s=lease_s(settings.lost_after_s), checkpoint_s=10.0, dial_s=5.0,
        seek_s=settings.join_timeout_s, close_s=5.0, security=Security(), topology=topology,
    )  # fmt: skip
