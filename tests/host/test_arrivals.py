"""Which workers have arrived at the store, derived from the kernel's socket tables."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest

from relight.agent import missing_at_init
from relight.agent.missing_at_init import arrived, explain
from relight.core.group.messages import GenerationFormed
from relight.core.ranks import Generation, GenerationId, Place
from relight.net.store_port import StorePort
from relight.processes.worker_processes import Workers

CLIENT = """
import socket, sys
if sys.argv[1] != "0":
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("here", flush=True)
sys.stdin.read()
"""


def test_process_connected_to_store_port_counts_as_arrived() -> None:
    """A process without a connection to the port, or one that has exited, hasn't arrived."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        clients = [
            subprocess.Popen(
                [sys.executable, "-c", CLIENT, str(target)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for target in (port, 0, port)
        ]
        for client in clients:
            assert client.stdout is not None
            client.stdout.readline()
        first, without, third = (client.pid for client in clients)
        assert arrived([first, without, third], port) == {first, third}
        assert arrived([first], port + 1) == set()
        for client in clients:
            client.communicate()
        assert arrived([first, without, third], port) == set()
        assert arrived([os.getpid()], port) == set()


class Served(StorePort):
    """A store in the agent, to which this many workers have been connected at the same time."""

    most_clients = 0
    served = True

    def __init__(self, most_clients: int) -> None:
        self.most_clients = most_clients


WORKERS = cast("Workers", SimpleNamespace(pids={0: 100, 1: 101, 2: 102}, ranks=(0, 1, 2)))


def explained(
    monkeypatch: pytest.MonkeyPatch, connected: set[int], alive: tuple[int, ...],
    store: StorePort | None, *, group_rank: int = 0, world_size: int = 3,
) -> str:  # fmt: skip
    """Return the explanation for three workers, if these pids are connected to the store."""
    monkeypatch.setattr(missing_at_init, "arrived", lambda pids, port: connected & set(pids))
    place = Place(group_rank, 1, 0, world_size, 3, "default", 0, world_size)
    formed = GenerationFormed(Generation(GenerationId(0, "c"), 0, "127.0.0.1", 1, ""), place)
    return explain(WORKERS, alive, formed, store)


def test_worker_that_has_not_connected_to_store_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert explained(monkeypatch, {100, 102}, (0, 1, 2), Served(2)) == (
        "rank 1 (pid 101) on this node has not reached init_process_group; 2 of 3 workers have"
    )


def test_worker_without_connection_may_have_left_if_agent_serves_no_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the store knows whether all workers have been connected at the same time."""
    assert explained(monkeypatch, {100, 102}, (0, 1, 2), None, group_rank=1, world_size=6) == (
        "rank 1 (pid 101) on this node has not reached init_process_group or has destroyed the "
        "process group; the other workers on this node are connected"
    )


def test_worker_that_left_after_init_process_group_is_not_reported_as_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has exited, or has only destroyed its process group."""
    assert explained(monkeypatch, {100, 102}, (0, 2), Served(3)) == ""
    assert explained(monkeypatch, {100, 102}, (0, 1, 2), Served(3)) == ""


@pytest.mark.parametrize("group_rank", [0, 1])
def test_no_worker_is_reported_as_late_after_one_has_exited_if_agent_serves_no_store(
    monkeypatch: pytest.MonkeyPatch, group_rank: int
) -> None:
    alive = 0, 2
    assert explained(monkeypatch, {100, 102}, alive, None, group_rank=group_rank) == ""
    assert explained(monkeypatch, {102}, alive, None, group_rank=group_rank) == ""


def test_workers_on_other_nodes_are_not_counted_as_late_if_agent_serves_no_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert explained(monkeypatch, {100, 101, 102}, (0, 1, 2), None, world_size=6) == ""


def test_missing_workers_of_other_nodes_are_counted_by_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker here that has exited may not have reached init_process_group."""
    connected, text = {100, 101, 102}, "4 of 6 workers have reached init_process_group"
    assert explained(monkeypatch, connected, (0, 1, 2), Served(4), world_size=6) == (
        f"{text}, including all those on this node"
    )
    assert explained(monkeypatch, connected, (0, 2), Served(4), world_size=6) == ""
