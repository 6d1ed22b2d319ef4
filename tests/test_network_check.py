"""A node's part in --health-check=network, on this machine."""

import socket
import time
from collections.abc import Iterator

import pytest
from conftest import LIMIT_S

from relight.agent.network_check import NetworkCheck
from relight.base.fields import Malformed
from relight.core.group.messages import NodesProbed, StartProbes, Target, Unreached
from relight.health.probes import new_cookie
from relight.host.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def nodes(loop: Loop) -> Iterator[list[NetworkCheck]]:
    made = [NetworkCheck(loop) for _ in range(3)]
    yield made
    for each in made:
        each.close()


def at_home(target: Target) -> Target:
    return target._replace(address="127.0.0.1")


def round_of(loop: Loop, nodes: list[NetworkCheck], *others: Target) -> list[NodesProbed]:
    """Let all nodes try to reach each other and some additional targets; return their answers."""
    answers: list[NodesProbed] = []
    targets = (*(at_home(each.prober) for each in nodes), *others)
    cookie = new_cookie().hex()
    for number, each in enumerate(nodes):
        each.start(StartProbes(cookie, number, targets), answers.append)
    end = time.monotonic() + LIMIT_S
    while len(answers) < len(nodes):
        assert time.monotonic() < end
        loop.run_once(0.1)
    assert all(each.cookie == cookie for each in answers)
    return answers


def test_repeated_probe_rounds_reach_all_nodes(loop: Loop, nodes: list[NetworkCheck]) -> None:
    for _ in range(3):
        answers = round_of(loop, nodes)
        assert all(each.unreached == () for each in answers)
        assert {each.prober for each in answers} == {each.prober for each in nodes}


def test_closed_port_is_reported_with_reason(loop: Loop, nodes: list[NetworkCheck]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        answers = round_of(loop, nodes, Target("127.0.0.1", closed.getsockname()[1], 0))
    assert [each.unreached for each in answers] == [(Unreached(3, "refused"),)] * 3


def test_invalid_probe_cookie_is_rejected(nodes: list[NetworkCheck]) -> None:
    with pytest.raises(Malformed):
        nodes[0].start(StartProbes("x", 0, (Target("", 1, 0),)), print)
