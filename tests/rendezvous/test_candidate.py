"""A process that holds a leader lock in a registry that only works in part."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from conftest import LIMIT_S

from relight.base.env import Environment
from relight.core.link.leader_lease import Candidacy
from relight.flags.arguments import parse, to_spec
from relight.host.loop import Loop
from relight.rendezvous.config import arrange
from relight.rendezvous.discovery import SearchResult, Seeker
from relight.rendezvous.leader_lock import NOBODY, Record
from relight.rendezvous.leader_session import Answer, Candidate
from relight.rendezvous.register_finder import RegisterFinder


class FullRegister:
    """A registry with room for a record, but not for its renewal."""

    own_address = ""

    def __init__(self) -> None:
        self.holds = 0
        self.released = False

    def hold(self, value: str, ttl_s: float) -> Record:
        if not value:
            return NOBODY
        self.holds += 1
        if self.holds > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return Record(value, "1", True)

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        raise AssertionError(record)

    def release(self) -> None:
        self.released = True

    def close(self) -> None:
        pass


def test_no_coordinator_is_elected_if_lock_cannot_be_renewed() -> None:
    """Otherwise each process would coordinate briefly in turn, forever."""
    loop, register, candidacy = Loop(), FullRegister(), Candidacy(15.0)
    answers: list[Answer] = []
    candidate = Candidate(loop, register, "there", 15.0, candidacy)
    candidate.seeker = Found()
    try:
        assert candidate.take(lambda: "here", answers.append)
        loop.run_until(lambda: answers)
        [answer] = answers
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            raise answer  # type: ignore[misc]
        assert register.released
        assert not candidacy.holds(loop.now())
    finally:
        candidate.close()
        loop.close()


class HeldByThis(FullRegister):
    """A registry that names this process in response to any request."""

    def hold(self, value: str, ttl_s: float) -> Record:
        self.holds += 1
        return Record(value, "1", True) if value else NOBODY


class Found(Seeker):
    """A seeker that collects the results."""

    def __init__(self) -> None:
        self.results: list[SearchResult] = []

    def found(self, result: SearchResult) -> None:
        self.results.append(result)


class SlowRegister(FullRegister):
    """A registry that confirms the first renewal only when `answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = threading.Event()
        self.asked_at = 0.0

    def hold(self, value: str, ttl_s: float) -> Record:
        self.holds += bool(value)
        if self.holds == 3:
            self.asked_at = time.monotonic()
            assert self.answer.wait(LIMIT_S)
        return Record(value, "1", True) if value else NOBODY


def test_lease_counts_from_before_the_request_however_late_the_answer() -> None:
    """The registry's own clock starts when it receives the request."""
    loop, register, candidacy = Loop(), SlowRegister(), Candidacy(5.0)
    renewed: list[float] = []
    candidate = Candidate(loop, register, "there", 5.0, candidacy)
    candidate.seeker = seeker = Found()
    seeker.extended = renewed.append  # type: ignore[method-assign]
    latest = Candidacy(5.0)
    try:
        assert candidate.take(lambda: "here", lambda _: None)
        while not register.asked_at:  # a thread sets it, without an event for the loop
            loop.run_until(lambda: False, 0.01)
        latest.held(register.asked_at)
        loop.run_until(lambda: False, 0.2)
        register.answer.set()
        loop.run_until(lambda: bool(renewed), LIMIT_S)
        assert renewed[0] <= latest.until
    finally:
        register.answer.set()
        candidate.close()
        loop.close()


def test_agent_that_has_given_up_releases_record_obtained_afterwards(tmp_path: Path) -> None:
    """The registry may answer the agent's last request only after the agent has given up."""
    flags = ["--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}", "--rdzv-id=j"]
    meeting = arrange(to_spec(parse([*flags, "train.py"], Environment({}))), Environment({}))[0]
    loop, register, seeker = Loop(), HeldByThis(), Found()
    finder = RegisterFinder(loop, meeting._replace(register=register))
    finder.open(seeker)
    try:
        finder._own.to_text = lambda: "here"  # type: ignore[method-assign]
        finder.seek(may_host=True)
        loop.run_until(lambda: register.holds, LIMIT_S)  # written, not yet renewed
        finder.retire()
        loop.run_until(lambda: register.released, LIMIT_S)
        assert register.released
        assert not seeker.results
        assert not finder.coordinates(lambda: False)
    finally:
        finder.close()
        loop.close()


def test_holder_that_has_lost_a_node_steps_down_once_registry_is_silent(tmp_path: Path) -> None:
    """The node was lost while the last confirmation was fresh. It may have evicted the holder since
    then, and no further event may arrive before a successor continues without the holder.
    """
    flags = ["--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}", "--rdzv-id=j"]
    meeting = arrange(to_spec(parse([*flags, "train.py"], Environment({}))), Environment({}))[0]
    loop, register, seeker = Loop(), SlowRegister(), Found()
    finder = RegisterFinder(loop, meeting._replace(register=register))
    finder.open(seeker)
    reasons: list[str] = []
    seeker.step_down = lambda reason, again_s: reasons.append(reason)  # type: ignore[method-assign]
    try:
        finder._own.to_text = lambda: "here"  # type: ignore[method-assign]
        finder.seek(may_host=True)
        loop.run_until(lambda: seeker.results, LIMIT_S)
        assert finder.coordinates(lambda: True)  # the confirmation is fresh
        loop.run_until(lambda: reasons, LIMIT_S)
        assert reasons == ["a node was lost during a register outage"]
    finally:
        register.answer.set()
        finder.close()
        loop.close()
