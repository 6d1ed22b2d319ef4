"""A process that holds a leader lock in a registry that only works in part."""

import errno
import os

import pytest

from relight.core.link.leader_lease import Candidacy
from relight.host.loop import Loop
from relight.rendezvous.leader_lock import NOBODY, Record
from relight.rendezvous.leader_session import Answer, Candidate


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
    candidate = Candidate(
        loop, register, 15.0, candidacy,
        on_renewed=lambda: None, on_step_down=lambda _: None, on_trouble=lambda _: None,
        on_change=lambda _: None,
    )  # fmt: skip
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
