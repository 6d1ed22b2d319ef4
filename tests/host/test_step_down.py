"""A coordinator that steps down or is suspended, over real sockets and a real loop."""

import socket
from collections.abc import Callable, Iterator

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


TWO_NODES = GroupSettings(2, 2, 0)


class Elected(Finder):
    """The finder of a host whose votes have expired while `votes` is False."""

    votes = True

    def coordinates(self, has_lost_nodes: Callable[[], bool]) -> bool:
        del has_lost_nodes
        return self.votes


def coordinate(ends: Ends, finder: Finder | None = None) -> Coordinator:
    sock = socket.create_server(("127.0.0.1", 0))
    ends.address = sock.getsockname()
    coordinator = Coordinator(
        ends.loop, sock, OPEN_TO_ALL, finder or Finder(), lambda client: client.close(),
        ends.refused.append,
    )  # fmt: skip
    ends.opened.append(coordinator)
    return coordinator


def join(
    ends: Ends, job: str, settings: GroupSettings = ONE_NODE, node: str = "n", number: int = 1
) -> tuple[Connection, Log]:
    """Return a node's connection, over which it has sent its Join, and the connection's owner."""
    log = Log()
    hello = fields.plain(Hello(job=job, settings=settings))
    connection = dial(ends.loop, ends.address, log, hello, OPEN_TO_ALL)
    ends.opened.append(connection)
    ends.until(lambda: log.hellos)
    message = Join(
        f"{node} of {job}", "h", "127.0.0.1", 1, "default", -1,
        settings.min_nodes, settings.max_nodes, 0, {}, None,
    )  # fmt: skip
    connection.send(fields.to_json(message._replace(connection=number)))
    return connection, log


def ready(connection: Connection) -> None:
    connection.send(fields.to_json(NodeReady(NO_GENERATION, 1, (), ())))


def kinds(log: Log) -> list[str]:
    return [message["type"] for message in log.messages]


def test_nodes_in_ended_job_stay_connected_until_notified(ends: Ends) -> None:
    """The coordinator must step down right after a job's end. The notification may still be on its
    way to some nodes, so only nodes of running jobs are disconnected.
    """
    coordinator = coordinate(ends)
    succeeds, told = join(ends, "ended")
    ready(succeeds)
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


def test_deferred_generation_is_not_sent_to_node_that_rejoins_without_it(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the coordinator's votes have expired, it defers what would form a generation. A node
    that reconnects first has already reported that it runs no workers, so it must not start any
    for that generation.
    """
    finder = Elected()
    coordinator = coordinate(ends, finder)
    other, told = join(ends, "runs", TWO_NODES, "other")
    ready(other)
    before, _ = join(ends, "runs", TWO_NODES)
    ends.until(lambda: len(coordinator.groups["runs"].membership.members) == 2)
    finder.votes = False
    ready(before)
    ends.settle()  # deferred
    accept = coordinator.opened

    def elected_again(connection: Connection, hello: fields.Message) -> None:
        finder.votes = True
        accept(connection, hello)

    monkeypatch.setattr(coordinator, "opened", elected_again)
    after, rejoined = join(ends, "runs", TWO_NODES, number=2)
    ready(after)
    ends.until(lambda: "stopworkers" in kinds(told))
    ends.settle()
    assert "generationformed" not in kinds(rejoined)


def test_node_that_joins_while_votes_have_expired_is_redirected(ends: Ends) -> None:
    """Another host may be the coordinator by now."""
    finder = Elected()
    coordinator = coordinate(ends, finder)
    log = Log()
    hello = fields.plain(Hello(job="runs", settings=ONE_NODE))
    connection = dial(ends.loop, ends.address, log, hello, OPEN_TO_ALL)
    ends.opened.append(connection)
    ends.until(lambda: coordinator.others and log.hellos)
    finder.votes = False
    node = Join("n", "h", "127.0.0.1", 1, "default", -1, 1, 1, 0, {}, None)
    connection.send(fields.to_json(node))
    ends.until(lambda: log.reasons)
    assert kinds(log) == ["redirect"]
    assert coordinator.others == 0


def test_node_whose_deferred_join_outlives_its_connection_is_silent(ends: Ends) -> None:
    """The votes may expire between the check of a Join and its handling."""
    finder = Elected()
    coordinator = coordinate(ends, finder)
    join(ends, "runs", TWO_NODES, "other")
    ends.until(lambda: coordinator.groups and coordinator.groups["runs"].recipients)
    group = coordinator.groups["runs"]
    handle = group.handle_deferred

    def expire() -> None:
        handle()
        finder.votes = False

    group.handle_deferred = expire  # type: ignore[method-assign]
    connection, _ = join(ends, "runs", TWO_NODES)
    ends.until(lambda: group.defers("n of runs"))
    connection.close()
    ends.until(lambda: coordinator.others == 1)
    group.handle_deferred = handle  # type: ignore[method-assign]
    finder.votes = True
    ends.until(lambda: "n of runs" in group.membership.members)
    assert "n of runs" in group.membership.members.silence
