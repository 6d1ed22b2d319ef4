"""The leader lease on a registry: holding it, and judging whether its holder is alive."""

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
    """Return a candidacy with a TTL of 15 s."""
    return Candidacy(15.0)


def test_leader_lease_expires_before_its_registry_record() -> None:
    """The lease counts from before the request, less a margin for clock drift."""
    mine = candidacy()
    mine.held(100.0)
    assert mine.until == 100.0 + 15.0 - MARGIN_S
    assert mine.holds(114.4) and not mine.holds(114.5)
    mine.end_hold()
    assert not mine.holds(100.0)


def test_leader_lease_is_fresh_for_one_second() -> None:
    """After a second, another node may already have evicted the holder and exited."""
    mine = candidacy()
    mine.held(100.0)
    assert mine.is_fresh(100.0 + 0.9 * FRESH_S) and not mine.is_fresh(100.0 + FRESH_S)


def test_lease_holder_steps_down_when_too_few_nodes_can_reach_it() -> None:
    """The holder steps down only once, and only if enough nodes could reach it before."""
    mine = candidacy()
    mine.held(100.0)
    assert not mine.has_too_few(enough=False)
    assert not mine.has_too_few(enough=True)
    assert mine.has_too_few(enough=False)
    assert not mine.has_too_few(enough=False)


def test_eviction_requires_earlier_contact_with_the_lease_holder() -> None:
    """Contact with a process on the holder's machine also counts. A refusal from a further address
    doesn't, and a firewall may refuse connections on the holder's behalf.
    """
    mine = candidacy()
    assert mine.patience_s(REFUSED, 100.0) is None
    assert mine.patience_s(REFUSED._replace(is_ours=True), 100.0) == SIGN_OF_LIFE_S
    mine.answered("1")
    assert mine.patience_s(REFUSED, 100.0) == SIGN_OF_LIFE_S
    assert mine.patience_s(REFUSED._replace(at_first=False), 100.0) is None
    assert mine.patience_s(REFUSED._replace(revision="2"), 100.0) is None  # a successor's
    assert mine.patience_s(REFUSED._replace(here=False), 100.0) == 2.5


def test_refusal_from_loopback_address_counts_only_on_the_same_host() -> None:
    """A loopback address is only meaningful on the host that wrote the record."""
    mine = candidacy()
    mine.answered("1")
    loopback = REFUSED._replace(is_loopback=True, is_ours=True)
    assert mine.patience_s(loopback, 100.0) is None
    assert mine.patience_s(loopback._replace(same_host=True), 100.0) == SIGN_OF_LIFE_S


def test_lease_holder_that_renews_past_its_ttl_is_alive() -> None:
    """If the holder were dead, its record would have expired."""
    mine = candidacy()
    mine.patience_s(REFUSED, 100.0)
    mine.patience_s(REFUSED, 110.0)
    assert not mine.is_alive(115.0 + LATE_S) and mine.is_alive(115.1 + LATE_S)
    mine.patience_s(REFUSED._replace(revision="2"), 116.0)
    assert not mine.is_alive(116.0 + LATE_S)
