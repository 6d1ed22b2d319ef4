"""A coordinator stepping down, over real sockets and a real loop."""

import socket
from collections.abc import Iterator

import pytest
from ends import OPEN_TO_ALL, Ends, Log

from relight.agent.coordinator import Coordinator
from relight.base import fields
from relight.core.group.group_types import GroupSettings, Hello
from relight.core.group.messages import GenerationFormed, Join, NodeReady, WorkersSucceeded
from relight.core.ranks import NO_GENERATION
from relight.net.connection import Connection, dial
from relight.rendezvous.discovery import Finder

ONE_NODE = GroupSettings(1, 1, 0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.close()


def coordinate(ends: Ends) -> Coordinator:
    sock = socket.create_server(("127.0.0.1", 0))
    ends.address = sock.getsockname()
    coordinator = Coordinator(
        ends.loop, sock, OPEN_TO_ALL, Finder(), lambda client: client.close(), ends.refused.append
    )
    ends.opened.append(coordinator)
    return coordinator


def join(ends: Ends, job: str) -> tuple[Connection, Log]:
    """Return the connection of a node that has joined a job, and its owner."""
    log = Log()
    hello = fields.plain(Hello(job=job, settings=ONE_NODE))
    connection = dial(ends.loop, ends.address, log, hello, OPEN_TO_ALL)
    ends.opened.append(connection)
    node = Join(f"node of {job}", "h", "127.0.0.1", 1, "default", -1, 1, 1, 0, {}, None)
    ends.until(lambda: log.hellos)
    connection.send(fields.to_json(node))
    return connection, log


def kinds(log: Log) -> list[str]:
    return [message["type"] for message in log.messages]


def test_nodes_in_ended_job_stay_connected_until_notified(ends: Ends) -> None:
    """The coordinator must step down right after a job's end. The notification may still be on its
    way to some nodes, so only nodes of running jobs are disconnected.
    """
    coordinator = coordinate(ends)
    succeeds, told = join(ends, "ended")
    succeeds.send(fields.to_json(NodeReady(NO_GENERATION, 1, (), ())))
    ends.until(lambda: "generationformed" in kinds(told))
    generation = fields.message(GenerationFormed, told.messages[-1]).generation.id
    succeeds.send(fields.to_json(WorkersSucceeded(generation)))
    ends.until(lambda: "jobended" in kinds(told))
    _, runs = join(ends, "runs")
    ends.until(lambda: coordinator.others == 2)
    coordinator.step_down()
    ends.until(lambda: runs.reasons)
    assert list(coordinator.groups) == ["ended"]
    assert not told.reasons


def test_nodes_in_running_job_can_rejoin_after_coordinator_steps_down(ends: Ends) -> None:
    """The former coordinator still listens, and may be elected again."""
    coordinator = coordinate(ends)
    _, before = join(ends, "runs")
    ends.until(lambda: before.messages)
    coordinator.step_down()
    ends.until(lambda: before.reasons)
    assert coordinator.others == 0
    _, after = join(ends, "runs")
    ends.until(lambda: after.messages)
    assert coordinator.others == 1
