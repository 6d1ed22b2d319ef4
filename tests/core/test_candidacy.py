"""Holding a register, and doubting that the holder lives."""

from relight.core.link.leader_lease import (
    FRESH_S,
    LATE_S,
    MARGIN_S,
    SIGN_OF_LIFE_S,
    Candidacy,
    Refused,
)

REFUSED = Refused("1", at_first=True, is_ours=False, is_loopback=False, same_host=False, here=True)


def candidacy() -> Candidacy:
    """Return one of 15 s."""
    return Candidacy(15.0)


def test_hold_expires_before_its_record() -> None:
    """It counts from before the question, less a margin for clocks."""
    mine = candidacy()
    mine.held(100.0)
    assert mine.until == 100.0 + 15.0 - MARGIN_S
    assert mine.holds(114.4) and not mine.holds(114.5)
    mine.end_hold()
    assert not mine.holds(100.0)


def test_hold_is_fresh_for_one_second() -> None:
    """After that, a node that is gone may have evicted it."""
    mine = candidacy()
    mine.held(100.0)
    assert mine.is_fresh(100.0 + 0.9 * FRESH_S) and not mine.is_fresh(100.0 + FRESH_S)


def test_holder_steps_down_when_too_few_nodes_reach_it() -> None:
    """Once, when enough had reached it before."""
    mine = candidacy()
    mine.held(100.0)
    assert not mine.has_too_few(enough=False)
    assert not mine.has_too_few(enough=True)
    assert mine.has_too_few(enough=False)
    assert not mine.has_too_few(enough=False)


def test_eviction_requires_earlier_contact_with_holder() -> None:
    """Or a process on its machine; a firewall may refuse in its name. Not at a further address."""
    mine = candidacy()
    assert mine.patience_s(REFUSED, 100.0) is None
    assert mine.patience_s(REFUSED._replace(is_ours=True), 100.0) == SIGN_OF_LIFE_S
    mine.answered("1")
    assert mine.patience_s(REFUSED, 100.0) == SIGN_OF_LIFE_S
    assert mine.patience_s(REFUSED._replace(at_first=False), 100.0) is None
    assert mine.patience_s(REFUSED._replace(revision="2"), 100.0) is None  # its successor
    assert mine.patience_s(REFUSED._replace(here=False), 100.0) == 2.5


def test_loopback_address_counts_only_on_its_own_host() -> None:
    """It counts where the record was written, and nowhere else."""
    mine = candidacy()
    mine.answered("1")
    loopback = REFUSED._replace(is_loopback=True, is_ours=True)
    assert mine.patience_s(loopback, 100.0) is None
    assert mine.patience_s(loopback._replace(same_host=True), 100.0) == SIGN_OF_LIFE_S


def test_holder_refusing_beyond_ttl_is_alive() -> None:
    """Its record would have lapsed."""
    mine = candidacy()
    mine.patience_s(REFUSED, 100.0)
    mine.patience_s(REFUSED, 110.0)
    assert not mine.is_alive(115.0 + LATE_S) and mine.is_alive(115.1 + LATE_S)
    mine.patience_s(REFUSED._replace(revision="2"), 116.0)
    assert not mine.is_alive(116.0 + LATE_S)
